"""What of a text a model has copied from its training text, word for word, and from where."""
