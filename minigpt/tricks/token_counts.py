"""How frequent each token is in a training text."""

import numpy as np
import torch
from torch import Tensor

from minigpt.data.corpus import Corpus

_COUNTED = 2**22  # tokens, to know how frequent each is
_FEW_TOKENS = 2**28  # of a text from which single tokens are counted; of a longer one, blocks


def token_counts(corpus: Corpus, vocab_size: int) -> Tensor:
    """How often each of the first `vocab_size` ids is in `train`, (V,) int64; of a long text, in a part of it.

    The part is evenly spaced and always the same.
    """
    n = len(corpus.train)
    if n <= _FEW_TOKENS:
        part = corpus.train[:: -(-n // _COUNTED)]
    else:  # single tokens would read all of a file
        size = _COUNTED // 256
        part = np.concatenate([corpus.train[start : start + size] for start in range(0, n - size, n // 256)])
    return torch.from_numpy(np.bincount(part, minlength=vocab_size))
