"""The attention forms of the teaching articles, up to the encoder-decoder Transformer."""
