"""Converts BERT's vocab.txt to the content of a tokenizer.json."""

from collections.abc import Mapping
from typing import Any

from minigpt.errors import TokenizerError
from minigpt.tokenizer.huggingface_json import around_text

_ROLES = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"
}  # fmt: skip


def to_tokenizer_json(lines: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the tokenizer.json with the rules of BertTokenizer: `lines` has a token per line, and `config`
    the entries of tokenizer_config.json.

    Raises: TokenizerError if it has no unknown token.
    """
    tokens = lines.replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocab = {token: id for id, token in enumerate(tokens)}
    names = {role: config.get(role) or usual for role, usual in _ROLES.items()}
    if names["unk_token"] not in vocab:
        raise TokenizerError(f"it must have a line for its unknown token {names['unk_token']!r}")
    literal = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = {name: vocab[name] for name in names.values() if name in vocab}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": name, **literal} for name, id in sorted(special.items(), key=lambda item: item[1])
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": bert_around_text(vocab, names),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def bert_around_text(vocab: Mapping[str, int], roles: Mapping[str, str]) -> dict[str, Any] | None:
    """BERT's post_processor, if the vocabulary has its tokens; `roles` has the names that are not the usual ones."""
    start, end = (roles.get(role, _ROLES[role]) for role in ("cls_token", "sep_token"))
    if start not in vocab or end not in vocab:
        return None
    return around_text([vocab[start]], {vocab[start]: start, vocab[end]: end}, [vocab[end]])
