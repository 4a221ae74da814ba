"""Opening models: runs, Hugging Face folders, the hub."""
