"""Continuous batching: requests join and leave a running batch at every step."""
