"""A titled table with notes, for the terminal or as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_WIDE = 100  # characters: in a narrower terminal, a column of remarks would be very tall


@dataclass(frozen=True)
class ResultTable:
    """A table under a title, with notes below it.

    A column whose name begins with a space is right-aligned, for numbers. The last `remarks` columns become numbered
    notes in a narrow terminal.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    remarks: int = 0

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        is_narrow = options.max_width < _WIDE
        if is_narrow and self.remarks:
            yield self._with_remarks_as_notes()
            return
        padding = (0, 2 if is_narrow else 3, 0, 0)
        table = Table(title=Text(self.title, style="bold"), title_justify="left", box=None, padding=padding)
        for column in self.columns:
            is_number = column.startswith(" ")
            justify = "right" if is_number else "left"
            table.add_column(column.strip(), justify=justify, no_wrap=is_number, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*map(Text, row))
        yield table
        yield from (Text(note, style="dim") for note in self.notes)

    def _with_remarks_as_notes(self) -> "ResultTable":
        n_columns = len(self.columns) - self.remarks
        rows: list[tuple[str, ...]] = []
        notes: list[str] = []
        for row in self.rows:
            cells = zip(self.columns[n_columns:], row[n_columns:], strict=True)
            remarks = [f"{name}: {cell}" for name, cell in cells if cell]
            if remarks:
                notes.append(f"({len(notes) + 1}) {'; '.join(remarks)}")
            rows.append((*row[:n_columns], f"({len(notes)})" if remarks else ""))
        return ResultTable(self.title, (*self.columns[:n_columns], " note"), rows, [*notes, *self.notes])

    def markdown(self) -> str:
        """The table as Markdown, with the notes as a list."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"

        alignment = ["---:" if column.startswith(" ") else "---" for column in self.columns]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"**{self.title}**", "", line(self.columns), line(alignment), *map(line, self.rows), *notes])
