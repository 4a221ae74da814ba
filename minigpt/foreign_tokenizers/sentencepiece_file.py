"""Reads SentencePiece's model file, and converts it to the content of a tokenizer.json.

The file is a protocol-buffers message. Its few fields are read here, because SentencePiece's own reader trusts a
stranger's file.
Source: google/sentencepiece, sentencepiece_model.proto; the conversion is that of huggingface/transformers,
convert_slow_tokenizer.py.
"""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from minigpt.errors import TokenizerError
from minigpt.protobuf.messages import protobuf_fields
from minigpt.tokenizer.huggingface_json import added_token, around_text, bpe_model, tokenizer_json
from minigpt.tokenizer.vocabulary import MAX_IDS

_UNIGRAM, _BPE = 1, 2
_CONTROL, _USER_DEFINED = 3, 4
_SETTINGS = {  # by the numbers of the message and of its field
    (2, 3): "kind",
    (2, 22): "splits_at_spaces",
    (2, 35): "bytes_for_unknown",
    (2, 40): "unknown",
    (3, 2): "charsmap",
    (3, 3): "adds_prefix",
    (3, 4): "joins_spaces",
}
_LONGEST_MERGED = 256  # characters; SentencePiece's own limit is 16 by default
_DAMAGED = "it is not a SentencePiece model, or is damaged"


class StoredPiece(NamedTuple):
    """A token of a SentencePiece model, its log-probability, and what kind of token it is."""

    text: str
    score: float
    kind: int


@dataclass
class SentencePieceModel:
    """The parts of a model file that say how text is encoded."""

    pieces: list[StoredPiece] = field(default_factory=list)
    kind: int = _UNIGRAM
    unknown: int = 0
    bytes_for_unknown: bool = False
    splits_at_spaces: bool = True
    charsmap: bytes = b""
    adds_prefix: bool = True
    adds_prefix_once: bool = False  # not after each added token
    joins_spaces: bool = True


def read_sentencepiece(content: bytes) -> SentencePieceModel:
    """The model in the bytes of a file.

    Raises: TokenizerError if it is damaged.
    """
    model = SentencePieceModel()
    try:
        for number, value in protobuf_fields(content):
            if number == 1 and isinstance(value, bytes):
                model.pieces.append(_read_piece(value))
                if len(model.pieces) > MAX_IDS:
                    raise TokenizerError(f"it must have at most {MAX_IDS} tokens")
            elif number in (2, 3) and isinstance(value, bytes):
                _read_settings(model, number, value)
    except TokenizerError:  # is a ValueError too
        raise
    except (ValueError, struct.error) as error:
        raise TokenizerError(_DAMAGED) from error
    if not model.pieces:
        raise TokenizerError(_DAMAGED)
    if model.kind not in (_UNIGRAM, _BPE):
        raise TokenizerError("its SentencePiece model must be of type unigram or bpe")
    return model


def _read_piece(content: bytes) -> StoredPiece:
    text, score, kind = "", 0.0, 1
    for number, value in protobuf_fields(content):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return StoredPiece(text, score, kind)


def _read_settings(model: SentencePieceModel, message: int, content: bytes) -> None:
    """Reads the trainer's settings (message 2) or the normalizer's (3)."""
    for number, value in protobuf_fields(content):
        if (message, number) == (2, 24) and value and isinstance(value, int):
            raise TokenizerError("its SentencePiece model must not treat white space as a suffix")
        name = _SETTINGS.get((message, number), "")
        if name and isinstance(value, bytes) == (name == "charsmap"):
            setattr(model, name, value if name in ("charsmap", "kind", "unknown") else bool(value))


def as_llama(model: SentencePieceModel, *, legacy: bool = False) -> SentencePieceModel:
    """The model as transformers' LlamaTokenizer reads it: the text is not normalized, and spaces split nothing.

    With `legacy`, a space begins the text after each added token too, not only the whole text.

    Raises: TokenizerError if it is not of type bpe.
    """
    if model.kind != _BPE:
        raise TokenizerError("its SentencePiece model must be of type bpe, as LlamaTokenizer's")
    plain = replace(model, charsmap=b"", joins_spaces=False, splits_at_spaces=False)
    return replace(plain, bytes_for_unknown=True, adds_prefix_once=not legacy)


def to_tokenizer_json(model: SentencePieceModel, *, as_xlm_roberta: bool = False) -> dict[str, Any]:
    """The content of the tokenizer.json with a model's rules.

    `as_xlm_roberta` if the ids are those of XLM-RoBERTa, whose special tokens come first, in another order.
    Raises: TokenizerError if the model names no unknown token.
    """
    pieces, unknown = model.pieces, model.unknown
    if as_xlm_roberta:
        first = [StoredPiece(name, 0.0, _CONTROL) for name in ("<s>", "<pad>", "</s>", "<unk>")]
        pieces, unknown = [*first, *pieces[3:], StoredPiece("<mask>", 0.0, _CONTROL)], 3
    if not 0 <= unknown < len(pieces):
        raise TokenizerError(f"the id of its unknown token ({unknown}) must be that of a token")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise TokenizerError("its tokens must differ from each other")
    replaced = {"type": "Metaspace", "replacement": "▁", "split": model.splits_at_spaces}
    scheme = "first" if model.adds_prefix_once else "always"
    metaspace = replaced | {"prepend_scheme": scheme if model.adds_prefix else "never"}
    first_split = [{"type": "WhitespaceSplit"}] if model.joins_spaces else []
    charsmap = base64.b64encode(model.charsmap).decode()
    text_of: Any = metaspace
    if model.bytes_for_unknown:
        space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if model.adds_prefix else []
        text_of = {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
    return tokenizer_json(
        _model(model, pieces, unknown),
        [
            added_token(piece.text, id, {"special": piece.kind != _USER_DEFINED})
            for id, piece in enumerate(pieces)
            if piece.kind in (_CONTROL, _USER_DEFINED) or id == unknown
        ],
        normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*first_split, metaspace]},
        post_processor=around_text([0], {0: "<s>", 2: "</s>"}, [2]) if as_xlm_roberta else None,
        decoder=text_of,
    )


def _model(model: SentencePieceModel, pieces: Sequence[StoredPiece], unknown: int) -> dict[str, Any]:
    if model.kind == _UNIGRAM:
        scores = [[piece.text, piece.score] for piece in pieces]
        return {"type": "Unigram", "unk_id": unknown, "vocab": scores, "byte_fallback": model.bytes_for_unknown}
    vocab = {piece.text: id for id, piece in enumerate(pieces)}
    return bpe_model(vocab, _merges(pieces), unknown=pieces[unknown].text, byte_fallback=model.bytes_for_unknown)


def _merges(pieces: Sequence[StoredPiece]) -> list[list[str]]:
    """The merges that make the tokens of a BPE model: SentencePiece stores only what they make, the likeliest first."""
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    found = []
    for id, piece in enumerate(pieces):
        text = piece.text
        for at in range(1, len(text) if len(text) <= _LONGEST_MERGED else 0):
            if text[:at] in ids and text[at:] in ids:
                found.append((id, at, len(text) - at, text[:at], text[at:]))
    return [[left, right] for *_, left, right in sorted(found)]
