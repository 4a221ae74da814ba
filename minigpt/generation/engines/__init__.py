"""Engines: implementations of a model's decode step in PyTorch, in CUDA graphs and in C."""
