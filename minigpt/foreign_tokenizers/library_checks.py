"""Checks of a stranger's tokenizer.json before the `tokenizers` library gets it.

The library trusts its files: a regular expression may take forever, a replacement may fill the memory, and a damaged
table of characters ends the process. Whatever is not known to be harmless is refused by name.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minigpt.errors import TokenizerError
from minigpt.tokenizer.huggingface_json import GPT2_SPLIT, flat_steps
from minigpt.tokenizer.vocabulary import MAX_IDS, check_added_size

_MAX_STEPS = 32  # of a normalizer, pre-tokenizer or decoder
_MAX_GROWTH = 128  # characters that replacements may make of one
_MAX_TOKEN = 512  # characters; the library's search tree of a Unigram model is as deep as the longest token
_MAX_WORD = 1000  # characters of a word that WordPiece searches, in quadratic time; BERT's are 100

_NORMALIZERS = (
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend", "Replace"),
    *("BertNormalizer", "Precompiled", "Nmt", "ByteLevel"),
)
_PRE_TOKENIZERS = (
    *("BertPreTokenizer", "Metaspace", "Whitespace", "WhitespaceSplit", "ByteLevel", "Split"),
    *("Punctuation", "Digits", "UnicodeScripts", "CharDelimiterSplit"),
)
_MODELS = ("WordPiece", "Unigram", "BPE", "WordLevel")
# Splits that models on the hub use. None of them can take more than linear time, except for runs of white space.
_TIKTOKEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_TIKTOKEN_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    (
        GPT2_SPLIT,
        _TIKTOKEN_WORDS + r"\p{N}" + _TIKTOKEN_REST,
        _TIKTOKEN_WORDS + r"\p{N}{1,3}" + _TIKTOKEN_REST,
        r"[\s\S]",
    )
)
# One character or class, once or repeated, takes linear time.
_ATOM = re.compile(
    r"(?:\\[dDsSwW]|\\p\{\w{1,20}\}|\[\^?(?:[^\[\]\\&]|\\[dDsSwWnrt\\\]\[]|\\p\{\w{1,20}\})+\]|[^\\\[\](){}|*+?.^$])"
    r"(?:[*+]|\{\d{1,3}(?:,\d{0,3})?\})?",
    re.DOTALL,
)


def check_rules(content: Mapping[str, Any]) -> None:
    """Checks the rules in a tokenizer.json.

    Raises: TokenizerError that names what is refused; KeyError, TypeError or AttributeError for another layout.
    """
    growth = 1.0
    for step in _steps(content.get("normalizer"), "normalizers", "normalizer", _NORMALIZERS):
        if step["type"] == "Precompiled":
            growth *= check_charsmap(step["precompiled_charsmap"])
        elif step["type"] == "Prepend":
            if not 0 < len(step["prepend"]) <= _MAX_TOKEN:
                raise TokenizerError(f"its normalizer must prepend 1 to {_MAX_TOKEN} characters")
        elif step["type"] == "Replace":
            growth *= max(1.0, len(step["content"]) / _pattern_length(step))
        if growth > _MAX_GROWTH:
            raise TokenizerError(f"its normalizer must not make a text more than {_MAX_GROWTH} times as long")
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers", "pre_tokenizer", _PRE_TOKENIZERS):
        if step["type"] == "Split":
            _pattern_length(step)
    for step in _steps(content.get("decoder"), "decoders", "decoder"):
        if step["type"] == "Replace":
            _pattern_length(step)
    added = content.get("added_tokens") or ()
    check_added_size([token["content"] for token in added])
    if any(not token["content"] or type(token["id"]) is not int or not 0 <= token["id"] < MAX_IDS for token in added):
        raise TokenizerError(f"its added tokens must have a name and an id from 0 to {MAX_IDS - 1}")
    _check_model(content["model"])


def _check_model(model: Mapping[str, Any]) -> None:
    kind = model["type"]
    if kind not in _MODELS:
        raise TokenizerError(f"its model ({kind!r}) must be one of {', '.join(_MODELS)}")
    if model.get("dropout"):
        raise TokenizerError(f"its dropout ({model['dropout']!r}) must be null, because it makes ids random")
    vocab = model["vocab"]
    if not vocab:
        raise TokenizerError("its vocabulary must not be empty")
    if kind == "Unigram":
        unknown = model.get("unk_id")
        if type(unknown) is not int or not 0 <= unknown < len(vocab):
            raise TokenizerError(f"its unk_id ({unknown!r}) must be the id of a token")
        tokens = [token for token, _ in vocab]
    else:
        tokens = list(vocab)
        if any(type(id) is not int or not 0 <= id < MAX_IDS for id in vocab.values()):
            raise TokenizerError(f"its ids must be integers from 0 to {MAX_IDS - 1}")
        unknown = model.get("unk_token")
        if unknown not in vocab and (unknown is not None or kind != "BPE"):
            raise TokenizerError(f"its unk_token ({unknown!r}) must be a token")
    if len(vocab) > MAX_IDS or max(map(len, tokens)) > _MAX_TOKEN:
        raise TokenizerError(f"it must have at most {MAX_IDS} tokens of at most {_MAX_TOKEN} characters")
    if kind == "WordPiece" and not 0 < model["max_input_chars_per_word"] <= _MAX_WORD:
        raise TokenizerError(
            f"its max_input_chars_per_word ({model['max_input_chars_per_word']!r}) must be from 1 to {_MAX_WORD}"
        )


def _steps(
    step: Mapping[str, Any] | None, inner: str, place: str, allowed: Sequence[str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """The steps of nested sequences, a few of the `allowed` kinds."""
    found = list(flat_steps(step, inner)) if step else []
    if len(found) > _MAX_STEPS:
        raise TokenizerError(f"its {place} must have at most {_MAX_STEPS} steps")
    for each in found:
        if allowed is not None and each["type"] not in allowed:
            raise TokenizerError(f"its {place} ({each['type']}) must be one of {', '.join(allowed)}")
    return iter(found)


def _pattern_length(step: Mapping[str, Any]) -> int:
    """The fewest characters that a pattern matches."""
    pattern = step["pattern"]
    if "String" in pattern:
        if not pattern["String"]:
            raise TokenizerError(f"the pattern of its {step['type']} must not be empty")
        return len(pattern["String"])
    regex = pattern["Regex"]
    if regex not in _PATTERNS and not (_ATOM.fullmatch(regex) and not regex.endswith("*")):
        raise TokenizerError(
            f"its regular expression {regex[:80]!r} is not one that minigpt knows, and could take forever on a text"
        )
    return 1


_MAX_REPLACEMENT = 64  # bytes; the longest of Unicode's NFKC has 33


def check_charsmap(encoded: str | None) -> float:
    """How many characters the table can make of one, at most.

    Raises: TokenizerError if it is damaged.
    """
    if not encoded:
        return 1.0
    damaged = TokenizerError("its precompiled_charsmap is damaged")
    try:
        content = base64.b64decode(encoded, validate=True)
        size = int.from_bytes(content[:4], "little")
        units, texts = content[4 : 4 + size], content[4 + size :]
        texts.decode()
    except ValueError as error:
        raise damaged from error
    # Children are found by an exclusive or with a byte, so that whole blocks of 256 units stay in the array.
    if len(content) < 4 or len(units) != size or size % 1024 or not size:
        raise damaged
    array = np.frombuffer(units, "<u4").astype(np.int64)
    children = np.arange(len(array)) ^ ((array >> 10) << ((array & (1 << 9)) >> 6))
    nodes = array < 1 << 31
    if (children[nodes] >= len(array)).any():
        raise damaged
    values = array[children[nodes & ((array >> 8) & 1 == 1)]] & (2**31 - 1)
    starts = np.append(np.frombuffer(texts, np.uint8), 0)
    if (values >= len(starts)).any() or ((starts[values] & 0xC0) == 0x80).any():  # outside, or within a character
        raise damaged
    longest = max(map(len, texts.split(b"\0")))
    if longest > _MAX_REPLACEMENT:
        raise TokenizerError(f"its precompiled_charsmap must not replace a character by {longest} bytes")
    return max(1.0, float(longest))
