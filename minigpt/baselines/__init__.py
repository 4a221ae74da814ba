"""Simple methods that a model is compared with: compressors and n-gram tables."""
