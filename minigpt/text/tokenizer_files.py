"""Tokenizers as Hugging Face keeps them, and the training of byte-pair merges; it runs no tokenizer itself."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.errors import TokenizerError

END_OF_TEXT = "<|endoftext|>"
Merge = tuple[bytes, bytes]

# GPT-2 writes bytes as printable characters: those that Latin-1 prints stand for themselves, the others follow from
# U+0100 on. Its words begin with the 256 bytes in the order of those characters.
_PRINTABLE = bytes([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
GPT2_BYTES = _PRINTABLE + bytes(byte for byte in range(256) if byte not in _PRINTABLE)
_TO_WRITTEN = {
    byte: chr(byte if place < len(_PRINTABLE) else 0x100 + place - len(_PRINTABLE))
    for place, byte in enumerate(GPT2_BYTES)
}
# A character of no byte turns into one that Latin-1 cannot encode.
_FROM_WRITTEN = dict.fromkeys(range(256), 0xFFFD) | {ord(written): byte for byte, written in _TO_WRITTEN.items()}

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BY_CHARACTER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        _BYTE_LEVEL | {"use_regex": False},
    ],
}


class Definition(NamedTuple):
    """What makes a tokenizer: the order of its bytes, its merges, and the characters of one that knows characters."""

    alphabet: bytes
    merges: Sequence[Merge]
    characters: Sequence[str] | None


def _written(word: bytes) -> str:
    return word.decode("latin-1").translate(_TO_WRITTEN)


def parse_merges(text: str) -> list[Merge]:
    """The merges of a `vocab.bpe` or `merges.txt`: one line each, below a line with the version.

    Raises: TokenizerError where a line is not two words.
    """
    # One translation of the whole text is ten times faster than one per word; what separates must not turn into bytes.
    lines = text.translate(_FROM_WRITTEN | {ord(" "): "\u0100", ord("\n"): "\u0101"}).split("\u0101")
    if lines[0].startswith("#version"):
        del lines[0]
    try:
        return [
            (left.encode("latin-1"), right.encode("latin-1"))
            for left, right in (line.split("\u0100") for line in lines if line)
        ]
    except ValueError as error:
        raise TokenizerError("the merges must be two words in GPT-2's alphabet on each line") from error


def train_merges(texts: Iterable[str], count: int) -> list[Merge]:
    """At most `count` merges of the pairs that are most frequent in the texts, learnt one after the other."""
    import tokenizers  # here, because only training needs it
    from tokenizers import models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=256 + count,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    return [_read_merge(merge) for merge in model["merges"]]


def write(directory: Path, alphabet: bytes, merges: Sequence[Merge], characters: Sequence[str] | None) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` into a directory, which is made where it is missing."""
    words = [bytes([byte]) for byte in alphabet] + [left + right for left, right in merges]
    words += [character.encode() for character in characters or ()]
    vocab = {_written(word): id for id, word in enumerate(words)} | {END_OF_TEXT: len(words)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(words), "content": END_OF_TEXT, **special}],
        "normalizer": None,
        "pre_tokenizer": _BYTE_LEVEL if characters is None else _BY_CHARACTER,
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
            "ignore_merges": characters is not None,
            "vocab": vocab,
            "merges": [f"{_written(left)} {_written(right)}" for left, right in merges],
        },
    }
    config = {
        # Not GPT2Tokenizer, which would bring GPT-2's own split whatever tokenizer.json says.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,  # which transformers 4 does unless told not to
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> Definition:
    """The definition in a directory's `tokenizer.json`, or in its `vocab.json` and `merges.txt`.

    Raises: TokenizerError where there is none, it is damaged, or it is not one that minigpt gives the same ids as.
    """
    path = directory / "tokenizer.json"
    try:
        if not path.exists() and (directory / "merges.txt").exists():
            path = directory / "merges.txt"
            merges = path.read_text(encoding="utf-8")
            path = directory / "vocab.json"
            vocab = json.loads(path.read_text(encoding="utf-8"))
            return _definition(vocab, parse_merges(merges), by_character=False)
        content = json.loads(path.read_text(encoding="utf-8"))
        return _from_json(content)
    except FileNotFoundError as error:
        raise TokenizerError(f"{directory} must hold a tokenizer.json, and does not") from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from error
    except ValueError as error:  # our own, or JSON's, or Unicode's
        reason = error if isinstance(error, TokenizerError) else "it is damaged"
        raise TokenizerError(f"{path} cannot be used: {reason}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise TokenizerError(f"{path} cannot be used: it is not laid out as a tokenizer of Hugging Face's") from error


def _from_json(content: Mapping[str, Any]) -> Definition:
    model, split = content["model"], content["pre_tokenizer"]
    if model["type"] != "BPE":
        raise TokenizerError(f"its model ({model['type']!r}) must be 'BPE'")
    by_character = split == _BY_CHARACTER
    by_word = (
        split["type"] == "ByteLevel" and split.get("use_regex", True) is True and split["add_prefix_space"] is False
    )
    if not (by_character or by_word):
        raise TokenizerError("its split of the text (pre_tokenizer) must be GPT-2's, with no space put in front")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise TokenizerError(f"its {option} ({model[option]!r}) must be null")
    if content.get("normalizer"):
        raise TokenizerError("its normalizer must be null, so that text comes back as it was")
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    if list(added) != [END_OF_TEXT]:
        raise TokenizerError(f"its added tokens ({', '.join(added) or 'none'}) must be {END_OF_TEXT} alone")
    known = {word: _read_word(word) for word in model["vocab"]}  # read once: most words stand in several merges
    merges = [_read_merge(merge, known) for merge in model["merges"]]
    return _definition({**model["vocab"], **added}, merges, by_character, known)


def _read_merge(merge: str | Sequence[str], known: Mapping[str, bytes] = {}) -> Merge:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return known.get(left) or _read_word(left), known.get(right) or _read_word(right)


def _read_word(written: str) -> bytes:
    try:
        return written.translate(_FROM_WRITTEN).encode("latin-1")
    except ValueError as error:
        raise TokenizerError(f"its word {written!r} must be written in GPT-2's alphabet of bytes") from error


def _definition(
    vocab: Mapping[str, int], merges: Sequence[Merge], by_character: bool, known: Mapping[str, bytes] = {}
) -> Definition:
    """The definition, if the ids are the bytes, then the words in the order of their merges, then the end of text."""
    in_order = sorted(vocab, key=vocab.__getitem__)
    if [vocab[word] for word in in_order] != list(range(len(in_order))):
        raise TokenizerError(f"its ids must be 0 to {len(in_order) - 1}, each once")
    if in_order[-1] != END_OF_TEXT:
        raise TokenizerError(f"{END_OF_TEXT} must have its last id ({len(in_order) - 1})")
    words = [known.get(word) or _read_word(word) for word in in_order[:-1]]
    alphabet, rest = b"".join(words[:256]), words[256:]
    if sorted(alphabet) != list(range(256)):
        raise TokenizerError("its ids 0 to 255 must be the 256 bytes")
    if by_character:
        characters = [word.decode() for word in rest]
        if merges or any(len(character) != 1 for character in characters):
            raise TokenizerError("it splits the text into characters, so its words must be characters")
        return Definition(alphabet, (), characters)
    if rest != [left + right for left, right in merges]:
        raise TokenizerError("its ids must follow the order of its merges")
    return Definition(alphabet, merges, None)
