"""A lesson: attention step by step, up to the encoder-decoder Transformer; the rest of minigpt does not use it."""
