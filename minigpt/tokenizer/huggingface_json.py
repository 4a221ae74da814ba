"""Writes Hugging Face's tokenizer.json, and reads the files whose tokens have the same ids here.

A file with any option that would give other ids is refused with an error that names the option.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from minigpt.errors import TokenizerError
from minigpt.tokenizer.vocabulary import OtherRulesError, Vocabulary, bytes_to_unicode

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BY_CHARACTER = [
    {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
    BYTE_LEVEL | {"use_regex": False},
]
# The pattern that ByteLevel splits by if use_regex is true.
# Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FLAGS = ("single_word", "lstrip", "rstrip")


class AddedToken(NamedTuple):
    """A token that a file adds to the vocabulary, found in a text literally."""

    content: str
    id: int
    special: bool


class ParsedTokenizer(NamedTuple):
    """The vocabulary and merges of a tokenizer file, in GPT-2's byte alphabet, and its added tokens.

    `prefix` are the ids that it puts before a text; None if the config files say that.
    """

    vocab: Mapping[str, int]
    merges: Sequence[str | Sequence[str]]
    added: Sequence[AddedToken]
    by_character: bool
    ignores_merges: bool
    prefix: Sequence[int] | None = None


def tokenizer_json(
    model: Mapping[str, Any],
    added_tokens: Sequence[Mapping[str, Any]],
    *,
    normalizer: Mapping[str, Any] | None = None,
    pre_tokenizer: Mapping[str, Any],
    post_processor: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of a tokenizer.json with these parts."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def bpe_model(
    vocab: Mapping[str, int],
    merges: Sequence[str | Sequence[str]],
    *,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """The model of a tokenizer.json; several characters in a row without a token become one `unknown`."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def added_token(content: str, id: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """A token of the added_tokens in a tokenizer.json, with those of Hugging Face's options that are true."""
    return {
        "id": id,
        "content": content,
        **{flag: options.get(flag) is True for flag in (*_FLAGS, "normalized", "special")},
    }


