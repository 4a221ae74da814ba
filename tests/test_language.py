"""Everything that a person reads in minigpt is plain technical English: the terms of this list stand nowhere."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What must not be written, and what to write instead.
BANNED = {
    r"\b(take|takes|took|taken|taking) up\b": "resume, restore",
    r"\b(put|puts|putting) back\b": "restore",
    r"\b(go|goes|going|went|gone) on with\b": "continue with, resume",
    r"\b(leave|leaves|leaving|left) out\b": "skip, omit, drop",
    r"\bleave (it|them|this|that) out\b": "omit it",
    r"\bno numbers?\b": "NaN or infinite",
    r"\bleft the numbers\b": "diverged",
    r"\bby heart\b": "memorization, overfitting",
    r"\ball the same\b": "(nothing)",
    r"\bis no error\b": "is allowed",
    r"\bof its own\b": "its own, separate",
    r"\bas it is\b": "unchanged",
    r"\bknows? (no|nothing|neither|none|not)\b": "(nothing)",
    r"\breckon(s|ed|ing)?\b": "estimated",
    r"\bcarried on\b": "extrapolated",
    r"\bwhat passes at once\b": "the micro-batch",
    r"\b(comes?|came) to nothing\b": "fails",
    r"\bstands already\b": "already exists",
    r"\bbehind\b": "after",
    r"\bcoarsely\b": "in bfloat16",
    r"\bat rest\b": "in eval mode",
    r"\blest\b": "so that … not",
    r"\boftener\b": "more often",
    r"\banew\b": "again",
    r"\bspelt\b": "spelled",
    r"\bthrice\b": "three times",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(keepers?|examiners?|examining)\b": "Checkpointer, Evaluator, evaluation",
    r"\b(symptoms?|doctor)\b": "issue kind, corpus report",
    r"\btrackers?\b": "loggers",
    r"\bwords? (for|of) every\b": "one token per … bytes",
    r"\bhas no word\b": "has no token",
    r"\bof words and merges\b": "of tokens and merges",
    r"\bGPT-2's (own )?(50,257 )?words\b": "GPT-2's vocabulary, tokens",
    r"\bwho has gone\b": "the process that ended",
    r"\b(is|are|was|were) gone by now\b": "no longer exists",
    r"\bstood\b": "was",
    r"\bfor good\b": "permanently",
    r"\bwhoever\b": "the process that, the caller",
    r"\bin words\b": "as text",
    r"\bhow it looks\b": "how it is displayed",
}
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in BANNED.items()]


def read_files() -> list[Path]:
    """Every file of the project that people read, but this one and other people's texts."""
    rooms = ("pages", "reports", "server", "exporters/html")
    folders = [("minigpt", "*.py"), ("minigpt", "*.[ch]"), *((f"minigpt/{room}/assets", "*") for room in rooms)]
    folders += [("docs", "*.md"), ("docs", "*.py"), ("benchmarks", "*.py"), ("tests", "*.py")]
    found = [path for folder, pattern in folders for path in (ROOT / folder).rglob(pattern) if path.is_file()]
    found += [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml", "setup.py", "checkpoints/README.md")]
    return sorted(path for path in found if path != Path(__file__) and "__pycache__" not in path.parts)


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """The strings, docstrings and comments of a Python file, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned_terms(path: Path, source: str) -> list[str]:
    """Where a file uses a banned term: `file:line: 'term', say …`."""
    texts = texts_of_python(source) if path.suffix == ".py" else enumerate(source.splitlines(), 1)
    return [
        f"{path}:{line}: {match.group()!r}, say: {instead}"
        for line, text in texts
        for pattern, instead in PATTERNS
        for match in pattern.finditer(" ".join(text.split()))
    ]


def test_no_banned_term_is_used() -> None:
    found = [banned_terms(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in read_files()]
    assert [term for terms in found for term in terms] == []
