"""Streaming: pieces join to the decoded text, and every row ends for the right reason."""

from collections.abc import Sequence

import pytest
import torch
from builders import new_model
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import Piece, generate_pieces, generate_text
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")


def small_model(**fields: int) -> GPT:
    """A random float64 model whose weights are large enough that the context matters."""
    return new_model(scale=8, **fields).double()


def speaker(text: str | Sequence[int], n_positions: int = 64) -> GPT:
    """A model that continues an end-of-text with this text, byte by byte: position t always predicts byte t."""
    ids = list(text.encode()) if isinstance(text, str) else list(text)
    config = GPTConfig(vocab_size=257, n_positions=n_positions, n_embd=257, n_layer=1, n_head=1)
    model = GPT(config).double().eval()
    for parameter in model.parameters():
        parameter.data.zero_()
    model.final_norm.weight.data.fill_(1)
    codes = torch.eye(257, dtype=torch.float64)
    model.token_embedding.weight.data = codes * 1e-3
    for position, id in enumerate(ids):
        model.position_embedding.weight.data[position] = codes[id] * 1e3
    return model


def texts(pieces: Sequence[Piece]) -> list[str]:
    """The text of every row."""
    rows = [""] * (1 + max(piece.row for piece in pieces))
    for piece in pieces:
        rows[piece.row] += piece.text
    return rows


def ids_of(pieces: Sequence[Piece], row: int = 0) -> list[int]:
    return [piece.token.id for piece in pieces if piece.row == row]


def generated(text: str | Sequence[int], **changes: object) -> tuple[str, str | None, int]:
    """The result of a model that predicts this text: the shown text, why it ended, and the number of tokens."""
    config = SamplingConfig(temperature=0, **changes)  # type: ignore[arg-type]
    pieces = list(generate_pieces(speaker(text), BYTES, [""], config))
    assert [piece.finish_reason for piece in pieces].count(None) == len(pieces) - 1
    return texts(pieces)[0], pieces[-1].finish_reason, len(pieces)


# Rows


