"""The README's Python runs as it stands, its links lead somewhere, and its commands exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus.txt").write_text("Once upon a time there was a quick brown fox. " * 200)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("steps=200", "steps=2"), {})
    assert "Finished(step=2" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
