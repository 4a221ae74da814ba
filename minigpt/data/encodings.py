"""Recognizes the encoding of a text that is not UTF-8, and reads such a text as UTF-8."""

import codecs
import io
import unicodedata

from minigpt.errors import DataError

_BLOCK = 2**16  # bytes that are decoded at one time
_SAMPLE = 2**16  # bytes that decide which encoding is likely
_BY_MARK = ("utf-16", "utf-32")
_LEAST_ZEROS = 3
_ZEROS = 0.3  # of every second byte: Latin letters in UTF-16 have a zero byte each
_UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")  # in Windows-1252
_MOST_OTHER = 0.3  # of the characters that are not ASCII in a text of Western Europe, of all letters
_MARKS = "«»‘’‚“”„–—…•€£§°·¿¡\xa0"
_LEAST_PLAUSIBLE = 0.9  # of the characters that are not ASCII: those that such a text has

ANOTHER_ENCODING = "name another --encoding, or use --encoding-errors replace"
MARK_BYTES = "minigpt.mark_bytes"
"""The error handler that decodes an invalid byte as the lone surrogate U+DC00 + byte."""


def _mark_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error(MARK_BYTES, _mark_bytes)


def is_utf8(encoding: str) -> bool:
    """Whether this is a name of UTF-8."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_same_in_utf8(text: bytes, encoding: str) -> bool:
    """Whether a text in this encoding is the same as in UTF-8: plain ASCII in an encoding such as Latin-1."""
    return text.isascii() and "a\n".encode(encoding) == b"a\n"


def likely_encoding(sample: bytes) -> str | None:
    """The encoding that the beginning of a text, which is not UTF-8, probably has; None if it is hard to say.

    UTF-16 and UTF-32 are recognized by their byte order mark, and UTF-16 also by its zero bytes; Windows-1252 and
    Latin-1 by the characters that the bytes would be: letters and typographic marks of Western Europe.
    """
    sample = sample[:_SAMPLE]
    if sample.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = sample[::2], sample[1::2]
    if b"\0" in sample:
        first, second = even.count(0), odd.count(0)
        if second > max(_LEAST_ZEROS, _ZEROS * len(odd)) and not first:
            return "utf-16-le"
        return "utf-16-be" if first > max(_LEAST_ZEROS, _ZEROS * len(even)) and not second else None
    return _likely_western(sample)


def _likely_western(sample: bytes) -> str | None:
    if _UNDEFINED & set(sample):
        return None
    text = sample.decode("cp1252")
    others = [character for character in text if not character.isascii()]
    letters = sum(map(str.isalpha, text))
    if not others or len(others) > max(1, _MOST_OTHER * letters):
        return None
    decoded = sample.decode(errors="replace")
    if len(decoded) - decoded.count("\ufffd") > sum(map(str.isascii, decoded)):  # UTF-8 with a few damaged bytes
        return None
    plausible = sum(each in _MARKS or unicodedata.category(each) in ("Ll", "Lu") for each in others)
    if plausible < _LEAST_PLAUSIBLE * len(others):
        return None
    return "windows-1252" if any(0x80 <= byte < 0xA0 for byte in sample) else "latin-1"


def evident_encoding(head: bytes, encoding: str) -> str | None:
    """The UTF-16 or UTF-32 that the beginning of a text shows, if it is not the encoding that was given."""
    found, given = likely_encoding(head), codecs.lookup(encoding).name
    if found not in _BY_MARK:
        is_other = found is not None and found.startswith("utf-16") and not given.startswith(("utf-16", "utf-32"))
        return found if is_other else None
    start = head[:4].decode(encoding, "replace")  # of UTF-32, a mark and U+0000 in UTF-16
    return None if given == found or (start.startswith("\ufeff") and "\0" not in start) else found


def encoding_advice(encoding: str | None) -> str:
    """What to do with a text that is not UTF-8, if it probably has this encoding."""
    if encoding is None:
        return "name its encoding with --encoding, or use --encoding-errors replace"
    return f"it is probably {encoding_name(encoding)}: read it with --encoding {encoding}"


def encoding_name(encoding: str) -> str:
    """The name of one of the `likely_encoding`s, or of UTF-8, as a sentence has it."""
    return {"latin-1": "Latin-1", "windows-1252": "Windows-1252"}.get(encoding, encoding.upper())


class Recoded(io.RawIOBase):
    """A text in another encoding, which is read as UTF-8."""

    def __init__(self, stream: io.BufferedIOBase, name: str, encoding: str, errors: str) -> None:
        """`name` is that of the file, for errors; `errors` is `strict`, `replace` or MARK_BYTES.

        With MARK_BYTES, the surrogates are encoded with `surrogatepass`.
        """
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._surrogates = "surrogatepass" if errors == MARK_BYTES else "replace"
        self._pending, self._offset = b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        """Raises: DataError, with the offset, for bytes that are nothing in this encoding."""
        while not self._pending:
            block = self._stream.read(_BLOCK)
            undecoded = len(self._decoder.getstate()[0])
            try:
                self._pending = self._decoder.decode(block, final=not block).encode(errors=self._surrogates)
            except UnicodeError as error:
                raise self._undecodable(error, undecoded) from error
            self._offset += len(block)
            if not block:
                break
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size

    def _undecodable(self, error: UnicodeError, undecoded: int) -> DataError:
        where = ""
        if isinstance(error, UnicodeDecodeError):
            where = f": byte {self._offset - undecoded + error.start:,} is 0x{error.object[error.start]:02x}"
        return DataError(f"{self._name} is not {self._encoding}{where}; {ANOTHER_ENCODING}")
