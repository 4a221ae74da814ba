"""A training run as a user asks for it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.data.find_files import is_pipe
from minigpt.data.source_files import absolute_path, without_compression
from minigpt.errors import ConfigError, quoted
from minigpt.run_options import RunOptions
from minigpt.runs.changes import is_free
from minigpt.tokenizer.display import plain_name

_LONGEST_NAME = 200  # bytes; file systems allow 255, and temporary folders add to it


@dataclass(frozen=True, kw_only=True)
class Request:
    """The texts, the name and the options of a run; the same options mean the same when the run is resumed.

    Raises: ConfigError for a name that is not a plain folder name.
    """

    sources: tuple[str, ...] = ()
    name: str | None = None
    checkpoints: Path = Path("checkpoints")
    options: RunOptions = field(default_factory=RunOptions)
    allow_change: bool = False

    def __post_init__(self) -> None:
        if self.name is None:
            return
        if not isinstance(self.name, str):
            raise ConfigError(f"name ({quoted(self.name)}) must be a string")
        if (length := len(self.name.encode(errors="surrogatepass"))) > _LONGEST_NAME:
            raise ConfigError(f"name ({self.name[:20]!r} …) has {length} bytes; it must have at most {_LONGEST_NAME}")
        if Path(self.name).name != self.name or self.name[:1] in ("", ".") or plain_name(self.name) != self.name:
            raise ConfigError(
                f"name ({self.name!r}) must be a plain folder name in {self.checkpoints}: without slashes, newlines "
                "and control characters, and not beginning with a dot"
            )

    @property
    def run_name(self) -> str:
        """The name given, or else one from the first text: `data/moby_dick.txt.gz` is moby_dick, a pipe is stdin."""
        first, _ = self.options.reading.parted(self.sources[0]) if self.sources else ("", "")
        if self.name or is_pipe(first):
            return self.name or "stdin"
        path = absolute_path(first)
        plain = path.with_name(without_compression(path.name) or path.name) if path.name else path  # the root has none
        stem = plain.name if plain.is_dir() else plain.stem
        return plain_name(stem.strip("*?[].")) or plain_name(path.parent.name) or "run"

    @property
    def absolute_sources(self) -> tuple[str, ...]:
        """The texts by absolute path; `-` for a pipe, which cannot be read again."""
        return tuple(
            "-" if is_pipe(path) else str(absolute_path(path)) + weight
            for path, weight in map(self.options.reading.parted, self.sources)
        )

    @property
    def asked(self) -> dict[str, Any]:
        """The options that a resumed run is compared with, by name."""
        return {name: value for name, value in self.options.to_dict().items() if not is_free(name)}
