"""Reads and writes the tokenizer files of Hugging Face and OpenAI."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import read_json_unicode, read_regular
from minigpt.errors import TokenizerError
from minigpt.foreign_tokenizers import library_files
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.foreign_tokenizers.library import LibraryVocabulary
from minigpt.tokenizer.config_files import (
    CONFIG,
    TokenizerConfig,
    as_tokenizer_error,
    end_token,
    read_config,
    write_json,
)
from minigpt.tokenizer.huggingface_json import AddedToken, ParsedTokenizer, parse_tokenizer_json, to_tokenizer_json
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
# The entry of tokenizer_config.json by which a model without a tokenizer is known: the number of its ids.
_IDS_ONLY = "minigpt_ids_only"
# The entry of tokenizer_config.json of a tokenizer that reads the names of special tokens in documents as these tokens.
READS_NAMES = "minigpt_special_tokens"
AnyVocabulary = Vocabulary | LibraryVocabulary | IdsOnly
# SHA-256 of the tokenizer.json that minigpt writes for GPT-2.
_GPT2_FILE = "9538531b4af510e665b3ab13d38c60947038e6407cc38c96e84e6a07206dae3e"


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
    if isinstance(vocabulary, LibraryVocabulary):
        library_files.write(directory, vocabulary, options)
        return
    if isinstance(vocabulary, IdsOnly):
        write_json(directory / CONFIG, {_IDS_ONLY: [vocabulary.size, vocabulary.end_id]})
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
    write_json(directory / library_files.FILE, content)
    write_json(directory / CONFIG, config, indent=2)
    if not vocabulary.by_character:
        write_json(directory / "vocab.json", content["model"]["vocab"])
        merges = "\n".join(["#version: 0.2", *content["model"]["merges"]])
        (directory / "merges.txt").write_bytes(merges.encode() + b"\n")


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory has a tokenizer's files, or says that its model has none (see `IdsOnly`)."""
    names = ("tokenizer.json", "merges.txt", "vocab.json", "vocab.bpe", *library_files.CONVERTED)
    return any((directory / name).exists() for name in names) or is_ids_only(directory)


def is_ids_only(directory: Path) -> bool:
    """Whether a directory says that its model has no tokenizer."""
    return not (directory / "tokenizer.json").exists() and _IDS_ONLY in read_config(directory).options


def read(directory: Path, config: TokenizerConfig, end_of_text: str | None) -> AnyVocabulary:
    """Reads the vocabulary from a directory's `tokenizer.json`, or from `vocab.json` and `merges.txt`, or from
    `encoder.json` and `vocab.bpe`, or from `vocab.txt` or a SentencePiece file, with the special and added tokens that
    the config files next to them name.

    Raises: TokenizerError if there is none, it is damaged, or it has rules that are not known here.
    """
    path = directory / "tokenizer.json"
    pair = next((pair for pair in _FILE_PAIRS if (directory / pair[1]).exists()), None)
    if not path.exists():
        if _IDS_ONLY in config.options:
            with as_tokenizer_error(directory / CONFIG):
                return IdsOnly(*config.options[_IDS_ONLY])
        converted = library_files.converted_file(directory)
        if pair is None and converted is not None:
            return library_files.read_converted(converted, config, end_of_text)
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
            difference = str(error.__cause__)
        return library_files.read_library_json(path, config, end_of_text, difference)
    path = directory / pair[1]
    with as_tokenizer_error(path):
        version, *lines = read_regular(path).decode().replace("\r\n", "\n").split("\n")
        merges = [line for line in (version, *lines) if line and not (line is version and line.startswith("#version"))]
    path = directory / pair[0]
    with as_tokenizer_error(path):
        vocab = read_json_unicode(path)
        if config.options.get("add_prefix_space"):
            files = {name: read_regular(directory / name) for name in pair}
            return library_files.read_prefixed(vocab, merges, config, end_of_text, files)
        return _combine(ParsedTokenizer(vocab, merges, (), False, False), config, end_of_text)


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
