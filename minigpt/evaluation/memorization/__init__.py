"""Finds the parts of a text that are copied word for word from the training text, and their locations there."""
