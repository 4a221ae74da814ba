"""Penalties for repetition, biases of tokens, and forbidden words."""
