"""Reads the files of tokenizers that the `tokenizers` library runs, or that it can run once converted."""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import read_json_unicode, read_regular
from minigpt.errors import TokenizerError
from minigpt.foreign_tokenizers import sentencepiece_file
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.foreign_tokenizers.library import LibraryVocabulary, model_ids, unknown_token
from minigpt.tokenizer.config_files import CONFIG, PATHS, TOKENIZER, TokenizerConfig, as_tokenizer_error, end_token
from minigpt.tokenizer.files import IDS_ONLY, pair_in, read_pair
from minigpt.tokenizer.huggingface_json import (
    BYTE_LEVEL,
    added_token,
    around_text,
    bpe_model,
    parse_prefix,
    tokenizer_json,
)
from minigpt.tokenizer.other_vocabulary import OtherVocabulary, TokenizerReader
from minigpt.tokenizer.vocabulary import END_OF_TEXT, check_prefix

WORDPIECE = "vocab.txt"
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
CONVERTED = (WORDPIECE, *SENTENCEPIECE)

# The classes of transformers whose ids these files give; other classes change a text before or after.
_ANY_CLASS = (None, "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer")
_WORDPIECE_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_SENTENCEPIECE_CLASSES = ("T5Tokenizer", "LlamaTokenizer", "XLMRobertaTokenizer")
# What ends a text where no file says it: the role, then the names in the order in which they are looked for.
_ENDS = ("</s>", END_OF_TEXT, "<eos>", "[EOS]", "[SEP]")


def read(directory: Path, config: TokenizerConfig, end_of_text: str | None, difference: str) -> OtherVocabulary | None:
    """The tokenizer in a directory (see `TokenizerReader`).

    Raises: TokenizerError if it is damaged or has rules that are not known here either.
    """
    path, pair = directory / TOKENIZER, pair_in(directory)
    if difference and path.exists():
        return _read_library_json(path, config, end_of_text, difference)
    if difference and pair is not None:
        return _read_prefixed(directory, pair, config, end_of_text, difference)
    if IDS_ONLY in config.options:
        with as_tokenizer_error(directory / CONFIG):
            return IdsOnly(*config.options[IDS_ONLY])
    converted = _converted_file(directory)
    return None if converted is None else _read_converted(converted, config, end_of_text)


def _converted_file(directory: Path) -> Path | None:
    """The WordPiece or SentencePiece file in a directory, if there is one."""
    return next((directory / name for name in CONVERTED if (directory / name).exists()), None)


def _read_library_json(
    path: Path, config: TokenizerConfig, end_of_text: str | None, difference: str
) -> LibraryVocabulary:
    """The tokenizer in a tokenizer.json; `difference` is the rule by which it is not GPT-2's kind.

    Raises: TokenizerError if the library cannot run it.
    """
    with as_tokenizer_error(path):
        content = _as_opened(read_json_unicode(path), config)
        original = _converted_file(path.parent)
        files = {} if original is None else {original.name: read_regular(original)}
        return _combine(content, config, end_of_text, files, difference, from_json=True)


