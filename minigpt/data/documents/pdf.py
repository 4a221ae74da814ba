"""The text of a PDF: that of its pages, in order, read in a child process that may take only so much."""

import io
import logging
import os
import signal
import subprocess
import sys
import warnings

from minigpt.data.documents.limits import MAX_PAGES, DocumentError

_SECONDS, _SECONDS_PER_MB = 5, 60  # of computing; pypdf takes about 10 for 1 MB of text
_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 16  # bytes
_OUT_OF_TIME = getattr(signal, "SIGXCPU", 99)  # the signal that ends the child; Windows has none
_WAITED = 4  # times the seconds of computing, by the clock
_READ, _REFUSED, _DAMAGED, _NO_MEMORY = "read", "refused", "damaged", "memory"  # the child's first line
_NO_TEXT = "has no text; if its pages are pictures, recognize their text first, for example with ocrmypdf"


def pdf_text(content: bytes) -> str:
    """The text of the pages, one after another.

    Raises: DocumentError for a document that is encrypted, has no text or too many pages, or takes too much; ValueError
    with pypdf's reason for one that is damaged.
    """
    seconds = _SECONDS + _SECONDS_PER_MB * len(content) // (1 << 20)
    memory = _MEMORY + _MEMORY_PER_BYTE * len(content)
    try:
        done = subprocess.run(
            # With -P, so that no module in the working directory is imported instead of Python's.
            [sys.executable, "-P", "-m", __name__, str(seconds), str(memory)],
            input=content,
            capture_output=True,
            check=False,
            timeout=_WAITED * seconds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        slow = done.returncode == -_OUT_OF_TIME
    except subprocess.TimeoutExpired:
        slow = True
    if slow:
        raise DocumentError(f"takes more than {seconds:,} s to read; save it again, or give its text as a .txt")
    status, _, text = done.stdout.decode("utf-8", "replace").partition("\n")
    if status == _READ:
        return text
    if status == _REFUSED:
        raise DocumentError(text)
    if status == _NO_MEMORY:
        raise DocumentError(f"takes more than {memory >> 20:,} MB of memory; save it again, or give its text as a .txt")
    if status != _DAMAGED:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        text = lines[-1] if lines else f"its reader ended with status {done.returncode}"
    raise ValueError(text)


def _extract(content: bytes) -> str:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(content))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("is encrypted; save it without a password")
    except pypdf.errors.DependencyError as error:
        raise DocumentError("is encrypted; save it without a password") from error
    if len(reader.pages) > MAX_PAGES:
        raise DocumentError(f"has {len(reader.pages):,} pages; the maximum is {MAX_PAGES:,}")
    text = "\n".join(page.extract_text() for page in reader.pages)
    if not text.strip():
        raise DocumentError(_NO_TEXT)
    return text


def _main(seconds: int, memory: int) -> None:
    """Reads a PDF from standard input; writes a line with the status, then the text or why there is none."""
    import pypdf  # noqa: F401  (before memory is limited)

    if sys.platform != "win32":
        import resource

        limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, seconds)]
        limits += [(resource.RLIMIT_AS, memory)] if sys.platform == "linux" else []  # macOS refuses it
        for kind, limit in limits:
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    logging.disable()  # pypdf's warnings about damage that it repairs
    warnings.simplefilter("ignore")
    try:
        status, text = _READ, _extract(sys.stdin.buffer.read())
    except DocumentError as error:
        status, text = _REFUSED, str(error)
    except MemoryError:
        status, text = _NO_MEMORY, ""
    except Exception as error:  # pypdf may raise anything for a damaged document
        status, text = _DAMAGED, " ".join(str(error).split())[:100] or type(error).__name__
    sys.stdout.buffer.write(f"{status}\n{text}".encode("utf-8", "replace"))


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
