"""Corpora of several texts with weights, and of files of tokens; the cache records what they are made of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from minigpt.data.corpus import Corpus
from minigpt.data.corpus_cache import FORMAT, cache_key, cache_root, publish, writing_tokens
from minigpt.errors import DataError
from minigpt.large_corpora import mixture
from minigpt.large_corpora.joined import JoinedArrays
from minigpt.large_corpora.token_files import TokenFile, open_token_file, read_token_files
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedCorpus(Corpus):
    """A mixture of corpora, whose training tokens are the arrays of `train`."""

    def _windows(
        self, tokens: npt.NDArray[Any], step: int, size: int, length: int, seed: int, rows: range | None, lookahead: int
    ) -> npt.NDArray[np.int64]:
        texts = cast(JoinedArrays, tokens).arrays
        return mixture.windows(texts, self.weights, step, size, length, seed, rows, lookahead)


def of_tokens(
    texts: Sequence[Sequence[TokenFile]],
    weights: Sequence[float],
    tokenizer: Tokenizer,
    characters: str | None = None,
    *,
    cache: str | Path | None = None,
    validation_fraction: float | None = None,
) -> Corpus:
    """The corpus of files of tokens, which are read where they are; the cache records their paths.

    Without weights there is one text. `characters` are those that the ids stand for, in the order of the ids, if they
    are not the tokenizer's ids.
    Raises: as `read_token_files`; DataError for a cache that cannot be written.
    """
    root, built = cache_root(cache), []
    with writing_tokens(root):
        for files in texts:
            record = {
                "format": FORMAT,
                "token_files": [str(file.path.absolute()) for file in files],
                "characters": characters,
                "validation_fraction": validation_fraction,
            }
            folder = root / "corpora" / cache_key(tokenizer.fingerprint, record)[:32]
            corpus = _of_files(folder, files, tokenizer, record)
            if Corpus.load_cached(folder) is None:
                with publish(folder, Corpus.load) as temporary:
                    tokenizer.save(temporary)
                    _write_record(temporary, record | {"fingerprint": corpus.fingerprint})
            built.append(corpus)
    if not weights:
        return built[0]
    fingerprint = cache_key("mix", [each.fingerprint for each in built], list(map(float, weights)))
    return mix(root, fingerprint, built, tuple(weights))


def mix(root: Path, fingerprint: str, built: Sequence[Corpus], weights: tuple[float, ...]) -> MixedCorpus:
    """The mixture of these corpora, recorded in the cache.

    Raises: ConfigError for a weight that is too small; DataError for a cache that cannot be written.
    """
    names = [[each.path.name, weight] for each, weight in zip(built, weights, strict=True)]
    folder = root / "corpora" / cache_key("mix", names)[:32]
    with writing_tokens(root):
        if Corpus.load_cached(folder) is None:
            with publish(folder, Corpus.load) as temporary:
                _write_record(temporary, {"format": FORMAT, "fingerprint": fingerprint, "mix": names})
    return _joined(folder, fingerprint, built, weights)


def open_corpus(folder: Path, record: dict[str, Any], tokenizer: Tokenizer | None) -> Corpus | None:
    """The corpus that a folder of the cache records; None if it is one of text.

    Raises: DataError if it is damaged, or its files have changed.
    """
    if "mix" in record:
        texts = [Corpus.load(folder.parent / name) for name, _ in record["mix"]]
        return _joined(folder, record["fingerprint"], texts, tuple(weight for _, weight in record["mix"]))
    if "token_files" in record:
        files = [open_token_file(Path(path)) for path in record["token_files"]]
        return _of_files(folder, files, tokenizer or Tokenizer.load(folder), record)
    return None


def _of_files(folder: Path, files: Sequence[TokenFile], tokenizer: Tokenizer, record: dict[str, Any]) -> Corpus:
    """The corpus of the files of tokens in a record, which may have a fingerprint."""
    found, key = read_token_files(files, tokenizer, record["characters"], record["validation_fraction"])
    fingerprint = cache_key("tokens", tokenizer.fingerprint, key)
    if record.get("fingerprint", fingerprint) != fingerprint:
        raise DataError(f"{files[0].name} or another file of tokens has changed since it was opened in {folder}")
    return Corpus(
        path=folder,
        tokenizer=tokenizer,
        skipped=(),
        source_hash="",
        fingerprint=fingerprint,
        has_text=False,
        **found,
    )


def _joined(folder: Path, fingerprint: str, texts: Sequence[Corpus], weights: tuple[float, ...]) -> MixedCorpus:
    """The mixture of these corpora, which is recorded in a folder."""
    mixture.shares(weights)
    first = texts[0]
    validation = mixture.held_out([each.validation for each in texts], weights, first.tokenizer.end_of_text)
    changed: dict[str, Any] = {
        "path": folder,
        "train": JoinedArrays([each.train for each in texts]),
        "validation": validation,
        "train_bytes": sum(each.train_bytes for each in texts),
        "validation_bytes": int(first.tokenizer.token_lengths[validation].sum()),
        "n_documents": sum(each.n_documents for each in texts),
        "held_out": "of each text, by its weight" if len(validation) else "nothing",
        "sources": tuple(name for each in texts for name in each.sources),
        "skipped": tuple(name for each in texts for name in each.skipped),
        "source_hash": cache_key(*(each.source_hash for each in texts)),
        "fingerprint": fingerprint,
        "damaged_cache": next((each.damaged_cache for each in texts if each.damaged_cache), None),
        "weights": weights,
    }
    return MixedCorpus(**{field.name: getattr(first, field.name) for field in fields(Corpus)} | changed)


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    (folder / "corpus.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
