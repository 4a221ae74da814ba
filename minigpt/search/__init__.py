"""Search for a likely text: beam search, and the best of several drawn texts."""
