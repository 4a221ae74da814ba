"""Drafts of speculative decoding."""
