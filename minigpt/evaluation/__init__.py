"""Loss, perplexity and bits per byte, their breakdowns, baselines, and published benchmarks."""
