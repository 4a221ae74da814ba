"""Text to token ids and back: GPT-2's byte-level BPE, bytes, characters, and BPE trained on a corpus."""
