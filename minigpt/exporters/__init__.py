"""Writers of other programs' formats, each checked by comparing logits."""
