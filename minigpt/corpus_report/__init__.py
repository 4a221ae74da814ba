"""What a text contains, and what is wrong with it, before a model is trained on it."""
