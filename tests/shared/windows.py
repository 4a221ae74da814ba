"""What Windows does otherwise, for tests on another system."""

from pathlib import Path


def write_text(
    path: Path, text: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
) -> int:
    """`Path.write_text`, which ends lines with two bytes there."""
    return path.write_bytes(text.replace("\n", newline or "\r\n").encode(encoding or "utf-8"))
