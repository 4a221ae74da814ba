"""Published benchmarks with their protocols, and GPT-2's published results."""
