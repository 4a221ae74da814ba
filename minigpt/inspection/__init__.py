"""Inspection of what a model computes: attention maps, logit lens, norms and surprisal, as arrays and pictures."""
