"""C code for a CPU: the decode step, and three operations of a training step."""
