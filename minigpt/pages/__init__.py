"""What every HTML page of minigpt shares: its colours, and the ways to put code and data into a page safely."""
