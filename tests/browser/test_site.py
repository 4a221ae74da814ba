"""The site of `make docs`, built where mkdocs is installed, here or in the environment that `make docs` makes."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT

import minigpt

PAGES = ("index.html", "how-to/install.html", "reference/api.html", "reference/concepts.html",
         "source/minigpt/edges.py.html")  # fmt: skip

BROKEN = {
    "docs/how-to/train.md": ["no-page.md", "resume.md#no-heading", "../../minigpt/no_file.py"],
    "README.md": ["docs/no-folder/"],
}


def build(sources: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """Builds the site of these sources strictly."""
    python = sys.executable if importlib.util.find_spec("mkdocs") else str(ROOT / ".venv-docs" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("mkdocs is not installed: make docs")
    command = [python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "PYTHONPATH": str(sources), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site of this checkout."""
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_has_every_page_and_every_name_and_no_script(site: Path) -> None:
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h3 id="minigpt\.(\w+)"', api))
    assert described == set(minigpt.__all__)
    assert "<code>batch_size: int = 32</code>" in api
    assert "&gt;&gt;&gt;" in api
    assert "<blockquote>" not in api  # an example outside a code block
    assert not list(site.rglob("*.py"))
    for page in (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")):
        assert page == Path("README.md") or (site / page.with_suffix(".html")).exists(), page
    settings = (site / "reference" / "training-settings.html").read_text(encoding="utf-8")
    assert "<code>&lt;|endoftext|&gt;</code>" in settings  # without the backslash that it has in the table


def test_no_page_shows_its_markdown(site: Path) -> None:
    """Python-Markdown needs four spaces where GitHub needs two, and an empty line before and after a block."""
    for path in site.rglob("*.html"):
        article = re.search(r"<article.*</article>", path.read_text(encoding="utf-8"), re.DOTALL)
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>|<[^>]+>", "", article[0] if article else "", flags=re.DOTALL)
        assert not re.search(r"^ *[-*] \w|\|---|```|\]\(", text, re.MULTILINE), path


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "docs", sources / "docs")
    for path in ROOT.iterdir():
        if path.suffix in (".md", ".yml"):
            shutil.copy(path, sources)
        elif path.name != "docs" and not path.name.startswith("."):
            (sources / path.name).symlink_to(path)
    for page, links in BROKEN.items():
        with (sources / page).open("a", encoding="utf-8") as file:
            file.write("\n" + " ".join(f"[link]({link})" for link in links) + "\n")
    built = build(sources, tmp_path / "site")
    assert built.returncode != 0
    assert {link for links in BROKEN.values() for link in links if f"a link '{link}'" in built.stderr} == {
        "no-page.md", "resume.md#no-heading", "../../minigpt/no_file.py"
    }  # fmt: skip
    assert "an unrecognized relative link 'docs/no-folder/'" in built.stderr


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window_and_load_nothing_from_a_network(browser: Any, site: Path, width: int) -> None:
    for page in PAGES:
        browser.open(site / page, width=width)
        assert browser.ask("document.documentElement.scrollWidth") <= width, page
        assert browser.errors == []
        assert [request for request in browser.requests if not request.startswith(("file:", "data:"))] == []


def test_the_search_works_in_a_file(browser: Any, site: Path) -> None:
    browser.open(site / "how-to" / "install.html")
    browser.ask("document.querySelector('.md-search__input').focus()")
    browser.type("perplexity")
    found = browser.ask("""new Promise(done => {
      const look = () => {
        const links = document.querySelectorAll('.md-search-result__link');
        links.length ? done([...links].map(link => link.pathname)) : setTimeout(look, 50);
      };
      look();
    })""")
    assert any(path.endswith("/how-to/evaluate.html") for path in found)
    assert not any("/source/" in path for path in found)
