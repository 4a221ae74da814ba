"""HTML pages that need no other file: what a model sees, and how a run went."""
