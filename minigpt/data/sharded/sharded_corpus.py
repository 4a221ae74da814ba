"""A corpus whose tokens are in shards, which may still be written while a model trains on them."""

import contextlib
import filecmp
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from minigpt.bounded_reading import read_json_value
from minigpt.cores import available_cores
from minigpt.data.batches import select_rows
from minigpt.data.corpus import Corpus
from minigpt.data.corpus_cache import cache_key, cache_root, writing_tokens
from minigpt.data.sharded.first_shards import hold_out, sample_tokenizer, totals
from minigpt.data.sharded.mixture import Mixture
from minigpt.data.sharded.order import MixtureOrder, shares
from minigpt.data.sharded.store import Store, publish_file, write_json
from minigpt.data.sharded.workers import Workers
from minigpt.data.shards import ByteProgress, token_type
from minigpt.data.source_files import SourceFile
from minigpt.data.sources import has_conversations
from minigpt.data.transcript import CHAT_TEMPLATE
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer

SHARDED = 4  # the format of corpus.json; increase it when what is held out changes
HELD_OUT = "documents of the first shards"


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedCorpus(Corpus):
    """A corpus in shards. `train` is a sample of the first shards of each text; batches come from all of it.

    `total_tokens` and `total_bytes` are the training part of the whole text, estimated from its first shards unless
    these are all. `held_out_documents` are the documents of shards, by name, that are held out.
    """

    grows: ClassVar[bool] = True
    mixture: Mixture
    total_tokens: int
    total_bytes: int
    held_out_documents: tuple[Mapping[str, list[int]], ...]
    _workers: list[Workers] = field(default_factory=list)
    _frozen: MixtureOrder | None = None  # of a snapshot

    @classmethod
    def build_in_shards(
        cls,
        texts: Sequence[Sequence[SourceFile]],
        weights: Sequence[float],
        tokenizer: Tokenizer | str,
        *,
        text_key: str = "text",
        deduplicate: bool = False,
        validation_fraction: float | None = None,
        cache: str | Path | None = None,
        whole: bool = False,
        skipped: Sequence[str] = (),
        progress: ByteProgress | None = None,
    ) -> Self:
        """Tokenizes the first shards of texts, each of some files, or with `whole` all; or opens what is cached.

        If a text has conversations, the corpus's tokenizer has their chat template.
        Raises: DataError for files that cannot be read, and for a cache that cannot be written; ConfigError;
        TokenizerError.
        """
        shares(weights)
        root = cache_root(cache)
        with writing_tokens(root):
            if isinstance(tokenizer, str):
                tokenizer = sample_tokenizer(tokenizer, texts, weights, text_key, root)
            stores = [Store.create(root, files, text_key, tokenizer) for files in texts]
            if any(has_conversations(files, text_key) for files in texts):
                tokenizer = tokenizer.with_chat_template(CHAT_TEMPLATE)
            names = [store.folder.name for store in stores]
            fingerprint = shards_fingerprint(names, weights, deduplicate, validation_fraction)
            folder = root / "corpora" / fingerprint[:32]
            mixture = Mixture.create(folder, stores, weights, deduplicate=deduplicate)
            _save_tokenizer(folder, tokenizer)
            with Workers(mixture, available_cores(), first=not whole) as workers:
                workers.wait(progress)
            with FileLock(folder / "corpus.lock"):  # another process may build the same corpus
                try:
                    corpus = cls.open(folder)
                except DataError:
                    _describe(mixture, tokenizer, fingerprint, validation_fraction, skipped)
                    corpus = cls.open(folder)
        return replace(corpus, tokenizer=tokenizer)  # the one in the folder has no end ids

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens a corpus in shards.

        Raises: DataError if there is none, or it is damaged.
        """
        try:
            record = read_json_value(folder / "corpus.json")
            if record.pop("format") != SHARDED:
                raise ValueError("another format")
            tokenizer = Tokenizer.load(folder)
            dtype = token_type(tokenizer.vocab_size)
            hashes = record.pop("token_hashes")
            held_out_documents = tuple(map(_numbers, record.pop("held_out_documents")))
            mixture = Mixture.load(folder)
            record["source_hash"] = hashlib.sha256((folder / "mixture.json").read_bytes()).hexdigest()
            if len(held_out_documents) != len(mixture.stores):
                raise ValueError("another number of texts")
            return cls(
                path=folder,
                tokenizer=tokenizer,
                mixture=mixture,
                held_out_documents=held_out_documents,
                sources=tuple(file.name for store in mixture.stores for file in store.files),
                skipped=tuple(record.pop("skipped")),
                train=_checked(folder / "train.bin", dtype, hashes["train"]),
                validation=_checked(folder / "validation.bin", dtype, hashes["validation"]),
                **record,
            )
        except DataError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder} is not a complete corpus; build it again from its text") from error

    @property
    def n_train_tokens(self) -> int:
        """About how many tokens the training part of the whole text has."""
        return self.total_tokens

    @property
    def n_train_bytes(self) -> int:
        """About how many bytes it has."""
        return self.total_bytes

    @cached_property
    def order(self) -> MixtureOrder:
        """The order of the training sequences."""
        if self._frozen is not None:
            return self._frozen
        order = MixtureOrder(
            self.mixture, self.tokenizer.end_of_text, self.tokenizer.vocab_size, self.held_out_documents
        )
        silence = order.check

        def check() -> None:
            if self._workers:
                self._workers[0].check()
            else:
                silence()

        order.check = check
        return order

    def is_ready(self, step: int, size: int, length: int, seed: int) -> bool:
        """Whether the shards that a step needs are there.

        Raises: DataError if they never will be.
        """
        ready = self.order.is_ready(range(step * size, (step + 1) * size), length, seed)
        if not ready:
            self.order.check()
        return ready

    def snapshot(self) -> Self:
        """A copy that has the shards known now; its batches repeat them and never wait for others."""
        return replace(self, _frozen=self.order.frozen())

    def shards_done(self) -> str:
        """How much of the text is tokenized, for a notice."""
        done, total = self.mixture.done_bytes()
        return f"{done / 1e6:,.0f} of about {total / 1e6:,.0f} MB are tokenized"

    def tokenizing(self) -> AbstractContextManager[None]:
        """A block in which the rest of the text is tokenized beside other work."""
        return nullcontext() if self.mixture.is_complete() else self._tokenizing()

    @contextlib.contextmanager
    def _tokenizing(self) -> Iterator[None]:
        with Workers(self.mixture, available_cores(), nice=True) as workers:
            self._workers.append(workers)
            try:
                yield
            finally:
                self._workers.clear()

    def _windows(
        self, step: int, size: int, length: int, seed: int, rows: range | None, lookahead: int
    ) -> npt.NDArray[np.int64]:
        sequences = [step * size + row for row in select_rows(size, rows)]
        return self.order.windows(sequences, length, lookahead, seed)

    def _not_a_chat_log(self, role: str) -> ConfigError:
        return ConfigError(f"loss_on ({role}) needs a text that is tokenized at once; add --shards off, or give all")


def shards_fingerprint(
    names: Sequence[str], weights: Sequence[float], deduplicate: bool, validation_fraction: float | None
) -> str:
    """The `fingerprint` of a corpus in shards; `names` are those of its texts' folders, as from `store_name`."""
    return cache_key(SHARDED, names, [float(weight) for weight in weights], deduplicate, validation_fraction)