def _read_converted(path: Path, config: TokenizerConfig, end_of_text: str | None) -> LibraryVocabulary:
    """The tokenizer in a vocab.txt of BERT's, or in a file of SentencePiece's.

    Raises: TokenizerError if it is damaged, or belongs to a class of transformers that has other rules.
    """
    with as_tokenizer_error(path):
        file = read_regular(path)
        class_name = (config.class_name or "").removesuffix("Fast") or None
        known = _WORDPIECE_CLASSES if path.name == WORDPIECE else _SENTENCEPIECE_CLASSES
        if class_name not in (*_ANY_CLASS, *known):
            raise TokenizerError(
                f"its tokenizer_class ({config.class_name}) must be {' or '.join(known)}; for others, save a"
                f" {TOKENIZER} next to it: transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        if path.name == WORDPIECE:
            content = _wordpiece_json(file.decode(), {**config.options, **config.roles})
        else:
            model = sentencepiece_file.read_sentencepiece(file)
            if class_name == "LlamaTokenizer":
                model = sentencepiece_file.as_llama(model, legacy=config.options.get("legacy") is True)
            content = sentencepiece_file.to_tokenizer_json(
                model,
                as_xlm_roberta=class_name == "XLMRobertaTokenizer"
                or (class_name not in _SENTENCEPIECE_CLASSES and path.name == "sentencepiece.bpe.model"),
            )
        return _combine(content, config, end_of_text, {path.name: file}, f"its {path.name} is of another kind")


def _read_prefixed(
    directory: Path, pair: tuple[str, str], config: TokenizerConfig, end_of_text: str | None, difference: str
) -> LibraryVocabulary:
    """The tokenizer in a vocab.json and a merges.txt whose config puts a space before every text.

    Raises: TokenizerError if it is damaged.
    """
    vocab, merges = read_pair(directory, pair)
    with as_tokenizer_error(directory / pair[0]):
        files = {name: read_regular(directory / name) for name in pair}
        prefixed = BYTE_LEVEL | {"add_prefix_space": True}
        content = tokenizer_json(bpe_model(vocab, merges), [], pre_tokenizer=prefixed, decoder=prefixed)
        return _combine(content, config, end_of_text, files, difference)


def _as_opened(content: dict[str, Any], config: TokenizerConfig) -> dict[str, Any]:
    """The content of a tokenizer.json as transformers opens it: some entries of the config replace the file's."""
    class_name = (config.class_name or "").removesuffix("Fast")
    normalizer, split = content.get("normalizer"), content.get("pre_tokenizer")
    if class_name in _WORDPIECE_CLASSES and normalizer and normalizer["type"] == "BertNormalizer":
        content["normalizer"] = {
            **normalizer,
            "lowercase": config.options.get("do_lower_case", True),
            "strip_accents": config.options.get("strip_accents"),
            "handle_chinese_chars": config.options.get("tokenize_chinese_chars", True),
        }
    if class_name in _WORDPIECE_CLASSES and not content.get("post_processor"):
        content["post_processor"] = _bert_around_text(content["model"]["vocab"], config.roles)
    if class_name == "GPT2Tokenizer" and split and split["type"] == "ByteLevel":
        content["pre_tokenizer"] = {**split, "add_prefix_space": bool(config.options.get("add_prefix_space"))}
    if "type" not in content["model"] and "merges" in content["model"]:  # the oldest files have no type
        content["model"]["type"] = "BPE"
    return content


def _combine(
    content: dict[str, Any],
    config: TokenizerConfig,
    end_of_text: str | None,
    files: Mapping[str, bytes],
    difference: str,
    *,
    from_json: bool = False,
) -> LibraryVocabulary:
    """The tokenizer with these rules and the special and added tokens that the config files name.

    `from_json` if the rules are those of a tokenizer.json, which also says what is put before a text.
    """
    ids = model_ids(content["model"])
    added = {token["content"]: token for token in content.get("added_tokens") or ()}
    for name, id, options in config.tokens:
        if added.setdefault(name, added_token(name, id, options))["id"] != id:
            raise TokenizerError(f"its token {name!r} must have one id, but has {added[name]['id']} and {id}")
    ids |= {name: token["id"] for name, token in added.items()}
    named = [*config.roles.values(), *config.names, unknown_token(content["model"])]
    special = {name for name in named if name in ids} | {name for name, token in added.items() if token.get("special")}
    special |= {name for name in (*_ENDS, "[CLS]") if name in ids}  # whether a file says so or not
    prefix = parse_prefix(content.get("post_processor"))
    if not from_json and not prefix and (prefix := list(config.prefix(ids))):
        content["post_processor"] = around_text(prefix, {id: name for name, id in ids.items()})
    special |= {name for name, id in ids.items() if id in prefix}
    by_id = {ids[name]: name for name in special}
    ends = (*map(by_id.get, config.end_ids), *map(config.roles.get, ("eos_token", "sep_token")), *_ENDS)
    end = end_token(end_of_text, ends, ids)
    special.add(end)
    begins = [*(name for name, id in ids.items() if prefix and id == prefix[-1])]
    starts = (config.roles.get("bos_token"), *begins, config.roles.get("cls_token"), "[CLS]")
    start = next((name for name in starts if name and name in special), end)
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    check_prefix(prefix, {name: ids[name] for name in special})
    vocabulary = LibraryVocabulary(
        content,
        {name: ids[name] for name in sorted(special, key=ids.__getitem__)},
        end,
        start,
        added={name: ids[name] for name in added if name not in special},
        prefix=tuple(prefix),
        roles={role: name for role, name in config.roles.items() if name in special} | {"eos_token": end}
        | {"bos_token": start},
        config=_kept(config, files),
        files=files,
        difference=difference,
    )  # fmt: skip
    _ = vocabulary.coder  # checks the rules
    return vocabulary


def _kept(config: TokenizerConfig, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The entries of tokenizer_config.json that belong to the rules; with the name of the class, so that transformers
    opens a folder in which config.json does not name it.
    """
    left_out = {"chat_template", "added_tokens_decoder", *PATHS}
    kept = {key: value for key, value in config.options.items() if key not in left_out}
    usual = "BertTokenizer" if WORDPIECE in files else "PreTrainedTokenizerFast"
    return {**kept, "tokenizer_class": config.class_name or usual}


_ROLES = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"
}  # fmt: skip


def _wordpiece_json(lines: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the tokenizer.json with the rules of BertTokenizer: `lines` has a token per line, and `config`
    the entries of tokenizer_config.json.
    """
    tokens = lines.replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocab = {token: id for id, token in enumerate(tokens)}
    names = {role: config.get(role) or usual for role, usual in _ROLES.items()}
    if names["unk_token"] not in vocab:
        raise TokenizerError(f"it must have a line for its unknown token {names['unk_token']!r}")
    special = {name: vocab[name] for name in names.values() if name in vocab}
    return tokenizer_json(
        {
            "type": "WordPiece",
            "unk_token": names["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
        [added_token(name, id, {"special": True}) for name, id in sorted(special.items(), key=itemgetter(1))],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_bert_around_text(vocab, names),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def _bert_around_text(vocab: Mapping[str, int], roles: Mapping[str, str]) -> dict[str, Any] | None:
    """BERT's post_processor, if the vocabulary has its tokens; `roles` has the names that are not the usual ones."""
    start, end = (roles.get(role, _ROLES[role]) for role in ("cls_token", "sep_token"))
    if start not in vocab or end not in vocab:
        return None
    return around_text([vocab[start]], {vocab[start]: start, vocab[end]: end}, [vocab[end]])


reader = TokenizerReader(CONVERTED, read)
