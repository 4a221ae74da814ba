"""Reads and writes the tokenizer files of Hugging Face and OpenAI."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import read_json_unicode, read_regular
from minigpt.errors import TokenizerError
from minigpt.tokenizer.config_files import (
    CONFIG,
    TOKENIZER,
    TokenizerConfig,
    as_tokenizer_error,
    end_token,
    read_config,
    write_json,
)
from minigpt.tokenizer.huggingface_json import AddedToken, ParsedTokenizer, parse_tokenizer_json, to_tokenizer_json
from minigpt.tokenizer.other_vocabulary import OtherVocabulary, other_files, read_other
from minigpt.tokenizer.vocabulary import (
    END_OF_TEXT,
    GPT2_BYTES,
    OtherRulesError,
    Vocabulary,
    bytes_to_unicode,
    decode_merges,
    parse_merges,
    unicode_to_bytes,
)

# The vocabulary and merges of a tokenizer without a tokenizer.json: transformers' names and OpenAI's.
_FILE_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
# The files of a tokenizer that a model's folder may have, besides those of the edges.
_FILES = (TOKENIZER, CONFIG, "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", *_FILE_PAIRS[0])
# The entry of tokenizer_config.json by which a model without a tokenizer is known: the number of its ids, and its end.
IDS_ONLY = "minigpt_ids_only"
# The entry of tokenizer_config.json of a tokenizer that reads the names of special tokens in documents as these tokens.
READS_NAMES = "minigpt_special_tokens"
AnyVocabulary = Vocabulary | OtherVocabulary
# SHA-256 of the tokenizer.json that minigpt writes for GPT-2.
_GPT2_FILE = "9538531b4af510e665b3ab13d38c60947038e6407cc38c96e84e6a07206dae3e"


def tokenizer_files() -> tuple[str, ...]:
    """The names of all files of a tokenizer that a model's folder may have."""
    return (*_FILES, *other_files())


def gpt2() -> Vocabulary:
    """GPT-2's vocabulary, from the merges that OpenAI published."""
    text = (resources.files("minigpt.tokenizer.gpt2") / "vocab.bpe").read_text(encoding="utf-8")
    return Vocabulary.in_order(GPT2_BYTES, parse_merges(text))


def write(directory: Path, vocabulary: AnyVocabulary, chat_template: str | None, *, reads_names: bool) -> None:
    """Writes a tokenizer's files into a directory, which is created if missing.

    The files are `tokenizer.json` and `tokenizer_config.json`, and for older programs `vocab.json` and `merges.txt`,
    except for a tokenizer by character, which these cannot express. A tokenizer of other rules keeps its own files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {} if chat_template is None else {"chat_template": chat_template}
    if reads_names:
        options[READS_NAMES] = True
    if not isinstance(vocabulary, Vocabulary):
        vocabulary.write(directory, options)
        return
    end = vocabulary.end_of_text
    roles = {"bos_token": end, "eos_token": end, "unk_token": end, "pad_token": end, **vocabulary.roles}
    config = {
        # GPT2Tokenizer would override the split in tokenizer.json with GPT-2's, and transformers 4 does not know the
        # class that transformers 5 writes. Both versions, and through them vLLM, read this one.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "model_input_names": ["input_ids", "attention_mask"],  # without token_type_ids, which GPT-2 models reject
        "padding_side": "left",  # so that prompts of different lengths end together in a batch
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,  # the default of transformers 4 is True
        **options,
    }
    content = to_tokenizer_json(vocabulary)
    write_json(directory / TOKENIZER, content)
    write_json(directory / CONFIG, config, indent=2)
    if not vocabulary.by_character:
        write_json(directory / "vocab.json", content["model"]["vocab"])
        merges = "\n".join(["#version: 0.2", *content["model"]["merges"]])
        (directory / "merges.txt").write_bytes(merges.encode() + b"\n")


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory has a tokenizer's files, or says that its model has none."""
    names = (TOKENIZER, "merges.txt", "vocab.json", "vocab.bpe", *other_files())
    return any((directory / name).exists() for name in names) or is_ids_only(directory)


def is_ids_only(directory: Path) -> bool:
    """Whether a directory says that its model has no tokenizer."""
    return not (directory / TOKENIZER).exists() and IDS_ONLY in read_config(directory).options


def read(directory: Path, config: TokenizerConfig, end_of_text: str | None) -> AnyVocabulary:
    """Reads the vocabulary from a directory's `tokenizer.json`, or from `vocab.json` and `merges.txt`, or from
    `encoder.json` and `vocab.bpe`, or from a file of an edge, with the special and added tokens that the config files
    next to them name.

    Raises: TokenizerError if there is none, it is damaged, or it has rules that are not known here.
    """
    path = directory / TOKENIZER
    pair = pair_in(directory)
    if not path.exists() and (pair is None or IDS_ONLY in config.options):
        other = read_other(directory, config, end_of_text)
        if other is not None:
            return other
        if IDS_ONLY in config.options:
            raise TokenizerError(f"{directory} has a model without a tokenizer; what reads its ids is not installed")
    if pair is None or path.exists():
        try:
            with as_tokenizer_error(path):
                # Most directories hold GPT-2's vocabulary; building it takes half the time of reading and checking it.
                may_be_gpt2 = config.adds_nothing and end_of_text in (None, END_OF_TEXT)
                if may_be_gpt2 and hashlib.sha256(read_regular(path)).hexdigest() == _GPT2_FILE:
                    return gpt2()
                parsed = parse_tokenizer_json(read_json_unicode(path), is_gpt2_tokenizer=config.is_gpt2_tokenizer)
                return _combine(parsed, config, end_of_text)
        except TokenizerError as error:
            if not isinstance(error.__cause__, OtherRulesError):
                raise
            return _read_with(path, config, end_of_text, error.__cause__)
    path = directory / pair[0]
    if config.options.get("add_prefix_space"):
        difference = OtherRulesError("its add_prefix_space (True) must be false")
        return _read_with(path, config, end_of_text, difference)
    vocab, merges = read_pair(directory, pair)
    with as_tokenizer_error(path):
        return _combine(ParsedTokenizer(vocab, merges, (), False, False), config, end_of_text)


