"""Loss, perplexity and bits per byte of a text, also by position and by document."""
