"""Opens models: runs, Hugging Face folders, the hub, and what edges read."""
