"""What every HTML page of minigpt shares: its colors, and the ways to put code and data into a page safely."""
