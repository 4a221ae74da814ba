"""GPT-2: attention, its key/value cache, and the model."""
