"""Makes docs/images/report.png and docs/images/inspection.png: trains a model, and photographs its pages in Chromium.

    python docs/page_pictures.py                # trains on demo/sherlock_holmes.txt for two minutes
    python docs/page_pictures.py --text book.txt --minutes 5
    python docs/page_pictures.py --run checkpoints/sherlock_holmes   # a run that exists already

Needs Chromium on the PATH. The pages are written to a temporary folder.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = "Mr. Sherlock Holmes was sitting in his chair, and Mr. Holmes"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, REPORT_HEIGHT, INSPECTION_HEIGHT = 1120, 1460, 1640  # pixels


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(ROOT / "demo" / "sherlock_holmes.txt"), help="the text to train on")
    parser.add_argument("--minutes", default="2", help="how long to train")
    parser.add_argument("--run", help="the folder of a run to show instead")
    parser.add_argument("--layer", default="3", help="the layer that the page of minigpt inspect opens with")
    parser.add_argument("--head", default="2", help="its head")
    arguments = parser.parse_args()
    images = ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments.run or f"{folder}/sherlock_holmes")
        if arguments.run is None:
            here = ["--name", run.name, "--checkpoints", folder]
            minigpt("train", arguments.text, "--minutes", arguments.minutes, *here)
        report, inspection = Path(folder, "report.html"), Path(folder, "inspection.html")
        minigpt("report", str(run), "--output", str(report))
        layer = ["--layer", arguments.layer, "--head", arguments.head]
        minigpt("inspect", str(run), TEXT, "--html", str(inspection), *layer)
        photograph(report, images / "report.png", REPORT_HEIGHT)
        photograph(inspection, images / "inspection.png", INSPECTION_HEIGHT)


if __name__ == "__main__":
    main()
