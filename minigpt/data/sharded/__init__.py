"""Texts larger than memory: files to segments, segments to token shards, shards to batches while they are written."""
