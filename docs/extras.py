"""Writes the table of extras in docs/how-to/install.md from pyproject.toml: the comment above an extra is its purpose.

Extras for the development of minigpt, whose purpose names a target of make, are not in it.

python docs/extras.py
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "install.md"
START, END = "<!-- extras: made by docs/extras.py -->\n", "<!-- end of extras -->\n"


def purposes(project: str) -> dict[str, str]:
    """What each extra is for: the comment on the line above it."""
    section = project.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return {extra: purpose for purpose, extra in re.findall(r"^# (.+)\n(\w+) = \[", section, re.MULTILINE)}


def table() -> str:
    """The table in Markdown. Raises: KeyError for an extra without a comment above it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    purpose = purposes(text)
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    rows = [f"| `{extra}` | {purpose[extra]} |" for extra in extras if "`make " not in purpose[extra]]
    return "\n".join(["| extra | what it does |", "|---|---|", *rows]) + "\n"


def page_with_table() -> str:
    """The page with the table as it must be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return before + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
