"""Drawing in the terminal: consoles, tables, units, the training display, colored tokens."""
