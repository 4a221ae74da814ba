"""What is skipped in the folders of a text, and the sentences on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from minigpt.errors import DataError, MinigptError, MissingPackageError

_SHOWN = 3  # names in a note


class Unread(NamedTuple):
    """A "document", a "file" or a "folder" that cannot be read, its name, and why."""

    what: str
    name: str
    error: MinigptError


@dataclass(frozen=True)
class Skipped:
    """The names of files that are not text and of folders with models; what in a folder cannot be read."""

    files: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    def add_model(self, folder: Path) -> None:
        """Adds a folder with a model, if it is not there yet."""
        if str(folder) not in self.models:
            self.models.append(str(folder))

    def notes(self) -> list[str]:
        """A sentence on the documents that need packages, one on the documents, one on the other files and one on the
        folders that cannot be read, and one on the models."""
        notes = []
        kinds = [("document", MissingPackageError), *((what, DataError) for what in ("document", "file", "folder"))]
        for what, kind in kinds:
            of_kind = [each for each in self.unread if each.what == what and isinstance(each.error, kind)]
            if of_kind:
                more = [each.name for each in of_kind[1:]]
                others = f" ({len(more):,} other {what}{'s' * (len(more) > 1)} too: {shown(more)})" if more else ""
                notes.append(f"skipped a {what}{others}: {of_kind[0].error}")
        if self.models:
            several = len(self.models) > 1
            folders = f"{len(self.models):,} folders with models" if several else "a folder with a model"
            notes.append(f"skipped {folders}: {shown(self.models)}")
        return notes


def shown(names: Sequence[str]) -> str:
    """The first of these names, and an ellipsis if there are more."""
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
