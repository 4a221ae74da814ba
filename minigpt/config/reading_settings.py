"""How files are read as documents, as far as no edge adds to it."""

import codecs
import difflib
from dataclasses import dataclass
from encodings.aliases import aliases
from functools import partial
from typing import Literal

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

# Python's text encodings that no file has: parts of host names, source code, and the settings of one machine.
_NOT_OF_FILES = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "mbcs", "oem"}
_OWN_NAMES = {name: name for name in ("utf_8", "latin_1", *set(aliases.values()))}

_text = partial(setting, group="Text")


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(Settings):
    """The settings of reading that every text has."""

    text_key: str = _text("text", "field of a .jsonl line that holds the text or the conversation")
    encoding: str = _text("utf-8", "encoding of files that are not UTF-8, such as latin-1, windows-1252 or utf-16")
    encoding_errors: Literal["strict", "replace"] = _text(
        "strict", "at bytes that are not valid in the encoding: strict (stop) or replace (insert U+FFFD)"
    )
    validation_fraction: float | None = _text(
        None, "fraction of the text held out for validation [default: 10 %, at most 2 MB]", min=0, max=0.5, common=True
    )
    special_tokens: bool = _text(
        False, "read the names of special tokens, such as <speaker1>, as these tokens, not as text"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text_key:
            raise ConfigError(f"text_key ({self.text_key!r}) must name a field")
        _check_encoding(self.encoding)

    def parted(self, source: str) -> tuple[str, str]:
        """The path of a source, and what a group of settings lets follow it."""
        return source, ""


def _check_encoding(name: str) -> None:
    """Raises ConfigError for a name that is not an encoding of text files, with a suggestion."""
    try:
        known = codecs.lookup(name)
    except (LookupError, ValueError):  # the latter for a name with a zero byte
        known = None
    if known is not None and known._is_text_encoding and known.name not in _NOT_OF_FILES:
        return
    names = {each.replace("_", "-"): target.replace("_", "-") for each, target in {**aliases, **_OWN_NAMES}.items()}
    names = {each: target for each, target in names.items() if target not in _NOT_OF_FILES}
    close = difflib.get_close_matches(name.lower().replace("_", "-"), sorted(names), n=1)
    hint = f"did you mean {names[close[0]]}?" if close else "such as utf-8, latin-1, windows-1252 or utf-16"
    raise ConfigError(f"encoding ({name!r}) is not the name of a text encoding; {hint}")
