"""Loss, perplexity and bits per byte; breakdowns, baselines, memorization, and published benchmarks."""
