"""Drafts for speculative decoding: from the text itself, or from a smaller model."""
