"""Corpora of texts and of token ids in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")


def test_texts_in_memory_become_the_tokens_of_the_same_documents_in_a_file(here: Path) -> None:
    texts = ["first\ntext", "the second ☃", "{}"]
    (here / "same.txt").write_text("<|endoftext|>".join(texts), encoding="utf-8")
    corpus = Corpus.from_texts(iter(texts), "bytes", validation_fraction=0.0)
    file = Corpus.build("same.txt", "bytes", validation_fraction=0.0)
    assert corpus.n_documents == 3
    assert corpus.train.tolist() == file.train.tolist()
    assert corpus.fingerprint == file.fingerprint


def test_one_text_is_not_taken_for_a_list_of_its_characters(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"from_texts takes a list of texts, not one; give \[text\]"):
        Corpus.from_texts("a text", "bytes")


def test_no_text_and_text_that_is_not_unicode_are_refused(here: Path) -> None:
    for texts in ([], [""], ["\ud800"]):
        with pytest.raises(DataError):
            Corpus.from_texts(texts, "bytes")


def test_ids_are_a_corpus_without_a_copy() -> None:
    train, validation = np.array([1, 2, 256, 3, 4], dtype=np.uint16), [5, 6, 7]
    corpus = Corpus.from_tokens(train, BYTES, validation)
    assert np.shares_memory(corpus.train, train)
    assert corpus.validation.tolist() == validation
    assert (corpus.train_bytes, corpus.validation_bytes) == (4, 3)
    assert corpus.batch(0, 1, 2, seed=0)[0].shape == (1, 2)
    assert corpus.fingerprint != Corpus.from_tokens(train, BYTES).fingerprint
    assert Corpus.from_tokens(train, BYTES).held_out == "nothing"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 257], "train has the ids 1 to 257; bytes has 0 to 256"),
        ([-1], "train has the ids -1 to -1"),
        ([[1, 2]], r"train must be token ids, \(N,\), not int64 of shape \(1, 2\)"),
        ([0.5], "not float64"),
    ],
)
def test_what_are_no_ids_of_the_tokenizer_is_refused(ids: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Corpus.from_tokens(ids, BYTES)
