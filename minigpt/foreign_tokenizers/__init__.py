"""Tokenizers that minigpt does not train: those of the tokenizers library and of SentencePiece."""
