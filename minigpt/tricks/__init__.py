"""Sampled softmax, spelling features, BPE-dropout and token noise."""
