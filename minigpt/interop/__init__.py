"""Models in other programs' formats, read and written: what comes in becomes a checkpoint, what goes out is one."""
