"""GPT-2 itself: attention, blocks, the model, and the attention forms that lead up to it."""
