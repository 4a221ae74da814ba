"""Files to documents, token shards and batches."""
