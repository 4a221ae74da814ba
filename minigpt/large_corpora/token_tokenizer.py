"""The tokenizer of files of tokens: the one next to them, the one that they name, or the one that the user gives."""

from collections.abc import Sequence
from pathlib import Path

from minigpt.edges import not_installed
from minigpt.errors import CheckpointError, TokenizerError
from minigpt.large_corpora.token_files import TokenFile
from minigpt.tokenizer.tokenizer import Tokenizer

_META = "meta.pkl"
_GPT2 = ("gpt2", "openai-community/gpt2")  # on the hub


def tokenizer_of(files: Sequence[TokenFile], given: Tokenizer | str | None) -> tuple[Tokenizer, str | None]:
    """The tokenizer with which to read files of tokens, and the characters that their ids stand for, from nanoGPT's
    meta.pkl next to them, if they are not the tokenizer's ids. `given` is that of the model to train, or a name.

    Raises: TokenizerError if it is unknown or not that of the files; CheckpointError for a damaged meta.pkl.
    """
    metas = {folder: characters_of(folder) for folder in {each.path.parent for each in files}}
    kinds = {(each.tokenizer, metas[each.path.parent]): each.path for each in files}
    (named, characters), path = next(iter(kinds.items()))
    if len(kinds) > 1:
        raise TokenizerError(f"{path} and {list(kinds.values())[1]} have different tokenizers; train on files of one")
    if characters is not None:
        if given is None or given == "chars":
            given = Tokenizer.train([characters], "chars")
        return given if isinstance(given, Tokenizer) else _named(given, path), characters
    recorded, default = _recorded(path.parent, named), "gpt2" if all(each.is_shard for each in files) else None
    if given is None and recorded is None and default is None:
        if named is None:
            raise TokenizerError(
                f"{path} does not name its tokenizer; give --tokenizer gpt2, or put nanoGPT's {_META} or a "
                "tokenizer.json next to it"
            )
        raise TokenizerError(f"the tokenizer of {path}, {named!r}, is not here; put its tokenizer.json next to it")
    if given is None or (recorded is not None and given == recorded.name):
        given = recorded or default
    tokenizer = given if isinstance(given, Tokenizer) else _named(str(given), path)
    if recorded is not None and recorded.fingerprint != tokenizer.fingerprint:
        raise TokenizerError(f"the tokens in {path} are those of {recorded.name}, not of {tokenizer.name}; give others")
    return tokenizer, None


def characters_of(folder: Path) -> str | None:
    """The characters that the ids in a folder's files stand for, from nanoGPT's meta.pkl; None without one.

    Raises: CheckpointError for a damaged meta.pkl.
    """
    meta = folder / _META
    if not meta.is_file():
        return None
    if absent := not_installed("weight_reader"):
        raise CheckpointError(f"{meta} cannot be read; {absent}")
    from minigpt.importers.nanogpt import read_characters

    return "".join(read_characters(meta))


def _recorded(folder: Path, named: str | None) -> Tokenizer | None:
    """The tokenizer of the files in a folder with this name for it; None if it is not here."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    if named is None or named in _GPT2:
        return Tokenizer.named("gpt2") if named else None
    path = Path(named)
    path = path.parent if path.is_file() else path
    return Tokenizer.load(path) if path.is_dir() else None


def _named(name: str, path: Path) -> Tokenizer:
    if name in ("gpt2", "bytes"):
        return Tokenizer.named(name)
    raise TokenizerError(
        f"tokenizer ({name}) is trained on a text, and {path} has tokens already; omit it or give gpt2"
    )
