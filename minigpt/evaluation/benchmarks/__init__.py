"""Published benchmarks with named protocols, beside GPT-2's published results."""
