"""What is wrong with a text before a model is trained on it."""
