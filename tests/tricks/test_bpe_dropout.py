"""BPE-dropout: a text is encoded as other tokens in each epoch, with the distribution of the published algorithm."""

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from builders import new_model

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT, Vocabulary
from minigpt.training.loop import train
from minigpt.tricks.batches import NoisyBatches
from minigpt.tricks.bpe_dropout import BPEDropout

TEXT = (
    "The miller's daughters weren't walking; they walked, and they'd been walkers for 1234 days.\n\n"
    "\tRückwärts ging's über Straßen — „Привет, мир“, sagte 世界 einer… and a walker walks walking walked.\n"
) * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], "bpe:420")


def in_order(*merges: tuple[bytes, bytes]) -> Tokenizer:
    """The tokenizer of the bytes and these merges."""
    tokens = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *(left + right for left, right in merges)])
    return Tokenizer(Vocabulary({token: id for id, token in enumerate(tokens)}, merges, {END_OF_TEXT: len(tokens)}))


def seeds(n: int, first: int = 0):
    return np.arange(first, first + n, dtype=np.uint64)


def rows_of(tokenizer: Tokenizer, text: str, copies: int, spare: int = 40):
    """The same text in several rows, padded with newlines, and the number of its tokens."""
    ids = tokenizer.encode(text)
    return np.tile(np.array(ids + tokenizer.encode("\n") * spare), (copies, 1)), len(ids)


def tokens_of(tokenizer: Tokenizer, row, text: str) -> tuple[bytes, ...]:
    """The tokens at the start of a row that make up the text."""
    pieces: list[bytes] = []
    for id in row.tolist():
        if len(b"".join(pieces)) >= len(text.encode()):
            break
        pieces.append(tokenizer.token_bytes(id))
    assert b"".join(pieces) == text.encode()
    return tuple(pieces)


def encode_as_published(pretoken: str, tokenizer: Tokenizer, dropout: float, draw: random.Random) -> tuple[bytes, ...]:
    """Algorithm 1 of Provilkov et al. 2020 for one pre-token."""
    ranks = {merge: rank for rank, merge in enumerate(tokenizer.merges)}
    pieces = [bytes([byte]) for byte in pretoken.encode()]
    while True:
        can = [(ranks[pair], place) for place, pair in enumerate(pairwise(pieces)) if pair in ranks]
        can = [each for each in can if draw.random() >= dropout]
        if not can:
            return tuple(pieces)
        _, place = min(can)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


@pytest.mark.parametrize("dropout", [0.05, 0.4])
@pytest.mark.parametrize(
    "pretokens",
    [[" walking"], [" '", "tis", " walked"], ["aaaaaaa"], [" weren", "'t", "'s"], [" 1234", "walking"]],
    ids="".join,
)
def test_every_tokenization_is_as_frequent_as_by_the_published_algorithm(pretokens, dropout, tokenizer):
    if pretokens == ["aaaaaaa"]:
        tokenizer = in_order((b"a", b"a"), (b"aa", b"a"), (b"aa", b"aa"))
    copies, draw, text = 20_000, random.Random(0), "".join(pretokens)
    rows, _ = rows_of(tokenizer, text, copies)
    encoded = BPEDropout(tokenizer)(rows, seeds(copies), dropout, 20)
    ours = Counter(tokens_of(tokenizer, row, text) for row in encoded)
    theirs = Counter(
        tuple(piece for pretoken in pretokens for piece in encode_as_published(pretoken, tokenizer, dropout, draw))
        for _ in range(copies)
    )
    assert len(theirs) > 1
    for way in ours | theirs:
        assert ours[way] / copies == pytest.approx(theirs[way] / copies, abs=0.015), way


def test_the_decoded_text_stays_the_same_whichever_merges_are_dropped(tokenizer):
    ids, n = rows_of(tokenizer, TEXT[:400], copies=8, spare=400)
    for dropout in (0.05, 0.5, 0.99):
        encoded = BPEDropout(tokenizer)(ids, seeds(8), dropout, n + 390)
        texts = {tokenizer.decode(row)[:400] for row in encoded.tolist()}
        assert texts == {TEXT[:400]}
        assert len({tuple(row) for row in encoded.tolist()}) > 4


def test_tokens_never_cross_gpt2s_pretokens(tokenizer):
    ids, n = rows_of(tokenizer, TEXT[:190], copies=200, spare=200)
    for row in BPEDropout(tokenizer)(ids, seeds(200), 0.3, n + 100).tolist():
        for id in row:
            piece = tokenizer.decode([id]).replace("\ufffd", "")  # half a character belongs to its letters
            assert piece.lstrip(" ").isalpha() or not any(map(str.isalpha, piece)) or piece.startswith("'")


