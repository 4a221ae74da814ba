"""Writing with a model in the terminal: `minigpt play` and `minigpt chat`."""
