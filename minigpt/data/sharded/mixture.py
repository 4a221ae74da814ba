"""Several texts with weights as one corpus: the order in which they are tokenized, and the duplicates among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from minigpt.bounded_reading import read_json_value
from minigpt.data.sharded.store import Shard, Store, publish_file, write_json
from minigpt.errors import DataError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Mixture:
    """The texts that a corpus draws from, in `folder`, which has the marks of duplicates.

    A sequence comes from a text with a probability proportional to its weight, whatever its size.
    """

    folder: Path
    stores: tuple[Store, ...]
    weights: tuple[float, ...]
    deduplicate: bool

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Opens a mixture.

        Raises: DataError.
        """
        try:
            record = read_json_value(folder / "mixture.json")
            stores = tuple(Store(folder / each) for each in record["stores"])
            return cls(folder, stores, tuple(record["weights"]), record["deduplicate"])
        except DataError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder} is not a complete corpus; build it again from its text") from error

    @classmethod
    def create(cls, folder: Path, stores: Sequence[Store], weights: Sequence[float], *, deduplicate: bool) -> Self:
        """Writes a mixture of texts.

        Raises: OSError.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = [str(Path("..", "..", "shards", store.folder.name)) for store in stores]
        write_json(folder / "mixture.json", {"stores": names, "weights": list(weights), "deduplicate": deduplicate})
        return cls.load(folder)

    def work(self) -> list[tuple[int, int]]:
        """All segments, as the numbers of their store and in it, in the order in which they are needed.

        The texts advance in proportion to their weights.
        """
        places = []
        for number, (store, weight) in enumerate(zip(self.stores, self.weights, strict=True)):
            done = 0
            for index, segment in enumerate(store.segments):
                places.append((done / weight, number, index))
                done += segment.size
        return [(number, index) for _, number, index in sorted(places)]

    def mask_path(self, store: int, shard: Shard) -> Path:
        """The file that marks the documents of a shard that are no duplicates, a byte each."""
        return self.folder / f"{store:03d}-{shard.name}.kept"

    def kept(self, store: int, shard: Shard) -> Mask | None:
        """Which documents of a shard are not duplicates, (documents,); None if that is not known yet."""
        if not self.deduplicate:
            return np.ones(shard.documents, bool)
        try:
            mask = np.fromfile(self.mask_path(store, shard), np.uint8)
        except FileNotFoundError:
            return None
        return mask.astype(bool) if len(mask) == shard.documents else None

    def shards(self, store: int) -> Iterator[tuple[Shard, Mask] | None]:
        """The known shards of a text with the documents that are kept, in order; then None if others follow."""
        for shard in self.stores[store].shards():
            mask = None if shard is None else self.kept(store, shard)
            if shard is None or mask is None:
                yield None
                return
            yield shard, mask

    def done_bytes(self) -> tuple[int, int]:
        """The bytes of text that are tokenized, and about how many there are in all."""
        done = total = 0
        for store in self.stores:
            own = sum(shard.text_bytes for shard in map(_of_file, store.folder.glob("*.json")) if shard)
            is_complete = all(store.count_of(index) is not None for index in range(len(store.segments)))
            done += own
            total += own if is_complete else max(own, store.text_bytes)
        return done, total

    def is_complete(self) -> bool:
        """Whether every shard is there, with the marks of duplicates."""
        return all(each is not None for store in range(len(self.stores)) for each in self.shards(store))


def _of_file(path: Path) -> Shard | None:
    try:
        return Shard(0, 0, **read_json_value(path))
    except (OSError, ValueError, TypeError):
        return None  # damaged, so it is tokenized again


class Deduplicator:
    """Marks the documents that occurred before in the order of `Mixture.work`, whatever process tokenizes them when.

    Memory: 8 bytes for each document. Two different documents have the same hash with a probability of 1 in 2^64: among
    a billion documents, one is expected to be dropped wrongly in 37 such corpora.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._seen: list[npt.NDArray[np.uint64]] = []  # sorted, each at least twice as long as the next
        self._todo = self._shards()
        self._next: tuple[int, Shard] | None = None

    def advance(self) -> bool:
        """Marks the shards that are complete; returns whether all are marked.

        Raises: OSError.
        """
        for item in self._todo:
            if item is None:
                return False
            self._mark(*item)
        return True

    def _shards(self) -> Iterator[tuple[int, Shard] | None]:
        """Every shard in order; None as often as the next one is not there yet."""
        for store, segment in self._mixture.work():
            files, number = self._mixture.stores[store], 0
            while (count := files.count_of(segment)) is None or number < count:
                shard = files.find(segment, number)
                if shard is None:
                    yield None
                    continue
                yield store, shard
                number += 1

    def _mark(self, store: int, shard: Shard) -> None:
        hashes = np.fromfile(self._mixture.stores[store].hashes_path(shard.name), np.uint64)
        new = np.zeros(len(hashes), np.uint8)
        new[np.unique(hashes, return_index=True)[1]] = 1
        for seen in self._seen:
            places = np.minimum(np.searchsorted(seen, hashes), len(seen) - 1)
            new[seen[places] == hashes] = 0
        if self._mixture.kept(store, shard) is None:
            publish_file(self._mixture.mask_path(store, shard), new.tobytes())
        self._remember(np.sort(hashes[new.astype(bool)]))

    def _remember(self, hashes: npt.NDArray[np.uint64]) -> None:
        if not len(hashes):
            return
        self._seen.append(hashes)
        while len(self._seen) > 1 and len(self._seen[-2]) < 2 * len(self._seen[-1]):
            last = self._seen.pop()
            self._seen[-1] = np.sort(np.concatenate([self._seen[-1], last]), kind="stable")
