"""C code for a CPU: the decode step, and some operations of a training step."""
