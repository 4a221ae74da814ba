"""Conversations as training text."""
