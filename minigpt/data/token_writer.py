"""Encodes a text to arrays of ids on disk: on all cores, in constant memory, and on from where it was interrupted."""

import contextlib
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from minigpt.bounded_reading import read_json_value
from minigpt.cores import available_cores
from minigpt.data.records import Speakers, conversations
from minigpt.data.split import Part
from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

WRITTEN = "written.json"  # the record of what an interrupted call has written

ByteProgress = Callable[[int, int], None]  # called with the bytes done and the bytes in total

CHUNK_SIZE = 2**20  # characters per call of tiktoken, which is three times slower on paragraphs

_MAX_CHUNK = 16  # times CHUNK_SIZE
_MAX_WORKERS = 32  # each uses about 10 MB
_RECORDED = 64  # chunks after which what is written is recorded
_HASHED_AT_ONCE, _MOST_HASHED = 2**22, 256  # bytes of a block; blocks of a file

# Text may be cut only where GPT-2's pattern ends a pre-token whatever follows: after an end-of-text, and between a
# character that is not white space and one that is. No alternative of the pattern matches white space after another
# character, and none looks back, so both sides split into the same pre-tokens as the joined text. (This does not hold
# between two letters or two spaces, and after a space the pattern's look-ahead would miss what follows.) Python's \S
# is narrower than the pattern's: a character that it matches is not white space in the pattern either.
_LAST_CUT = re.compile(rf"(?s).*(?:\S(?=[ \t\r\n])|{re.escape(END_OF_TEXT)})")


@dataclass
class PartTokens:
    """One part of a corpus: the number of its tokens, and the bytes of their text."""

    tokens: int = 0
    text_bytes: int = 0


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id, in little-endian byte order as on disk."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def tokens_path(folder: Path, part: Part) -> Path:
    """The file of one part's tokens."""
    return folder / f"{part}.bin"


def speakers_path(folder: Path, part: Part) -> Path:
    """The file of the speakers of one part's tokens, a byte each."""
    return folder / f"{part}.speakers.bin"


def array_hash(array: npt.NDArray[Any]) -> str:
    """The SHA-256 of an array, (N,); of one of more than a gigabyte, of 256 evenly spaced blocks of it."""
    digest = hashlib.sha256()
    for block in hashed_blocks(array):
        digest.update(block.data)
    return digest.hexdigest()


def hashed_blocks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The blocks of an array, (N,), that `array_hash` hashes."""
    size = _HASHED_AT_ONCE // array.itemsize
    count = -(-len(array) // size)
    for number in range(min(count, _MOST_HASHED)):
        start = size * (number if count <= _MOST_HASHED else number * (count - 1) // (_MOST_HASHED - 1))
        yield array[start : start + size]


def chunks(parts: Iterable[tuple[Part, str]], size: int | None = None) -> Iterator[tuple[Part, str]]:
    """The same text in chunks of about `size` characters, cut where that changes no token.

    A text with no such place within 16 `size` characters is cut there anyway, to bound memory; its tokens still decode
    to it.
    """
    size = CHUNK_SIZE if size is None else size
    longest = _MAX_CHUNK * size
    buffers: dict[Part, list[str]] = {part: [] for part in get_args(Part)}
    lengths: dict[Part, int] = dict.fromkeys(buffers, 0)
    for part, text in parts:
        buffers[part].append(text)
        lengths[part] += len(text)
        if lengths[part] < size:
            continue
        joined, start = "".join(buffers[part]), 0
        while len(joined) - start >= size:
            match = _LAST_CUT.match(joined, start, start + size) or _LAST_CUT.match(joined, start, start + longest)
            if not match and len(joined) - start < longest:
                break
            end = match.end() if match else start + longest
            yield part, joined[start:end]
            start = end
        buffers[part], lengths[part] = [joined[start:]], len(joined) - start
    for part, texts in buffers.items():
        if any(texts):
            yield part, "".join(texts)


def write_tokens(
    parts: Iterable[tuple[Part, str]],
    tokenizer: Tokenizer,
    folder: Path,
    advance: Callable[[int], None],
    *,
    has_speakers: bool = False,
) -> dict[Part, PartTokens]:
    """Writes the tokens of each part as a raw array and returns the size of each.

    If the folder has what an interrupted call has written of the same text, the rest is appended. With `has_speakers`
    the text is a transcript, and the speaker of each token is written too (see `Speakers`).
    `advance` is called with the bytes of each encoded chunk.
    Raises: OSError if the folder cannot be written; TokenizerError if an imported tokenizer cannot encode the text.
    """
    logs = conversations() if has_speakers else None
    if has_speakers and not tokenizer.is_lossless:
        raise TokenizerError(
            f"a chat log needs a tokenizer whose tokens are the whole text, which {tokenizer.name} is not"
        )
    workers, encode = min(_MAX_WORKERS, available_cores()), _Encoder(tokenizer)
    with _TokenFiles(folder, encode.dtype, has_speakers=has_speakers) as files, ThreadPoolExecutor(workers) as pool:
        for each in files.written.values():
            advance(each.text_bytes)
        trackers = {part: logs.tracker() for part in files.written} if logs else {}
        encoding: deque[tuple[Part, Future[_Encoded]]] = deque()

        def write_oldest() -> None:  # which keeps the order and bounds memory
            part, encoded = encoding.popleft()
            files.write(part, encoded.result())
            advance(encoded.result().text_bytes)

        n_before = files.n_chunks
        for number, (part, text) in enumerate(chunks(parts)):
            speakers = trackers[part].read(text.encode()) if trackers else None
            if number < n_before:
                continue
            encoding.append((part, pool.submit(encode, logs.unmarked(text) if logs else text, speakers)))
            if len(encoding) > 2 * workers:
                write_oldest()
        while encoding:
            write_oldest()
        files.sync()
    return files.written


class _Encoded(NamedTuple):
    """The tokens of a chunk, (N,), the bytes of their text, and the speaker of each, (N,) uint8, if there are any."""

    tokens: npt.NDArray[Any]
    text_bytes: int
    speakers: npt.NDArray[np.uint8] | None


class _Encoder:
    """Encodes chunks of text, in any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.dtype = tokenizer, token_type(tokenizer.vocab_size)
        self._lengths = tokenizer.token_lengths
        self._lengths_in_text = self._lengths.copy()
        for name, id in tokenizer.special.items():
            self._lengths_in_text[id] = len(name.encode())
        self._lengths_in_text[tokenizer.end_of_text] = len(END_OF_TEXT)

    def __call__(self, text: str, speakers: Speakers | None) -> _Encoded:
        tokens = self.tokenizer.encode_array(text, documents=True)
        labels = None if speakers is None else self._label(tokens, speakers)
        if self.tokenizer.is_lossless:
            text_bytes = int(self._lengths[tokens].sum())
        else:
            text_bytes = len(text.encode()) - len(END_OF_TEXT) * text.count(END_OF_TEXT)
        return _Encoded(tokens.astype(self.dtype), text_bytes, labels)

    def _label(self, tokens: npt.NDArray[np.uint32], speakers: Speakers) -> npt.NDArray[np.uint8]:
        """The speaker at the first byte of each token. Shapes: (N,) -> (N,)."""
        lengths, end = self._lengths_in_text[tokens], self.tokenizer.end_of_text
        if self.tokenizer.start_of_text != end:  # the text has no token that begins a document
            lengths[np.flatnonzero(tokens == end) + 1] = 0
        starts = lengths.cumsum() - lengths
        spans = np.searchsorted(np.array(speakers.offsets), starts, side="right") - 1
        return np.array(speakers.numbers, dtype=np.uint8)[spans]


