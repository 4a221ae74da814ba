"""From files to documents, token shards and batches."""
