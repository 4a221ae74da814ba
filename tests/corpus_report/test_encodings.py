"""The encoding that the report names is the one that reading names."""

from pathlib import Path

import pytest

from minigpt.corpus_report.issues import find_issues
from minigpt.data.sources import scan
from minigpt.errors import DataError

GERMAN = "Die Frau für große Mühe — „gut“, sagte sie. Über Äpfel und Öl.\n" * 30
PLAIN = "Die Frau für große Mühe, sagte sie. Über Äpfel und Öl.\n" * 30


@pytest.mark.parametrize(("encoding", "text"), [("latin-1", PLAIN), ("cp1252", GERMAN)])
def test_the_corpus_report_names_the_same_encoding(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(DataError) as error:
        scan(path)
    issues, _ = find_issues(scan(path, encoding_errors="replace"), lambda _: None)
    assert str(error.value).split("; ")[1] in issues[0].advice