def test_a_row_depends_on_its_own_seed_and_not_on_the_other_rows(tokenizer):
    ids, n = rows_of(tokenizer, TEXT[:200], copies=6)
    ids[3:] = np.roll(ids[3:], 5, axis=1)
    dropout = BPEDropout(tokenizer)
    together = dropout(ids, seeds(6), 0.2, n)
    apart = np.concatenate(
        [dropout(ids[rows], seeds(6)[rows], 0.2, n) for rows in (slice(0, 1), slice(1, 4), slice(4, 6))]
    )
    assert (together == apart).all()
    assert not (together == dropout(ids, seeds(6, first=6), 0.2, n)).all()


def test_a_pretoken_that_occurs_twice_in_a_row_is_encoded_independently(tokenizer):
    ids, _ = rows_of(tokenizer, " walking walking", copies=400)
    pieces = [tokens_of(tokenizer, row, " walking walking") for row in BPEDropout(tokenizer)(ids, seeds(400), 0.2, 16)]
    equal = sum(both[: len(both) // 2] == both[len(both) // 2 :] for both in pieces)
    assert 0.02 < equal / 400 < 0.8


def test_long_rows_of_dashes_and_special_tokens_stay_unchanged():
    tokenizer = Tokenizer.named("gpt2")
    text = "-" * 300 + "\n"
    ids = np.array([[*tokenizer.encode(text), tokenizer.end_of_text] * 3])
    assert (BPEDropout(tokenizer)(ids, seeds(1), 0.9, ids.shape[1]) == ids).all()


@pytest.mark.parametrize("spec", ["chars", "bytes"])
def test_a_tokenizer_without_merges_is_refused_by_name(spec):
    tokenizer = Tokenizer.named(spec) if spec == "bytes" else Tokenizer.train([TEXT], spec)
    with pytest.raises(TokenizerError, match=rf"bpe_dropout needs a tokenizer with merges \(.*\); {spec} has none"):
        BPEDropout(tokenizer)


def test_a_batch_is_the_same_however_its_rows_are_divided_and_different_in_every_step(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    corpus = Corpus.build([tmp_path / "text.txt"], "bpe:420", cache=tmp_path / "cache")
    config = TrainConfig(batch_size=6, context_length=16, seed=1, bpe_dropout=0.3)
    noisy, dropped = (NoisyBatches(corpus, config.replace(token_noise=noise)) for noise in (0.1, 0.0))
    whole_batch = noisy.tensors(5, range(6), 1.0)
    parts = [noisy.tensors(5, rows, 1.0) for rows in (range(2), range(2, 5), range(5, 6))]
    for side in (0, 1):
        assert whole_batch[side].equal(parts[0][side].new_tensor([r for p in parts for r in p[side].tolist()]))
    assert dropped.tensors(5, range(0), 1.0)[0].shape == (0, 16)
    inputs, targets = dropped.tensors(5, range(6), 1.0)
    assert inputs[:, 1:].equal(targets[:, :-1])
    plain, _ = corpus.batch(5, 6, 16, 1)
    assert inputs[:, 0].tolist() != inputs[:, 1].tolist()
    assert not inputs.equal(plain)


BPE_VOCAB_SIZE = 262


@pytest.fixture(scope="module")
def bpe_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The same text with a few BPE tokens beyond the bytes."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "fox.txt").write_text(TEXT)
    return Corpus.build([folder / "fox.txt"], f"bpe:{BPE_VOCAB_SIZE}", cache=folder / "cache")


def settings(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        steps=10, batch_size=6, micro_batch_size=4, warmup_steps=2, learning_rate=1e-2, eval_every=3, sample_every=4,
        eval_tokens=200, device="cpu",
    )  # fmt: skip
    return base.replace(**changes)


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("trapezoid", [0.2, 0.2, 0.2, 0.2, 0.2, 0.15, 0.1, 0.05]),  # its cool-down is the second half
        ("constant", [0.2] * 8),
        ("cosine", [0.1 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]),
    ],
)
def test_bpe_dropout_falls_as_the_learning_rate_does(
    bpe_corpus: Corpus, monkeypatch: pytest.MonkeyPatch, schedule: str, shares: list[float]
) -> None:
    read, tensors = {}, NoisyBatches._tokenized_again

    def recorded(self: NoisyBatches, step: int, rows: range, dropout: float) -> tuple[torch.Tensor, torch.Tensor]:
        read[step] = dropout
        return tensors(self, step, rows, dropout)

    monkeypatch.setattr(NoisyBatches, "_tokenized_again", recorded)
    config = settings(steps=8, bpe_dropout=0.2, schedule=schedule, cooldown=0.5)
    list(train(new_model(vocab_size=BPE_VOCAB_SIZE), bpe_corpus, config))
    assert [read[step] for step in range(8)] == pytest.approx(shares)
