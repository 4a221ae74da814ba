"""How much of a text was copied from the training text."""