def _numbers(documents: Mapping[str, str]) -> dict[str, list[int]]:
    return {name: [int(number) for number in numbers.split()] for name, numbers in documents.items()}


def _checked(path: Path, dtype: np.dtype[Any], token_hash: str) -> npt.NDArray[Any]:
    tokens = np.fromfile(path, dtype)
    if hashlib.sha256(tokens.data).hexdigest() != token_hash:
        raise ValueError(f"{path} is damaged")
    return tokens


def _save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the files of a tokenizer that the folder does not have yet; other processes may be reading them."""
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
        tokenizer.save(scratch)
        for new in Path(scratch).iterdir():
            old = folder / new.name
            if not (old.exists() and filecmp.cmp(new, old, shallow=False)):
                new.replace(old)


def _describe(
    mixture: Mixture,
    tokenizer: Tokenizer,
    fingerprint: str,
    validation_fraction: float | None,
    skipped: Sequence[str],
) -> None:
    """Chooses what is held out of the first shards, and writes the description of the corpus."""
    total_tokens, total_bytes, n_documents = totals(mixture, tokenizer)
    chosen = hold_out(mixture, tokenizer, total_bytes, validation_fraction)
    hashes = {}
    for part, tokens in (("train", chosen.train), ("validation", chosen.validation)):
        publish_file(mixture.folder / f"{part}.bin", tokens.tobytes())
        hashes[part] = hashlib.sha256(tokens.data).hexdigest()
    lengths = tokenizer.token_lengths
    validation_bytes = int(lengths[chosen.validation].sum())
    write_json(
        mixture.folder / "corpus.json",
        {
            "format": SHARDED,
            "train_bytes": int(lengths[chosen.train].sum()),
            "validation_bytes": validation_bytes,
            "total_tokens": max(1, total_tokens - len(chosen.validation)),
            "total_bytes": max(1, total_bytes - validation_bytes),
            "n_documents": n_documents,
            "held_out": HELD_OUT if len(chosen.validation) else "nothing",
            "validation_fraction": validation_fraction or 0.0,
            "skipped": list(skipped),
            "fingerprint": fingerprint,
            "held_out_documents": [  # a string for each shard: there may be more numbers than JSON may have values
                {name: " ".join(map(str, numbers)) for name, numbers in of_text.items()}
                for of_text in chosen.held_out_documents
            ],
            "token_hashes": hashes,
        },
    )
