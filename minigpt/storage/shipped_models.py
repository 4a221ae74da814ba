"""The models that come with installed packages, by name (the seam `models`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.edges import provided


@dataclass(frozen=True, kw_only=True)
class ShippedModel:
    """A model folder in an installed package; records and commands call it by the folder's name.

    The first one is used where a folder of checkpoints holds no model. `sentence` says what it is.
    """

    directory: Path
    sentence: str

    @property
    def name(self) -> str:
        return self.directory.name


def shipped_models() -> Iterator[ShippedModel]:
    """The models that come with the installed edges."""
    yield from provided("models")


def find_shipped(name: str | Path | None) -> ShippedModel | None:
    """The model of this name; for None the one that is used where there is no other."""
    return next((model for model in shipped_models() if name is None or model.name == str(name)), None)


def reference_to(directory: str | Path) -> str:
    """What a record calls a model: its name if it comes with a package, else its path, here."""
    return next((model.name for model in shipped_models() if model.directory == Path(directory)), str(directory))


def path_of(reference: str) -> Path:
    """The folder of the model that a record names in this way."""
    shipped = find_shipped(reference)
    return shipped.directory if shipped else Path(reference)
