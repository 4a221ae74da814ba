"""Hugging Face's tokenizer.json: what minigpt writes, and which of others' give the same ids here; it opens no files.

Nothing of a file is passed over that changes ids: what is not known to be equal to ours is refused by its name.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from minigpt.errors import TokenizerError
from minigpt.tokenizer.vocabulary import Vocabulary, written

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BY_CHARACTER = [
    {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
    _BYTE_LEVEL | {"use_regex": False},
]
# What ByteLevel splits by where it uses its own expression.
# Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs.
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FLAGS = ("single_word", "lstrip", "rstrip")


class Token(NamedTuple):
    """A token that a file adds to the words, found in a text as it is written."""

    content: str
    id: int
    special: bool


class Reading(NamedTuple):
    """What a file of words and merges says, both as they are written, and the tokens that it adds."""

    vocab: Mapping[str, int]
    merges: Sequence[str | Sequence[str]]
    added: Sequence[Token]
    by_character: bool
    ignores_merges: bool


def content_of(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of the tokenizer.json of a vocabulary."""
    named = {**vocabulary.added, **vocabulary.special}
    words = {written(word): id for word, id in vocabulary.words.items()} | named
    flags = dict.fromkeys(_FLAGS, False) | {"normalized": False}
    by_character = {"type": "Sequence", "pretokenizers": _BY_CHARACTER}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": name, **flags, "special": name in vocabulary.special}
            for name, id in sorted(named.items(), key=itemgetter(1))
        ],
        "normalizer": None,
        "pre_tokenizer": by_character if vocabulary.by_character else _BYTE_LEVEL,
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # A character of several bytes is a word that no merge of two words makes.
            "ignore_merges": vocabulary.by_character,
            "vocab": dict(sorted(words.items(), key=itemgetter(1))),
            "merges": [f"{written(left)} {written(right)}" for left, right in vocabulary.merges],
        },
    }


def read_content(content: Mapping[str, Any], *, is_gpt2_tokenizer: bool) -> Reading:
    """What the content of a tokenizer.json says; `is_gpt2_tokenizer` where transformers reads it as a GPT2Tokenizer.

    Raises: TokenizerError naming what would give other ids than ours; KeyError, TypeError, AttributeError where it is
    not laid out as one.
    """
    model = content["model"]
    kind = model.get("type", "BPE" if "merges" in model else None)  # the oldest files name no type
    if kind != "BPE":
        raise TokenizerError(f"its model ({kind!r}) must be 'BPE'")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise TokenizerError(f"its {option} ({model[option]!r}) must be null")
    if (normalizer := content.get("normalizer")) and normalizer.get("normalizers") != []:
        raise TokenizerError(f"its normalizer ({_types(normalizer)}) must be null, so that text comes back as it was")
    if (decoder := content.get("decoder")) and decoder["type"] != "ByteLevel":
        raise TokenizerError(f"its decoder ({_types(decoder)}) must be ByteLevel")
    _check_post_processor(content.get("post_processor"))
    return Reading(
        model["vocab"],
        model["merges"],
        [read_token(token["content"], token["id"], token) for token in content.get("added_tokens") or ()],
        _splits_by_character(content["pre_tokenizer"], is_gpt2_tokenizer),
        model.get("ignore_merges") is True,
    )


def read_token(content: str, id: int, options: Mapping[str, Any]) -> Token:
    """A token that a file adds to the words, with these options of Hugging Face's AddedToken.

    Raises: TokenizerError for one that is found in a text other than as it is written.
    """
    special = options.get("special", False) is True
    for flag in _FLAGS:
        if options.get(flag) and not special:
            raise TokenizerError(f"its added token {content!r} must not be found by rules of its own ({flag})")
    return Token(content, id, special)


def _splits_by_character(split: Mapping[str, Any], is_gpt2_tokenizer: bool) -> bool:
    """Whether a text is split into characters; if not, it is into GPT-2's words.

    Raises: TokenizerError where it is split otherwise.
    """
    steps = list(_flat(split, "pretokenizers"))
    plain = [{"add_prefix_space": True, "use_regex": True, **step} for step in steps]  # as they are by default
    *first, last = plain or [{"type": None}]
    if last["type"] != "ByteLevel" or len(first) > 1 or any(step["type"] != "Split" for step in first):
        raise TokenizerError(f"its split of the text (pre_tokenizer, {_types(split)}) must be GPT-2's")
    # transformers' GPT2Tokenizer goes by tokenizer_config.json in this, whatever the tokenizer.json says
    if last["add_prefix_space"] and not is_gpt2_tokenizer:
        raise TokenizerError("its pre_tokenizer must put no space in front of a text (add_prefix_space), as GPT-2's")
    if not first and last["use_regex"]:
        return False
    pattern = first[0]["pattern"].get("Regex") if first else None
    # What the expressions match leaves nothing between, and ByteLevel's own finds nothing to split in what they leave.
    whole = first and first[0]["behavior"] == "Isolated" and not first[0]["invert"]
    if whole and pattern == _GPT2_SPLIT and not last["use_regex"]:
        return False
    if whole and pattern == _BY_CHARACTER[0]["pattern"]["Regex"] and not last["use_regex"]:  # type: ignore[index]
        return True
    raise TokenizerError(f"its split of the text (pre_tokenizer, by {pattern!r}) must be GPT-2's")


def _check_post_processor(processor: Mapping[str, Any] | None) -> None:
    """Raises: TokenizerError where it adds tokens to a text."""
    for step in _flat(processor, "processors") if processor else ():
        adds = step["type"] == "TemplateProcessing" and [list(piece) for piece in step["single"]] != [["Sequence"]]
        if adds or step["type"] not in ("TemplateProcessing", "ByteLevel"):
            raise TokenizerError(f"its post_processor ({step['type']}) must add no tokens to a text")


def _flat(step: Mapping[str, Any], inner: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a sequence of sequences."""
    if step["type"] == "Sequence":
        for one in step[inner]:
            yield from _flat(one, inner)
    else:
        yield step


def _types(step: Mapping[str, Any]) -> str:
    inner = next((value for value in step.values() if isinstance(value, list)), None)
    return ", ".join(map(_types, inner)) if step["type"] == "Sequence" and inner is not None else str(step["type"])
