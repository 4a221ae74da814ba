"""A page that runs a model in a browser."""
