"""Models on disk: checkpoints, runs, and the names that Hugging Face gives their tensors."""
