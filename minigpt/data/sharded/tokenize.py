"""Tokenizes one segment of a text into shards, in constant memory."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.data.sharded.segments import documents
from minigpt.data.sharded.store import Shard, Store, shard_name
from minigpt.data.shards import CHUNK_SIZE, token_type
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

_HASH_BYTES = 8

Batch = tuple[str, list[bytes], int]  # documents, each with its end-of-text; their hashes; the bytes of their text


def tokenize_segment(
    store: Store, segment: int, tokenizer: Tokenizer, threads: int, may_continue: Callable[[], bool]
) -> None:
    """Writes the shards of a segment that are missing; the caller has locked it.

    `may_continue` is asked after each shard: if it says no, the segment stays incomplete.
    Raises: DataError; OSError if the shards cannot be written.
    """
    described = store.segments[segment]
    store.check_unchanged(described)
    limit = store.shard_bytes if described.kind in ("file", "files") else None
    batches = _batches(documents(store.files, described, store.text_key))
    number = 0
    with ThreadPoolExecutor(threads) as pool:
        for shard in _shards(batches, limit):
            if store.find(segment, number) is None:
                _write(store, segment, number, shard, tokenizer, pool, threads)
            else:
                deque(shard, maxlen=0)  # reads past it
            number += 1
            if not may_continue():
                return
    store.check_unchanged(described)
    store.finish(segment, number)


def _batches(pieces: Iterator[tuple[str, bool]]) -> Iterator[Batch]:
    """Documents in batches of about a megabyte, which the tokenizer is fastest with."""
    texts: list[str] = []
    hashes: list[bytes] = []
    length = size = 0
    for text, _ in pieces:
        encoded = text.encode()
        texts += (text, END_OF_TEXT)
        hashes.append(hashlib.blake2b(encoded, digest_size=_HASH_BYTES).digest())
        length += len(text)
        size += len(encoded)
        if length >= CHUNK_SIZE:
            yield "".join(texts), hashes, size
            texts, hashes, length, size = [], [], 0, 0
    if texts:
        yield "".join(texts), hashes, size


def _shards(batches: Iterator[Batch], limit: int | None) -> Iterator[Iterator[Batch]]:
    """The batches of each shard: of all, or of about `limit` bytes of text each. Each must be read to its end."""
    following = next(batches, None)

    def of_one() -> Iterator[Batch]:
        nonlocal following
        size = 0
        while following is not None and (limit is None or size < limit):
            size += following[2]
            batch, following = following, next(batches, None)
            yield batch

    while following is not None:
        yield of_one()


def _write(
    store: Store,
    segment: int,
    number: int,
    batches: Iterator[Batch],
    tokenizer: Tokenizer,
    pool: ThreadPoolExecutor,
    threads: int,
) -> None:
    name, dtype = shard_name(segment, number), token_type(tokenizer.vocab_size)
    digest, tokens, n_documents, size = hashlib.sha256(), 0, 0, 0
    encoding: deque[Future[npt.NDArray[Any]]] = deque()

    def encode(text: str) -> npt.NDArray[Any]:
        ids = tokenizer.encode_array(text, documents=True).astype(dtype)
        # Of a tokenizer with both, the last end-of-text is followed by the start of a text, which the first text needs.
        return np.roll(ids, 1) if tokenizer.start_of_text != tokenizer.end_of_text else ids

    paths = store.tokens_path(name), store.hashes_path(name)
    partial = [path.with_name(f".{path.name}.partial") for path in paths]
    try:
        with partial[0].open("wb") as token_file, partial[1].open("wb") as hash_file:

            def write() -> None:
                nonlocal tokens
                encoded = encoding.popleft().result()
                token_file.write(encoded.data)
                digest.update(encoded.data)
                tokens += len(encoded)

            for text, hashes, text_size in batches:
                encoding.append(pool.submit(encode, text))
                hash_file.write(b"".join(hashes))
                n_documents += len(hashes)
                size += text_size
                while len(encoding) > threads:  # oldest first, which keeps the order and bounds memory
                    write()
            while encoding:
                write()
            for file in (token_file, hash_file):
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        for path in partial:
            path.unlink(missing_ok=True)
        raise
    for before, after in zip(partial, paths, strict=True):
        before.replace(after)
    store.record(Shard(segment, number, tokens, n_documents, size, digest.hexdigest()))


def document_ends(tokens: npt.NDArray[Any], end_of_text: int) -> npt.NDArray[np.int64]:
    """Where each document of a shard ends, after its end-of-text. Shapes: (N,) -> (documents,)."""
    return np.flatnonzero(tokens == end_of_text) + 1
