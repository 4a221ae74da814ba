"""C code for a CPU: the decode step, the draw of a token, and some operations of a training step."""