class _TokenFiles(contextlib.ExitStack):
    """The files of both parts, open to append to what an interrupted call has recorded."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, has_speakers: bool) -> None:
        super().__init__()
        self.folder = folder
        self.n_chunks, self.written = _recorded(folder, dtype.itemsize, has_speakers=has_speakers)
        self._tokens, self._speakers = dict[Part, BinaryIO](), dict[Part, BinaryIO]()
        for part, each in self.written.items():
            self._tokens[part] = self._open(tokens_path(folder, part), each.tokens * dtype.itemsize)
            if has_speakers:
                self._speakers[part] = self._open(speakers_path(folder, part), each.tokens)

    def _open(self, path: Path, size: int) -> BinaryIO:
        """The file, open to append after its first `size` bytes."""
        file = self.enter_context(path.open("ab"))
        file.truncate(size)
        return file

    def write(self, part: Part, encoded: _Encoded) -> None:
        """Appends a chunk, and now and then records what is written."""
        self._tokens[part].write(encoded.tokens.data)
        if encoded.speakers is not None:
            self._speakers[part].write(encoded.speakers.data)
        self.written[part].tokens += len(encoded.tokens)
        self.written[part].text_bytes += encoded.text_bytes
        self.n_chunks += 1
        if self.n_chunks % _RECORDED == 0:
            self.sync()
            _record(self.folder, self.n_chunks, self.written)

    def sync(self) -> None:
        """Writes all to disk: after a power cut, a file of the right size must have the right content."""
        for file in (*self._tokens.values(), *self._speakers.values()):
            file.flush()
            os.fsync(file.fileno())


def _record(folder: Path, n_chunks: int, written: dict[Part, PartTokens]) -> None:
    """Notes how many chunks are written, and what the parts have."""
    values = {part: [each.tokens, each.text_bytes] for part, each in written.items()}
    temporary = folder / ".written.json"
    temporary.write_text(json.dumps({"chunks": n_chunks, "parts": values}), encoding="utf-8")
    temporary.replace(folder / WRITTEN)


def _recorded(folder: Path, token_bytes: int, *, has_speakers: bool) -> tuple[int, dict[Part, PartTokens]]:
    """What `_record` noted last; nothing if the files do not have all of it."""
    parts: tuple[Part, ...] = get_args(Part)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = read_json_value(folder / WRITTEN)
        written = {part: PartTokens(*map(int, record["parts"][part])) for part in parts}
        sizes = {tokens_path(folder, part): each.tokens * token_bytes for part, each in written.items()}
        if has_speakers:
            sizes |= {speakers_path(folder, part): each.tokens for part, each in written.items()}
        if all(path.stat().st_size >= size for path, size in sizes.items()):
            return int(record["chunks"]), written
    return 0, {part: PartTokens() for part in parts}
