"""Text generation: engines, sampling, decoding, streaming."""
