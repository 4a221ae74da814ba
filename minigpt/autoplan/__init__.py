"""Settings chosen for the text and the machine: measured speed, a scaling law, baselines."""
