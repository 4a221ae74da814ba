"""Bans the tokens that a model has not seen in training: finds them, and never draws them."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from minigpt.generation.logits_processors import BanTokens
from minigpt.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus  # which generation does not need

_BLOCK = 2**22  # tokens that are looked at together
_BANS: WeakKeyDictionary[Tokenizer, BanTokens] = WeakKeyDictionary()


def unseen_tokens(corpus: "Corpus", among: Sequence[int] | None) -> Sequence[int]:
    """The ids that are not in the training part, but those at which a text ends (the seam `unseen_tokens`).

    A model that is trained further may know other tokens from before: then only those `among` the ids that were unseen
    until now. None means all ids.
    """
    if among is not None and not len(among):
        return ()
    tokens, seen = corpus.train, np.zeros(corpus.tokenizer.vocab_size, dtype=bool)
    for start in range(0, len(tokens), _BLOCK):
        seen[tokens[start : start + _BLOCK]] = True
    seen[list(corpus.tokenizer.end_ids)] = True
    unseen: list[int] = np.flatnonzero(~seen).tolist()
    return unseen if among is None else sorted(set(among).intersection(unseen))


def ban_of_unseen(tokenizer: Tokenizer, wanted: Collection[int] = ()) -> BanTokens | None:
    """Forbids the tokenizer's `suppressed_ids` but those `wanted`; None if there are none."""
    if not tokenizer.suppressed_ids:
        return None
    if not wanted:
        if tokenizer not in _BANS:  # with tens of thousands of ids it takes milliseconds
            _BANS[tokenizer] = BanTokens(tokenizer.suppressed_ids)
        return _BANS[tokenizer]
    return BanTokens([id for id in tokenizer.suppressed_ids if id not in wanted])
