"""The tokenizer of files of tokens: what is next to them, what they name, or what the user gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from minigpt.errors import TokenizerError
from minigpt.importers.nanogpt import META, read_characters
from minigpt.tokenizer.tokenizer import Tokenizer

_GPT2 = ("gpt2", "openai-community/gpt2")  # on the hub


class File(Protocol):
    """What is read here of a `minigpt.data.token_files.TokenFile`."""

    @property
    def path(self) -> Path: ...
    @property
    def tokenizer(self) -> str | None: ...
    @property
    def has_header(self) -> bool: ...


class OfFiles(NamedTuple):
    """The tokenizer of files of tokens, and the characters that their ids stand for if they are not its ids."""

    tokenizer: Tokenizer
    characters: str | None


def tokenizer_of(files: Sequence[File], given: Tokenizer | str | None) -> OfFiles:
    """The tokenizer with which to read files of tokens; `given` is that of the model to train, or a name.

    Raises: TokenizerError if it is unknown or not that of the files; CheckpointError for a damaged meta.pkl.
    """
    found: dict[tuple[str | None, str | None], tuple[Tokenizer | None, str | None, Path]] = {}
    for folder, suffix, name in dict.fromkeys((each.path.parent, each.path.suffix, each.tokenizer) for each in files):
        tokenizer, characters = _recorded(folder, suffix, name)
        example = next(each.path for each in files if (each.path.parent, each.tokenizer) == (folder, name))
        found.setdefault((tokenizer.fingerprint if tokenizer else None, characters), (tokenizer, characters, example))
    (recorded, characters, first), *others = found.values()
    if others:
        raise TokenizerError(f"{first} and {others[0][2]} have different tokenizers; train on files of one")
    if given is None and recorded is None and all(each.has_header for each in files):
        given = "gpt2"  # the only one of the files of llm.c and modded-nanogpt
    if given is None or (recorded is not None and given == recorded.name):
        if recorded is None:
            raise TokenizerError(_unknown(files[0]))
        given = recorded
    tokenizer = given if isinstance(given, Tokenizer) else _named(given, first)
    if characters is None and recorded is not None and recorded.fingerprint != tokenizer.fingerprint:
        raise TokenizerError(
            f"the tokens in {first} are those of {recorded.name}, not of {tokenizer.name}; give others or a text"
        )
    return OfFiles(tokenizer, characters)


def _recorded(folder: Path, suffix: str, name: str | None) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer of the files in a folder with this name for it, and their characters; None if it is not here."""
    if suffix == ".bin" and (folder / META).is_file():
        characters = "".join(read_characters(folder / META))
        return Tokenizer.train([characters], "chars"), characters
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder), None
    if name is None:
        return None, None
    if name in _GPT2:
        return Tokenizer.named("gpt2"), None
    path = Path(name)
    path = path.parent if path.is_file() else path
    return (Tokenizer.load(path) if path.is_dir() else None), None


def _named(name: str, file: Path) -> Tokenizer:
    if name in ("gpt2", "bytes"):
        return Tokenizer.named(name)
    raise TokenizerError(
        f"tokenizer ({name}) is trained on a text, and {file} has tokens already; omit it or give gpt2"
    )


def _unknown(file: File) -> str:
    if file.tokenizer is None:
        return (
            f"{file.path} does not name its tokenizer; give --tokenizer gpt2, or put nanoGPT's {META} or a "
            "tokenizer.json next to it"
        )
    return f"the tokenizer of {file.path}, {file.tokenizer!r}, is not here; put its tokenizer.json next to that file"
