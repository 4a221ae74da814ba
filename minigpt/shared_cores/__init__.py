"""Threads that leave cores to other programs, and that sleep while they wait for each other."""
