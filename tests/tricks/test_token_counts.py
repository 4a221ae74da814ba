"""How often each token is in a training text: counted in all of it, or in an evenly spaced share."""

from pathlib import Path

import numpy as np
import pytest

from minigpt.data.corpus import Corpus
from minigpt.tricks import token_counts as counting
from minigpt.tricks.token_counts import token_counts

STORY = "".join(f"Line {n} of the story, which goes on — and on — for a while.\n" for n in range(400))


def test_token_counts_are_those_of_the_training_part_or_of_an_evenly_spaced_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "story.txt").write_text(STORY, encoding="utf-8")
    corpus = Corpus.build(tmp_path / "story.txt", "bytes", cache=tmp_path / "cache")
    ids, counts = np.unique(corpus.train, return_counts=True)
    found = token_counts(corpus, 300)
    assert found.shape == (300,)
    assert found[ids].tolist() == counts.tolist()
    assert found.sum() == len(corpus.train)
    monkeypatch.setattr(counting, "_COUNTED", 1000)
    step = -(-len(corpus.train) // 1000)
    assert token_counts(corpus, 300).tolist() == np.bincount(corpus.train[::step], minlength=300).tolist()
