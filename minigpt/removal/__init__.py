"""Removes the folders of runs."""