def test_every_sample_of_a_batch_has_its_own_text_and_the_seed_repeats_them_all() -> None:
    config = SamplingConfig(max_new_tokens=12, samples=3, seed=5, temperature=2.0, top_p=1.0)
    runs = [texts(list(generate_pieces(small_model(), BYTES, ["ab"], config))) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


@settings(deadline=None, max_examples=8)
@given(
    prompts=st.lists(st.text("abc é", max_size=20), min_size=1, max_size=4),
    samples=st.integers(1, 3),
    stops=st.lists(st.text("etaoin ", min_size=1, max_size=1), max_size=3),
)
def test_a_row_is_the_same_in_a_batch_as_alone(prompts: list[str], samples: int, stops: list[str]) -> None:
    model = small_model(seed=1)
    config = SamplingConfig(max_new_tokens=14, samples=samples, seed=9, temperature=1.5, top_p=1.0, stop=tuple(stops))
    together = list(generate_pieces(model, BYTES, prompts, config))
    for number, prompt in enumerate(prompts):
        alone = list(generate_pieces(model, BYTES, [prompt], config))
        for sample in range(samples):
            ours = [piece for piece in together if piece.row == number * samples + sample]
            theirs = [piece for piece in alone if piece.row == sample]
            assert [(piece.text, piece.token, piece.finish_reason) for piece in ours] == [
                (piece.text, piece.token, piece.finish_reason) for piece in theirs
            ]


# Pieces


def test_text_pieces_join_to_the_decoded_ids() -> None:
    config = SamplingConfig(max_new_tokens=40, temperature=3.0, top_p=1.0, seed=2)
    pieces = list(generate_pieces(small_model(seed=3), BYTES, ["é"], config))
    ids = [id for id in ids_of(pieces) if id != BYTES.end_of_text]
    assert texts(pieces)[0] == BYTES.decode_bytes(ids).decode(errors="ignore")  # a part of a character is dropped
    assert [piece.finish_reason for piece in pieces].count(None) == len(pieces) - 1


def test_a_character_is_shown_with_its_last_byte() -> None:
    config = SamplingConfig(max_new_tokens=6, temperature=0)
    pieces = list(generate_pieces(speaker("aé漢"), BYTES, [""], config))
    assert [piece.text for piece in pieces] == ["a", "", "é", "", "", "漢"]
    cut = list(generate_pieces(speaker("aé漢"), BYTES, [""], config.replace(max_new_tokens=5)))
    assert texts(cut)[0] == "aé"  # the part of a character at the end is not shown
    cut = list(generate_pieces(speaker("aé漢"), BYTES, [""], config.replace(max_new_tokens=5, allow_invalid_utf8=True)))
    assert texts(cut)[0] == "aé\N{REPLACEMENT CHARACTER}"


def test_generate_text_takes_one_sample_only() -> None:
    with pytest.raises(ConfigError, match=r"samples \(2\) must be 1"):
        next(generate_text(small_model(), BYTES, "a", SamplingConfig(samples=2)))


# Ends


@pytest.mark.parametrize(
    ("ids", "text", "reason", "count"),
    [([3, 4, 5], "\x03\x04\x05", "length", 3), ([3, 4, 15], "\x03\x04", "stop", 3), ([3, 15, 4], "\x03", "stop", 2)],
)
def test_a_row_ends_before_a_stop_string_or_at_its_length(ids: list[int], text: str, reason: str, count: int) -> None:
    assert generated(ids, max_new_tokens=3, stop=("\x0f",)) == (text, reason, count)


def test_text_that_was_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    assert generated("abcab", max_new_tokens=5, stop=("abd",)) == ("abcab", "length", 5)
    assert generated([*b"abcab", 256], max_new_tokens=9, stop=("abd",)) == ("abcab", "end_of_text", 6)


def test_end_of_text_ends_a_row_and_is_not_shown() -> None:
    assert generated([3, 4, 256, 5], max_new_tokens=9) == ("\x03\x04", "end_of_text", 3)


def test_every_end_id_ends_a_row_and_is_not_shown_and_none_occurs_before_the_minimum() -> None:
    tokenizer = BYTES.with_end_ids([4, 7])
    config = SamplingConfig(temperature=0, max_new_tokens=9)
    for ids, text in (([3, 4, 5, 256], "\x03"), ([3, 5, 7, 4], "\x03\x05"), ([3, 256, 4, 7], "\x03")):
        pieces = list(generate_pieces(speaker(ids), tokenizer, [""], config))
        assert (texts(pieces)[0], pieces[-1].finish_reason) == (text, "end_of_text")
    later = list(generate_pieces(speaker([4, 7, 256, 4]), tokenizer, [""], config.replace(min_new_tokens=3)))
    assert len(later) == 4
    assert not set(ids_of(later)[:3]) & {4, 7, 256}
    found = list(generate_pieces(speaker([3, 4, 5]), tokenizer, [""], config.replace(beams=2)))
    assert ids_of(found)[-1] == 4
    assert texts(found)[0] == "\x03"


def test_an_incomplete_character_can_complete_a_stop_string() -> None:
    stop = ("\N{REPLACEMENT CHARACTER}",)
    assert generated([97, 0xC3, 256], max_new_tokens=9, stop=stop, allow_invalid_utf8=True) == ("a", "stop", 3)


@pytest.mark.parametrize(
    ("until", "text", "count"),
    [("line", "\n One. Two.", 12), ("sentence", "\n One.", 7), ("paragraph", "\n One. Two.\nThree.", 21)],
)
def test_a_row_ends_after_its_first_line_sentence_or_paragraph(until: str, text: str, count: int) -> None:
    assert generated("\n One. Two.\nThree. \n\nFour.", max_new_tokens=40, until=until) == (text, "stop", count)


def test_the_end_of_a_prompt_counts_for_the_end_of_a_sentence() -> None:
    config = SamplingConfig(temperature=0, max_new_tokens=40, until="sentence")
    for prompt, text in (("It was gone", "."), ("I met Mr", ". Smith there.")):
        model = speaker("x" * (len(prompt) - 1) + ". Smith there. So")
        assert texts(list(generate_pieces(model, BYTES, [prompt], config))) == [text]


@pytest.mark.parametrize(("least", "text"), [(0, "a"), (2, "a"), (3, "a.b"), (6, "a.b.c"), (7, "a.b.c.d")])
def test_stop_strings_count_from_the_minimum_of_new_tokens(least: int, text: str) -> None:
    assert generated("a.b.c.d.", max_new_tokens=12, stop=(".",), min_new_tokens=least)[0] == text


@pytest.mark.parametrize("beams", [1, 3])
def test_the_models_mode_is_restored_even_if_the_caller_stops_early(beams: int) -> None:
    model = small_model().train()
    pieces = generate_pieces(model, BYTES, ["a"], SamplingConfig(max_new_tokens=5, beams=beams))
    next(pieces)
    assert not model.training
    pieces.close()  # type: ignore[attr-defined]
    assert model.training


# The caller's processors


def no_vowels(logits: torch.Tensor, _history: torch.Tensor, _n_new: int) -> torch.Tensor:
    return logits.index_fill(1, torch.tensor(list(b"aeiou")), -torch.inf)


def test_generate_text_and_generate_pieces_pass_the_callers_processors_on() -> None:
    config = SamplingConfig(max_new_tokens=6, temperature=0)
    with_vowels = "".join(generate_text(speaker("banana"), BYTES, "", config))
    text = "".join(generate_text(speaker("banana"), BYTES, "", config, processors=[no_vowels]))
    assert (with_vowels, [at for at in text if at in "aeiou"]) == ("banana", [])
    assert text[::2] == "bnn"
    pieces = list(generate_pieces(speaker("banana"), BYTES, [""], config, processors=[no_vowels]))
    assert texts(pieces) == [text]


def test_processors_and_a_sampler_together_are_refused() -> None:
    config = SamplingConfig()
    pieces = generate_pieces(small_model(), BYTES, ["a"], config, processors=[no_vowels], sampler=Sampler(config))
    with pytest.raises(ConfigError, match="processors must be given to the Sampler"):
        next(pieces)
