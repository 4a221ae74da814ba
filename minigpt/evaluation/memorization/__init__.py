"""What of a text is copied from the training text, word for word, and from where."""
