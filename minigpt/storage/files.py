"""Files that are whole or not there: atomic writes, JSON and safetensors; it knows neither models nor checkpoints."""

import contextlib
import errno
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.errors import CheckpointError, FolderTakenError

if sys.platform == "darwin":
    import fcntl

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the operating system says against writing `path` into one sentence."""
    try:
        yield
    except CheckpointError:  # an OSError too, and explained already
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space or write elsewhere" if full else "choose a place that can be written"
        mend = "raise the limit on a file's size (ulimit -f)" if error.errno == errno.EFBIG else mend
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path} could not be written ({reason}); {mend}") from error


def exists(path: Path) -> bool:
    """Whether there is a file or a folder at a path.

    Raises: CheckpointError where that cannot be known: the path is too long, or leads through a closed folder.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut, where the system can."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _flush(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Waits until the disk itself has what was written, in macOS too, where fsync leaves it in the disk's cache."""
    os.fsync(descriptor)
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):  # what some file systems do not know
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


def _beside(path: Path, ending: str) -> Path:
    """A hidden name in the same folder, this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.{ending}")


def sweep(folder: Path) -> None:
    """Removes what writers that were killed left behind in a folder that nobody else writes to now."""
    with explained(folder):
        for path in folder.glob(".*.tmp"):
            path.unlink()


def atomic_write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Puts a file in place all at once; whoever reads `path` sees the old one or the whole new one, never a part.

    `content` is the bytes, or a function that writes them to the open file. Missing folders are made.
    Raises: CheckpointError where the disk is full or the place cannot be written; the old file then stands.
    """
    temporary = _beside(path, "tmp")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                _flush(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path, *, new: bool = False) -> Iterator[Path]:
    """A folder to fill with files, which become `path`'s when the block ends well and vanish when it does not.

    A new folder appears as a whole; in one that stands, each of the files is replaced as a whole, the rest stays.
    Raises: CheckpointError where the disk is full or the place cannot be written; FolderTakenError where the folder is
    not `new` though it was to be, or is no longer.
    """
    stands = not new and path.exists()
    building = _beside(path, "tmp")
    with explained(path):
        shutil.rmtree(building, ignore_errors=True)  # of a process killed long ago that had this one's number
        building.mkdir(parents=True)
        try:
            yield building
            files = sorted(building.iterdir())
            for file in files:
                sync(file)
            if stands:
                for file in files:
                    file.replace(path / file.name)
                sync(path)
            else:
                _rename_to_new(building, path)
                sync(path.parent)
        except FolderTakenError:
            raise
        except CheckpointError as error:  # say it of the place that the caller knows
            raise CheckpointError(str(error).replace(str(building), str(path))) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _rename_to_new(building: Path, path: Path) -> None:
    taken = FolderTakenError(f"{path} could not be made: it is there already; choose another name")
    if path.exists():  # an empty folder would be replaced
        raise taken
    try:
        building.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise taken from error
        raise


def atomic_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented, all at once.

    Raises: CheckpointError, as `atomic_write`.
    """
    atomic_write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises: CheckpointError where it is missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError among them
        raise CheckpointError(f"{path} is not JSON ({error}); copy or download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file all at once, one tensor after the other: views and GPU tensors cost one copy at a time.

    Raises: CheckpointError, as `atomic_write`.
    Source: the format, https://huggingface.co/docs/safetensors: the header's length, a JSON header, the bytes.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps every tensor aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    atomic_write(path, write)


class _Entry(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """A safetensors file held open: names, shapes and metadata at once, a tensor's bytes when they are asked for.

    Tensors are read by default, not mapped: a mapped file that is cut short kills the process. The open file stays what
    it was even while another one takes its name, and so do its mapped tensors.
    Raises: CheckpointError where the file is missing, unreadable, truncated, or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._mapped: mmap.mmap | None = None
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        start = self._file.read(8)
        if not start:
            raise CheckpointError(f"{self.path} is empty; copy or download it again")
        if start == b"version ":  # no safetensors file starts so: it would be a header of 2 exabytes
            raise CheckpointError(f"{self.path} is a Git LFS pointer, not the tensors; run `git lfs pull` beside it")
        try:
            with safe_open(self.path, "numpy"):  # the library checks the header: sizes, offsets, overlaps, dtypes
                pass
        except SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise CheckpointError(
                f"{self.path} is truncated, corrupted or not safetensors ({reason}); copy or download it again"
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        length = int.from_bytes(start, "little")
        header = json.loads(self._file.read(length))
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self._entries = {name: self._entry(name, 8 + length, fields) for name, fields in header.items()}

    def _entry(self, name: str, origin: int, fields: Mapping[str, Any]) -> _Entry:
        if fields["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{name!r} in {self.path} is of dtype {fields['dtype']}, which must be one of {', '.join(_DTYPES)}"
            )
        start, end = fields["data_offsets"]
        return _Entry(_DTYPES[fields["dtype"]], tuple(fields["shape"]), origin + start, origin + end)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, in memory of its own on the CPU.

        Raises: CheckpointError where the file has shrunk or cannot be read; KeyError for an unknown name.
        """
        entry = self._entries[name]
        return self._read(entry, torch.empty(entry.end - entry.start, dtype=torch.uint8))

    def borrow(self, name: str) -> Tensor:
        """One tensor, in memory that the next borrowing overwrites: for those who turn it into something else at once.

        Raises: as `read`.
        """
        entry = self._entries[name]
        if len(self._scratch) < entry.end - entry.start:
            self._scratch = torch.empty(entry.end - entry.start, dtype=torch.uint8)
        return self._read(entry, self._scratch[: entry.end - entry.start])

    def map(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """One tensor where it lies in the file, paged in as it is used; None where it is of another dtype or crooked.

        Writing to it changes this process's copy alone.
        Raises: CheckpointError where the file cannot be mapped; KeyError for an unknown name.
        """
        entry = self._entries[name]
        if entry.dtype != dtype or entry.start % dtype.itemsize or entry.start == entry.end:
            return None
        if self._mapped is None:
            end = max(entry.end for entry in self._entries.values())
            try:
                self._mapped = mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise unreadable(self.path, error) from error
            except ValueError as error:  # the file is shorter
                raise cut_short(self.path) from error
        count = (entry.end - entry.start) // dtype.itemsize
        return torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=entry.start).reshape(entry.shape)

    def _read(self, entry: _Entry, buffer: Tensor) -> Tensor:
        try:
            self._file.seek(entry.start)
            read = self._file.readinto(buffer.numpy().data)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if read != len(buffer):
            raise cut_short(self.path)
        return buffer.view(entry.dtype).reshape(entry.shape)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a safetensors file, and its metadata.

    Raises: CheckpointError, as `TensorFile`.
    """
    with TensorFile(path) as file:
        return {name: file.read(name) for name in file.shapes}, file.metadata


def cut_short(path: Path) -> CheckpointError:
    """What to raise for a file that ended sooner than it said when it was opened."""
    return CheckpointError(f"{path} was cut short while it was read; copy or download it again")


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """What to raise for a file that the system does not let be read."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path} is not there")
    return CheckpointError(f"{path} could not be read ({(error.strerror or str(error)).lower()})")
