"""Makes the pictures of pages in docs/images: trains a model, and photographs its pages in Chromium.

The pages are report.png, inspection.png, playground.png, the page of `minigpt serve`, and exported_page.png, that of
`minigpt export --to html`.

    python docs/page_pictures.py                # trains on demo/sherlock_holmes.txt for two minutes
    python docs/page_pictures.py --text book.txt --minutes 5
    python docs/page_pictures.py --run checkpoints/sherlock_holmes   # a run that exists already

Needs Chromium on the PATH. The pages are written to a temporary folder.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TEXT = "Mr. Sherlock Holmes was sitting in his chair, and Mr. Holmes"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, REPORT_HEIGHT, INSPECTION_HEIGHT, PLAYGROUND_HEIGHT = 1120, 1460, 1640, 1240  # pixels
EXPORTED_WIDTH, EXPORTED_HEIGHT = 860, 1560
PROMPT = "“It is a most singular case,” said Holmes."
# What the picture of the playground shows: a text with seed 7, a second branch, and what else was likely in it.
STEPS = (
    "document.getElementById('prompt').value = PROMPT; document.getElementById('setting-seed').value = '7';"
    " document.getElementById('continue').click()",
    "document.querySelectorAll('.piece')[12].click(); document.querySelectorAll('.choices button')[1].click()",
    "document.querySelectorAll('.piece')[30].click(); document.activeElement.blur()",
)


def minigpt(*arguments: str) -> None:
    """Runs a command of this checkout."""
    subprocess.run([sys.executable, str(ROOT / "cli.py"), *arguments], check=True)


def photograph(page: Path, picture: Path, height: int) -> None:
    """Opens a page in a window of this height, in light mode, and saves what it shows."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]
    size = [f"--window-size={WIDTH},{height}", "--force-device-scale-factor=1", f"--screenshot={picture}"]
    subprocess.run([browser, *options, *size, page.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL)


def browser_class() -> Any:
    """The browser of the tests, which can be driven."""
    spec = importlib.util.spec_from_file_location("browser", ROOT / "tests" / "browser" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Browser


def photograph_playground(run: Path, picture: Path) -> None:
    """Serves the run, writes a text with a branch on the page, and saves what it shows."""
    program = next(filter(None, map(shutil.which, BROWSERS)))
    command = [sys.executable, str(ROOT / "cli.py"), "serve", str(run), "--port", "0"]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
    ):
        assert server.stderr is not None
        address = server.stderr.readline().split(" ")[0]
        browser = browser_class()(program, Path(profile))
        browser.visit(address, width=WIDTH, height=PLAYGROUND_HEIGHT)
        wait(browser, "document.body.dataset.ready")
        for step in STEPS:
            browser.ask(step.replace("PROMPT", repr(PROMPT)))
            wait(browser, "document.getElementById('stop').hidden")
        browser.screenshot(picture)
        browser.close()
        server.terminate()


def photograph_exported(run: Path, page: Path, picture: Path) -> None:
    """Exports the run as a page, writes a text on it, and saves what it shows with one token's alternatives."""
    about = ["--title", "Sherlock Holmes", "--note", "Trained on twelve stories for two minutes.", "--prompt", PROMPT]
    minigpt("export", str(run), "--to", "html", "--output", str(page), "--force", *about)
    program = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = browser_class()(program, Path(profile))
        browser.visit(page.resolve().as_uri(), width=EXPORTED_WIDTH, height=EXPORTED_HEIGHT)
        wait(browser, "document.body.dataset.ready")
        browser.ask("document.getElementById('setting-seed').value = '7'")
        browser.ask("document.getElementById('setting-count').value = '120'")
        browser.ask("document.getElementById('continue').click()")
        wait(browser, "document.getElementById('stop').hidden")
        browser.ask("document.querySelectorAll('.piece')[20].click()")
        wait(browser, "document.querySelector('.attending')")
        browser.ask("(document.querySelectorAll('.attending .map')[6].click(), document.activeElement.blur())")
        browser.screenshot(picture)
        browser.close()


def wait(browser: Any, condition: str) -> None:
    """Waits until a condition holds in the page."""
    while not browser.ask(f"Boolean({condition})"):
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(ROOT / "demo" / "sherlock_holmes.txt"), help="the text to train on")
    parser.add_argument("--minutes", default="2", help="how long to train")
    parser.add_argument("--run", help="the folder of a run to show instead")
    arguments = parser.parse_args()
    images = ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments.run or f"{folder}/sherlock_holmes")
        if arguments.run is None:
            here = ["--name", run.name, "--checkpoints", folder]
            minigpt("train", arguments.text, "--minutes", arguments.minutes, *here)
        report, inspection = Path(folder, "report.html"), Path(folder, "inspection.html")
        minigpt("report", str(run), "--output", str(report))
        minigpt("inspect", str(run), TEXT, "--html", str(inspection))
        photograph(report, images / "report.png", REPORT_HEIGHT)
        photograph(inspection, images / "inspection.png", INSPECTION_HEIGHT)
        photograph_playground(run, images / "playground.png")
        photograph_exported(run, Path(folder, "exported.html"), images / "exported_page.png")


if __name__ == "__main__":
    main()
