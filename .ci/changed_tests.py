"""Prints the tests of what differs from the branch `main`, or on it from the last commit; for `make quick`.

A change in minigpt/ROOM or minigpt/ROOM.py needs tests/ROOM or tests/test_ROOM.py; one in a test needs that test; one
in a page needs the tests of the pages.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/test_layers.py", "tests/test_language.py")


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints; none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed() -> set[str]:
    """The files that differ, by their paths in the repository."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    if base == git("rev-parse", "HEAD"):
        base = ["HEAD~1"]
    return {*git("diff", "--name-only", base[0]), *git("ls-files", "--others", "--exclude-standard")}


def tests_of(path: str) -> list[str]:
    """The tests of a file, whether they exist or not."""
    first, *others = Path(path).parts
    if first == "tests":
        return [path] if Path(path).name.startswith("test_") else []
    if first == "docs" or path.endswith(".md"):
        return ["tests/test_docs.py"]
    if first == "minigpt" and others:
        room = Path(others[0]).stem
        return [f"tests/{room}", f"tests/test_{room}.py"]
    return ["tests/packaging/test_makefile.py"] if path == "Makefile" else []


def main() -> None:
    tests = {*ALWAYS, *(test for path in changed() for test in tests_of(path))}
    print(*sorted(test for test in tests if (ROOT / test).exists()))


if __name__ == "__main__":
    main()