def to_tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of a tokenizer.json for this vocabulary."""
    named = {**vocabulary.added, **vocabulary.special}
    vocab = {bytes_to_unicode(token): id for token, id in vocabulary.tokens.items()} | named
    by_character = {"type": "Sequence", "pretokenizers": _BY_CHARACTER}
    return tokenizer_json(
        bpe_model(
            dict(sorted(vocab.items(), key=itemgetter(1))),
            [f"{bytes_to_unicode(left)} {bytes_to_unicode(right)}" for left, right in vocabulary.merges],
            # Otherwise a character of several bytes would need merges to become its token.
            ignore_merges=vocabulary.by_character,
        ),
        [
            added_token(name, id, {"special": name in vocabulary.special})
            for name, id in sorted(named.items(), key=itemgetter(1))
        ],
        pre_tokenizer=by_character if vocabulary.by_character else BYTE_LEVEL,
        post_processor=around_text(vocabulary.prefix, {id: name for name, id in named.items()}),
        decoder=BYTE_LEVEL,
    )


def parse_tokenizer_json(content: Mapping[str, Any], *, is_gpt2_tokenizer: bool) -> ParsedTokenizer:
    """Parses the content of a tokenizer.json; `is_gpt2_tokenizer` if transformers reads it as a GPT2Tokenizer.

    Raises: OtherRulesError that names an option by which ids would differ here; KeyError, TypeError or AttributeError
    for another layout.
    """
    model = content["model"]
    kind = model.get("type", "BPE" if "merges" in model else None)  # the oldest files have no type
    if kind != "BPE":
        raise OtherRulesError(f"its model ({kind!r}) must be 'BPE'")
    if model.get("dropout"):
        raise TokenizerError(f"its dropout ({model['dropout']!r}) must be null")
    for option in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise OtherRulesError(f"its {option} ({model[option]!r}) must be null")
    if (normalizer := content.get("normalizer")) and normalizer.get("normalizers") != []:
        raise OtherRulesError(
            f"its normalizer ({_types(normalizer)}) must be null, so that decoding gives the encoded text"
        )
    if (decoder := content.get("decoder")) and decoder["type"] != "ByteLevel":
        raise OtherRulesError(f"its decoder ({_types(decoder)}) must be ByteLevel")
    return ParsedTokenizer(
        model["vocab"],
        model["merges"],
        [parse_added_token(token["content"], token["id"], token) for token in content.get("added_tokens") or ()],
        _splits_by_character(content["pre_tokenizer"], is_gpt2_tokenizer),
        model.get("ignore_merges") is True,
        parse_prefix(content.get("post_processor")),
    )


def around_text(prefix: Sequence[int], names: Mapping[int, str], suffix: Sequence[int] = ()) -> dict[str, Any] | None:
    """The post_processor of a tokenizer.json that puts these tokens before and after a text; None for no tokens."""
    if not prefix and not suffix:
        return None

    def steps(sequence: str, type_id: int) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": sequence, "type_id": type_id}}
        before, after = (
            [{"SpecialToken": {"id": names[id], "type_id": type_id}} for id in ids] for ids in (prefix, suffix)
        )
        return [*before, text, *after]

    return {
        "type": "TemplateProcessing",
        "single": steps("A", 0),
        "pair": steps("A", 0) + steps("B", 1),
        "special_tokens": {
            names[id]: {"id": names[id], "ids": [id], "tokens": [names[id]]} for id in (*prefix, *suffix)
        },
    }


def parse_prefix(post_processor: Mapping[str, Any] | None) -> list[int]:
    """The ids that the post_processor of a tokenizer.json puts before a text.

    Raises: TokenizerError for an unknown kind; KeyError, TypeError or AttributeError for another layout.
    """
    found: list[list[int]] = []
    for step in flat_steps(post_processor, "processors") if post_processor else ():
        kind, ids = step["type"], list[int]()
        if kind == "TemplateProcessing":
            for part in step["single"]:
                if "SpecialToken" not in part:
                    break
                ids += step["special_tokens"][part["SpecialToken"]["id"]]["ids"]
        elif kind in ("BertProcessing", "RobertaProcessing"):
            ids = [step["cls"][1]]
        elif kind != "ByteLevel":
            raise TokenizerError(
                f"its post_processor ({kind}) must be TemplateProcessing, BertProcessing, RobertaProcessing or "
                "ByteLevel"
            )
        else:
            continue
        found.append(ids)
    if len(found) > 1:
        raise TokenizerError(f"its post_processor must have one step that puts tokens around a text, not {len(found)}")
    return found[0] if found else []


def parse_added_token(content: str, id: int, options: Mapping[str, Any]) -> AddedToken:
    """An added token with these options of Hugging Face's AddedToken.

    Raises: OtherRulesError for options with which a token matches other text than its own.
    """
    special = options.get("special", False) is True
    for flag in _FLAGS:
        if options.get(flag) and not special:
            raise OtherRulesError(f"its added token {content!r} must have {flag}: false, so that it matches literally")
    return AddedToken(content, id, special)


def _splits_by_character(split: Mapping[str, Any] | None, is_gpt2_tokenizer: bool) -> bool:
    """Whether a text is split into characters; if not, it is split into GPT-2's pre-tokens."""
    if split is None:
        raise OtherRulesError("its split of the text (pre_tokenizer) must be GPT-2's")
    steps = list(flat_steps(split, "pretokenizers"))
    plain = [{"add_prefix_space": True, "use_regex": True, **step} for step in steps]  # the defaults
    *first, last = plain or [{"type": None}]
    if last["type"] != "ByteLevel" or len(first) > 1 or any(step["type"] != "Split" for step in first):
        raise OtherRulesError(f"its split of the text (pre_tokenizer, {_types(split)}) must be GPT-2's")
    # transformers' GPT2Tokenizer takes add_prefix_space from tokenizer_config.json and ignores tokenizer.json's.
    if last["add_prefix_space"] and not is_gpt2_tokenizer:
        raise OtherRulesError("its pre_tokenizer must have add_prefix_space: false, as GPT-2's")
    if not first and last["use_regex"]:
        return False
    pattern = first[0]["pattern"].get("Regex") if first else None
    # The patterns below match every character, and ByteLevel's own pattern splits none of their matches further.
    whole = first and first[0]["behavior"] == "Isolated" and not first[0]["invert"]
    if whole and pattern == GPT2_SPLIT and not last["use_regex"]:
        return False
    if whole and pattern == _BY_CHARACTER[0]["pattern"]["Regex"] and not last["use_regex"]:  # type: ignore[index]
        return True
    raise OtherRulesError(f"its split of the text (pre_tokenizer, by {pattern!r}) must be GPT-2's")


def flat_steps(step: Mapping[str, Any], inner: str) -> Iterator[Mapping[str, Any]]:
    """The steps of nested sequences; `inner` is the key of a sequence's steps, such as `normalizers`."""
    if step["type"] == "Sequence":
        for nested in step[inner]:
            yield from flat_steps(nested, inner)
    else:
        yield step


def _types(step: Mapping[str, Any]) -> str:
    inner = next((value for value in step.values() if isinstance(value, list)), None)
    return ", ".join(map(_types, inner)) if step["type"] == "Sequence" and inner is not None else str(step["type"])
