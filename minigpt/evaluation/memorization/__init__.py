"""What a generated text copies from the training text, and from where."""
