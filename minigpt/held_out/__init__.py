"""The training text of a run as something to evaluate: its held-out part, and the texts that it contains."""
