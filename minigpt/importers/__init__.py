"""Readers of other programs' GPT-2 formats, one file per format."""
