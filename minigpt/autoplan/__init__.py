"""Settings chosen for the text and the machine, by measured speed and a scaling law, and the result to expect."""
