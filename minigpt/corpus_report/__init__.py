"""Reports the contents and the problems of a text before a model is trained on it."""
