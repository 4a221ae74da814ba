"""Engines that run a model: PyTorch, CUDA graphs, and C on CPUs."""
