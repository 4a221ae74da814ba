"""What a model knows and how well: evaluation."""
