"""A text examined before a model is trained on it: what is wrong with it, and what a model should beat."""
