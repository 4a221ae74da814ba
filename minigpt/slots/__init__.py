"""Slots: a key/value cache whose rows hold texts of different lengths, which are read in the same call."""
