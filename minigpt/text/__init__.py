"""From text to ids to batches: tokenizers, corpora, batches."""