def pair_in(directory: Path) -> tuple[str, str] | None:
    """The names of the files with the vocabulary and the merges in a directory; None if it has no merges."""
    return next((pair for pair in _FILE_PAIRS if (directory / pair[1]).exists()), None)


def read_pair(directory: Path, pair: tuple[str, str]) -> tuple[dict[str, int], list[str]]:
    """The vocabulary and the merges in these two files."""
    path = directory / pair[1]
    with as_tokenizer_error(path):
        version, *lines = read_regular(path).decode().replace("\r\n", "\n").split("\n")
        merges = [line for line in (version, *lines) if line and not (line is version and line.startswith("#version"))]
    path = directory / pair[0]
    with as_tokenizer_error(path):
        vocab: dict[str, int] = read_json_unicode(path)
    return vocab, merges


def _read_with(path: Path, config: TokenizerConfig, end_of_text: str | None, error: OtherRulesError) -> OtherVocabulary:
    """The tokenizer in a file whose rules are others.

    Raises: TokenizerError if no edge reads it.
    """
    other = read_other(path.parent, config, end_of_text, str(error))
    if other is None:
        raise TokenizerError(f"{path} cannot be used: {error}; what reads other tokenizers is not installed") from error
    return other


def _combine(parsed: ParsedTokenizer, config: TokenizerConfig, end_of_text: str | None) -> Vocabulary:
    """The vocabulary of a tokenizer and its config files."""
    tokens: dict[str, AddedToken] = {}
    for token in (*parsed.added, *config.literal_tokens):
        known = tokens.setdefault(token.content, token)
        if known.id != token.id:
            raise TokenizerError(f"its token {token.content!r} must have one id, but has {known.id} and {token.id}")
    ids = {**parsed.vocab, **{token.content: token.id for token in tokens.values()}}
    names_of = {id: name for name, id in reversed(ids.items()) if name in tokens or name == END_OF_TEXT}
    ends = (config.roles.get("eos_token"), *(names_of.get(id) for id in config.end_ids), END_OF_TEXT)
    end = end_token(end_of_text, ends, ids)
    names = {end, *config.roles.values(), *config.names, *(token.content for token in parsed.added if token.special)}
    names |= {token.content for token in config.literal_tokens if token.special}
    prefix = config.prefix(ids) if parsed.prefix is None else parsed.prefix
    special = {name: id for name, id in ids.items() if name in names or id in prefix}
    return build_vocabulary(
        parsed.vocab,
        parsed.merges,
        special=special,
        end_of_text=end,
        added={name: token.id for name, token in tokens.items() if name not in special and name},
        by_character=parsed.by_character,
        ignores_merges=parsed.ignores_merges,
        prefix=tuple(prefix),
        roles={role: name for role, name in config.roles.items() if name in special and role != "eos_token"},
    )


def build_vocabulary(
    vocab: Mapping[str, int],
    merges: Sequence[str | Sequence[str]],
    *,
    special: Mapping[str, int],
    end_of_text: str,
    added: Mapping[str, int] | None = None,
    by_character: bool = False,
    ignores_merges: bool | None = None,
    roles: Mapping[str, str] | None = None,
    prefix: Sequence[int] = (),
) -> Vocabulary:
    """The vocabulary with these tokens and merges in GPT-2's byte alphabet, as in a vocab.json.

    `special` and `added` tokens, written literally, may be in `vocab` as well; `added` tokens are found in a text
    before it is split into pre-tokens. `by_character` splits a text into characters instead, and by default ignores
    merges. `roles` are the special tokens by role, such as `pad_token`; by default all are the end-of-text token.
    `prefix` are the ids of those that begin every prompt.
    Raises: TokenizerError or OtherRulesError if the parts contradict each other, or encode a text differently here.
    """
    added, ignores_merges = added or {}, by_character if ignores_merges is None else ignores_merges
    known = {}  # decoded once: most tokens are part of several merges
    for name in vocab:
        if name not in special and (name not in added or name == bytes_to_unicode(name.encode())):
            known[name] = unicode_to_bytes(name)
    vocabulary = Vocabulary(
        tokens={token: vocab[name] for name, token in known.items()},
        merges=decode_merges(merges, known),
        special=special,
        end_of_text=end_of_text,
        added=added,
        by_character=by_character,
        roles=roles or {},
        prefix=tuple(prefix),
    )
    reachable, longer = vocabulary.reachable_tokens, [token for token in vocabulary.tokens if len(token) > 1]
    if by_character:
        if vocabulary.merges or not all(_is_character(token) for token in longer):
            raise OtherRulesError("it splits the text into characters, so its tokens must be characters")
        if longer and not ignores_merges:
            raise OtherRulesError("it splits the text into characters, so its ignore_merges must be true")
    elif ignores_merges:
        for token in longer:
            if token not in reachable:
                raise OtherRulesError(
                    f"its ignore_merges must be false: no merge produces its token {bytes_to_unicode(token)!r}"
                )
    return vocabulary


def _is_character(token: bytes) -> bool:
    try:
        return len(token.decode()) == 1
    except UnicodeDecodeError:
        return False
