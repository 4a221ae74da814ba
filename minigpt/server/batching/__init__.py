"""Continuous batching: requests join and leave at every step."""
