"""Token shards: encodes text to arrays of ids on disk, in parallel and in constant memory."""

import contextlib
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from minigpt.cores import available_cores
from minigpt.data.split import Part
from minigpt.data.transcript import Speakers, SpeakerTracker, unmarked
from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT

ByteProgress = Callable[[int, int], None]  # called with the bytes done and the bytes in total

CHUNK_SIZE = 2**20  # characters per call of tiktoken, which is three times slower on paragraphs

_MAX_CHUNK = 16  # times CHUNK_SIZE
_MAX_WORKERS = 32  # each uses about 10 MB

# Text may be cut only where GPT-2's pattern ends a pre-token whatever follows: after an end-of-text, and between a
# character that is not white space and one that is. No alternative of the pattern matches white space after another
# character, and none looks back, so both sides split into the same pre-tokens as the joined text. (This does not hold
# between two letters or two spaces, and after a space the pattern's look-ahead would miss what follows.) Python's \S
# is narrower than the pattern's: a character that it matches is not white space in the pattern either.
_LAST_CUT = re.compile(rf"(?s).*(?:\S(?=[ \t\r\n])|{re.escape(END_OF_TEXT)})")


@dataclass
class Shard:
    """One part of a corpus: the number of its tokens, the bytes of their text, and the hashes of the files of tokens
    and of speakers; the latter is empty for a text without speakers."""

    tokens: int = 0
    text_bytes: int = 0
    token_hash: str = ""
    speaker_hash: str = ""


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id, in little-endian byte order as on disk."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_path(folder: Path, part: Part) -> Path:
    """The file of one part's tokens."""
    return folder / f"{part}.bin"


def speakers_path(folder: Path, part: Part) -> Path:
    """The file of the speakers of one part's tokens, a byte each."""
    return folder / f"{part}.speakers.bin"


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


def write_shards(
    parts: Iterable[tuple[Part, str]],
    tokenizer: Tokenizer,
    folder: Path,
    advance: Callable[[int], None],
    *,
    has_speakers: bool = False,
) -> dict[Part, Shard]:
    """Writes the tokens of each part as a raw array and returns the size of each.

    With `has_speakers` the text is a transcript, and the speaker of each token is written too (see `Speakers`).
    `advance` is called with the bytes of each encoded chunk.
    Raises: OSError if the folder cannot be written; TokenizerError if an imported tokenizer cannot encode the text.
    """
    workers = min(_MAX_WORKERS, available_cores())
    if has_speakers and not tokenizer.is_lossless:
        raise TokenizerError(
            f"a chat log needs a tokenizer whose tokens are the whole text, which {tokenizer.name} is not"
        )
    lengths, dtype = tokenizer.token_lengths, token_type(tokenizer.vocab_size)
    lengths_in_text = lengths.copy()
    for name, id in tokenizer.special.items():
        lengths_in_text[id] = len(name.encode())
    lengths_in_text[tokenizer.end_of_text] = len(END_OF_TEXT)
    shards: dict[Part, Shard] = {part: Shard() for part in get_args(Part)}
    hashes = {part: hashlib.sha256() for part in shards}
    speaker_hashes = {part: hashlib.sha256() for part in shards}
    trackers = {part: SpeakerTracker() for part in shards}

    def sizes_in_text(tokens: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
        sizes = lengths_in_text[tokens]
        if tokenizer.start_of_text != tokenizer.end_of_text:  # the text has no token that begins a document
            sizes[np.flatnonzero(tokens == tokenizer.end_of_text) + 1] = 0
        return sizes

    def encode(text: str, speakers: Speakers | None) -> _Encoded:
        tokens = tokenizer.encode_array(text, documents=True)
        labels = None if speakers is None else _label(sizes_in_text(tokens), speakers)
        if tokenizer.is_lossless:
            text_bytes = int(lengths[tokens].sum())
        else:
            text_bytes = len(text.encode()) - len(END_OF_TEXT) * text.count(END_OF_TEXT)
        return _Encoded(tokens.astype(dtype), text_bytes, labels)

    def write(part: Part, encoding: Future[_Encoded]) -> None:
        encoded = encoding.result()
        files[part].write(encoded.tokens.data)
        hashes[part].update(encoded.tokens.data)
        if encoded.speakers is not None:
            speaker_files[part].write(encoded.speakers.data)
            speaker_hashes[part].update(encoded.speakers.data)
        shards[part].tokens += len(encoded.tokens)
        shards[part].text_bytes += encoded.text_bytes
        advance(encoded.text_bytes)

    with contextlib.ExitStack() as stack:
        files = {part: stack.enter_context(shard_path(folder, part).open("wb")) for part in shards}
        labelled = shards if has_speakers else {}
        speaker_files = {part: stack.enter_context(speakers_path(folder, part).open("wb")) for part in labelled}
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        encoding: deque[tuple[Part, Future[_Encoded]]] = deque()
        for part, text in chunks(parts):
            speakers = trackers[part].read(text.encode()) if has_speakers else None
            encoding.append((part, pool.submit(encode, unmarked(text) if has_speakers else text, speakers)))
            if len(encoding) > 2 * workers:  # oldest first, which keeps the order and bounds memory
                write(*encoding.popleft())
        while encoding:
            write(*encoding.popleft())
        for file in (*files.values(), *speaker_files.values()):
            file.flush()  # after a power cut, a shard of the right size must have the right content
            os.fsync(file.fileno())
    for part, shard in shards.items():
        shard.token_hash = hashes[part].hexdigest()
        shard.speaker_hash = speaker_hashes[part].hexdigest() if has_speakers else ""
    return shards


class _Encoded(NamedTuple):
    """The tokens of a chunk, (N,), the bytes of their text, and the speaker of each, (N,) uint8, if there are any."""

    tokens: npt.NDArray[Any]
    text_bytes: int
    speakers: npt.NDArray[np.uint8] | None


def _label(lengths: npt.NDArray[np.int64], speakers: Speakers) -> npt.NDArray[np.uint8]:
    """The speaker at the first byte of each token; `lengths` are the bytes of the tokens. Shapes: (N,) -> (N,)."""
    starts = lengths.cumsum() - lengths
    spans = np.searchsorted(np.array(speakers.offsets), starts, side="right") - 1
    return np.array(speakers.numbers, dtype=np.uint8)[spans]
