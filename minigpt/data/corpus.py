"""The corpus: a text as memory-mapped training and validation tokens, cached by its content."""

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minigpt.bounded_reading import read_json_value
from minigpt.data import batches
from minigpt.data.corpus_cache import (
    FORMAT,
    ProgressCounter,
    cache_key,
    cache_root,
    map_array,
    resolve_tokenizer,
    write_corpus,
    writing_tokens,
)
from minigpt.data.records import conversations
from minigpt.data.sources import Scan, scan
from minigpt.data.split import Part, ValidationSplit
from minigpt.data.token_writer import ByteProgress, array_hash, hashed_blocks, token_type, tokens_path
from minigpt.edges import provided
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.bpe_training import requested_vocab_size
from minigpt.tokenizer.tokenizer import Tokenizer

_PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A tokenized text, in which every document and every part of one ends with an end-of-text token.

    `train` and `validation` are memory-mapped arrays of ids, (N,) each; `validation` may be empty. Two corpora have the
    same `fingerprint` exactly if they have the same arrays. Byte counts are those of the text in UTF-8, about those of
    files of tokens. `damaged_cache` is the folder whose tokens were damaged, so that the text was tokenized again; None
    otherwise. In a mixture, `weights` are those of its texts. `has_text` unless the tokens were given as files of
    tokens. Edges have subclasses, which they open (see `TokenReader`).
    """

    path: Path
    tokenizer: Tokenizer
    train: npt.NDArray[Any]
    validation: npt.NDArray[Any]
    train_bytes: int
    validation_bytes: int
    n_documents: int
    held_out: str  # what the validation part is, as printed: "the end of each document"
    validation_fraction: float
    sources: tuple[str, ...]
    skipped: tuple[str, ...]
    source_hash: str
    fingerprint: str
    damaged_cache: Path | None = None
    weights: tuple[float, ...] = ()
    has_text: bool = True

    @classmethod
    def build(
        cls,
        sources: str | Path | Sequence[str | Path] | Scan,
        tokenizer: Tokenizer | str,
        *,
        cache: str | Path | None = None,
        text_key: str = "text",
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        validation_fraction: float | None = None,
        progress: ByteProgress | None = None,
    ) -> Self:
        """Tokenizes these sources, or opens the cached corpus if the same text was tokenized in the same way before.

        A tokenizer given as `chars` or `bpe:N` is trained on the training part. A Scan has its own `text_key`,
        `encoding` and `encoding_errors`, which replace the arguments. If the text has conversations, the corpus's
        tokenizer has their chat template. `progress` is called with the bytes done and the bytes in total.
        The cache is in `$MINIGPT_CACHE`, by default in the user's cache folder.

        Raises: DataError for sources as `scan` does, and for a cache that cannot be written; TokenizerError for an
        unknown tokenizer; ConfigError for settings out of bounds.
        """
        if isinstance(tokenizer, str):
            requested_vocab_size(tokenizer)  # reports a wrong name before a long scan
        if not isinstance(sources, Scan):
            sources = scan(sources, text_key=text_key, encoding=encoding, encoding_errors=encoding_errors)
        if (logs := conversations()) is not None:
            logs.check(sources.n_unlearned, knows_speakers=sources.has_speakers)
        (corpus,) = cls.build_each(
            [sources], [1.0], tokenizer, cache=cache, validation_fraction=validation_fraction, progress=progress
        )
        return corpus

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Tokenizer | str, **settings: Any) -> Self:
        """Like `build`, which has these `settings`, of texts in memory: each is a document.

        >>> minigpt.Corpus.from_texts(["one text", "another"], "bytes").n_documents
        2
        """
        if isinstance(texts, str):
            raise ConfigError("from_texts takes a list of texts, not one; give [text]")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "texts.jsonl")
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
            return cls.build(path, tokenizer, text_key="text", **settings)

    @classmethod
    def from_tokens(cls, train: npt.ArrayLike, tokenizer: Tokenizer, validation: npt.ArrayLike = ()) -> Self:
        """The corpus of these ids, (N,) each, which are not copied if they have the smallest type for the tokenizer.

        Raises: ConfigError for ids that the tokenizer does not have.

        >>> bytes_ = minigpt.Tokenizer.named("bytes")
        >>> len(minigpt.Corpus.from_tokens(bytes_.encode("the fox"), bytes_).train)
        7
        """
        parts = _ids(train, "train", tokenizer), _ids(validation, "validation", tokenizer)
        train_bytes, validation_bytes = (int(tokenizer.token_lengths[ids].sum()) for ids in parts)
        return cls(
            path=Path(),
            tokenizer=tokenizer,
            train=parts[0],
            validation=parts[1],
            train_bytes=train_bytes,
            validation_bytes=validation_bytes,
            n_documents=max(1, int((parts[0] == tokenizer.end_of_text).sum())),
            held_out="the validation tokens" if validation_bytes else "nothing",
            validation_fraction=validation_bytes / max(1, train_bytes + validation_bytes),
            sources=(),
            skipped=(),
            source_hash="",
            fingerprint=cache_key(tokenizer.fingerprint, *map(array_hash, parts)),
            has_text=False,
        )

    @classmethod
    def build_each(
        cls,
        texts: Sequence[Scan],
        weights: Sequence[float],
        tokenizer: Tokenizer | str,
        *,
        cache: str | Path | None = None,
        validation_fraction: float | None = None,
        progress: ByteProgress | None = None,
    ) -> list[Self]:
        """Like `build`, of several texts with one tokenizer, which is trained on all of them by their weights."""
        splits = [ValidationSplit.plan(text, validation_fraction) for text in texts]
        root, logs = cache_root(cache), conversations()
        counter = ProgressCounter(progress, sum(text.text_bytes for text in texts))
        built = []
        with writing_tokens(root):
            if isinstance(tokenizer, str):
                pairs = list(zip(texts, splits, strict=True))
                tokenizer = resolve_tokenizer(tokenizer, pairs, weights, root, counter)
            if logs and any(text.n_conversations for text in texts):
                tokenizer = tokenizer.with_chat_template(logs.chat_template)
            for text, split in zip(texts, splits, strict=True):
                fingerprint = corpus_fingerprint(text, tokenizer, validation_fraction)
                folder = root / "corpora" / fingerprint[:32]
                damaged, corpus = None, cls.load_cached(folder)
                if corpus is None:
                    damaged = folder if folder.exists() else None
                    write_corpus(folder, text, tokenizer, split, fingerprint, counter, cls.load)
                    corpus = cls._open(folder, tokenizer)
                # The cached text may have come from other files, with a tokenizer that differs in what the ids do not
                # show.
                names = tuple(file.name for file in text.files)
                built.append(
                    replace(corpus, tokenizer=tokenizer, sources=names, skipped=text.skipped, damaged_cache=damaged)
                )
        return built

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens the corpus that `build` wrote to this `path`.

        The tokens are compared with their recorded hash; of more than a gigabyte, 256 evenly spaced blocks are.

        Raises: DataError if there is none, or it is damaged.
        """
        return cls._open(Path(path), None)

    @classmethod
    def load_cached(cls, folder: Path) -> Self | None:
        """The corpus in a folder of the cache; None if there is none, or it is damaged.

        An error ends here, with the files that its traceback keeps mapped: Windows does not replace such files.
        """
        try:
            return cls.load(folder)
        except DataError:
            return None

    @classmethod
    def _open(cls, folder: Path, tokenizer: Tokenizer | None) -> Self:
        """Like `load`; `tokenizer` is the one in the folder, if it is loaded already."""
        try:
            record = read_json_value(folder / "corpus.json")
            if record.pop("format") != FORMAT:
                raise ValueError("another format")
            for reader in provided("token_reader"):
                if (found := reader.open(folder, record, tokenizer)) is not None:
                    return cast(Self, found)
            return cls(**cls.fields_of_text(folder, record, tokenizer))
        except DataError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder} is not a complete corpus; build it again from its text") from error

    @staticmethod
    def fields_of_text(folder: Path, record: dict[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
        """The fields of the corpus of a text that a folder records, of which `record` keeps what is unknown here."""
        tokenizer = tokenizer or Tokenizer.load(folder)
        hashes, arrays = record.pop("token_hashes"), dict[str, Any]()
        for part in _PARTS:
            arrays[part] = map_array(
                tokens_path(folder, part), token_type(tokenizer.vocab_size), record.pop(f"{part}_tokens"), hashes[part]
            )
            if any(block.max() >= tokenizer.vocab_size for block in hashed_blocks(arrays[part])):
                raise ValueError(f"the tokens in {folder} are damaged")
        names = {name: tuple(record.pop(name)) for name in ("sources", "skipped")}
        return {"path": folder, "tokenizer": tokenizer, **arrays, **names, **record}

    def batch(
        self, step: int, size: int, length: int, seed: int, rows: range | None = None, loss_on: str = "all"
    ) -> tuple[Tensor, Tensor]:
        """One step's inputs and targets from the training part: (B, T) int64 each.

        `loss_on` is the role whose turns are scored: all other targets are UNSCORED, and with `all` those of messages
        with weight 0.
        Raises: ConfigError for `loss_on` with a text that is not a chat log.
        """
        return batches.inputs_and_targets(*self.windows(step, size, length, seed, rows, loss_on=loss_on))

    def windows(
        self,
        step: int,
        size: int,
        length: int,
        seed: int,
        rows: range | None = None,
        *,
        lookahead: int = 1,
        loss_on: str = "all",
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """One step's windows of the training part, cut by `minigpt.data.batches.windows`, and which tokens are scored.

        The second is None if all are.
        Shapes: (B, T + lookahead) each.
        Raises: ConfigError for `loss_on` with a text that is not a chat log.
        """
        self.check_loss_on(loss_on)
        return self._windows(self.train, step, size, length, seed, rows, lookahead), None

    def _windows(
        self, tokens: npt.NDArray[Any], step: int, size: int, length: int, seed: int, rows: range | None, lookahead: int
    ) -> npt.NDArray[np.int64]:
        """`batches.windows` of the tokens of a part, or of what is known of each of them."""
        return batches.windows(tokens, step, size, length, seed, rows, lookahead)

    @property
    def is_chat_log(self) -> bool:
        """Whether every document is a conversation, so that the speaker of each token is known."""
        return False

    def check_loss_on(self, role: str) -> None:
        """Checks that the loss can be measured on this role's turns, or on `all`.

        Raises: ConfigError for a text that is not a chat log, and for a role without turns in one of the parts.
        """
        if role != "all" and self.weights:
            raise ConfigError(f"loss_on ({role}) needs a single text, not a mix; omit --mix, or give --loss-on all")
        if role != "all":
            which = self.sources[0] if len(self.sources) == 1 else f"{self.sources[0]} or another file"
            raise ConfigError(
                f"loss_on ({role}) needs a text in which every document is a conversation, and {which} is not a chat "
                "log; give all"
            )

    def scores_all(self, role: str) -> bool:
        """Whether the loss includes every token: with `all`, unless messages have weight 0."""
        return role == "all"

    def first_question(self, most: int) -> str:  # noqa: ARG002
        """The beginning of a held-out conversation up to the assistant's first turn; empty without one of at most
        `most` tokens."""
        return ""

    def scored(self, role: str, part: Part = "validation") -> npt.NDArray[np.bool_] | None:  # noqa: ARG002
        """Which tokens of a part the loss on this role's turns includes, (N,); None for all."""
        return None

    def scored_shares(self, role: str, length: int) -> tuple[float, float]:
        """The share of the training tokens that the loss includes, and of the windows of `length` that have one."""
        scored = self.scored(role, "train")
        if scored is None:
            return 1.0, 1.0
        n_windows = batches.windows_per_epoch(len(scored), length)
        return float(scored.mean()), float(scored[: n_windows * length].reshape(n_windows, -1).any(1).mean())


def _ids(given: npt.ArrayLike, name: str, tokenizer: Tokenizer) -> npt.NDArray[Any]:
    """An array of ids, (N,), in the tokenizer's type. Raises: ConfigError if it is not one."""
    ids = np.asarray(given, dtype=None if np.size(given) else np.uint16)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be token ids, (N,), not {ids.dtype} of shape {ids.shape}")
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        known = f"{tokenizer.name} has 0 to {tokenizer.vocab_size - 1}"
        raise ConfigError(f"{name} has the ids {ids.min()} to {ids.max()}; {known}")
    return ids.astype(token_type(tokenizer.vocab_size), copy=False)


def corpus_fingerprint(text: Scan, tokenizer: Tokenizer, validation_fraction: float | None) -> str:
    """The `fingerprint` of the corpus that `Corpus.build` makes of this text, without building it.

    Raises: ConfigError for a fraction out of bounds.
    """
    split = ValidationSplit.plan(text, validation_fraction)
    return cache_key(text.kept_hash, tokenizer.fingerprint, *split.key)
