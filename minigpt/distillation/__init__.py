"""A teacher that is trained first, from whose predictions the model learns."""
