"""Training events for TensorBoard and Weights & Biases."""
