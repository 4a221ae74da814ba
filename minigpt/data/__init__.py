"""Files to documents, tokens and batches."""
