"""Drawing in the terminal: consoles, tables, the training display, colored tokens."""
