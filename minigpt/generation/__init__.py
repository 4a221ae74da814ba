"""From logits to text: sampling, decoding, streaming."""
