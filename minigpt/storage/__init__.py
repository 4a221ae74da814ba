"""Models on disk and from elsewhere: checkpoints, runs, Hugging Face names, imports."""
