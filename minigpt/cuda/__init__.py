"""Generation on CUDA: recorded graphs, and Triton kernels for a decoding step."""
