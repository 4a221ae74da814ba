"""Sampled softmax, spelling features and BPE-dropout."""
