"""Exported pages: size of the file, seconds until the page can write, tokens per second in headless Chromium.

    python benchmarks/exported_page.py [--shapes nano micro mini gpt2] [--vocabulary 8192] [--tokens 200]

The weights are random, which compresses a little less than trained ones. gpt2 has its own vocabulary. The time until
the page is ready counts from the start of its loading to the message that the model is open. The speed is the one that
the page shows, for a greedy text from a short prompt, with probabilities and alternatives of each token.
"""

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "demo" / "sherlock_holmes.txt"


def write(path: Path, shape: str, vocabulary: int) -> int:
    """Writes the page of a random model of this shape; returns its parameters."""
    import dataclasses

    import torch

    from minigpt.config import preset_config
    from minigpt.exporters.html.page import PageText, write_page
    from minigpt.model.gpt import GPT
    from minigpt.tokenizer.tokenizer import Tokenizer

    tokenizer = (
        Tokenizer.named("gpt2")
        if shape == "gpt2"
        else Tokenizer.train([TEXT.read_text(encoding="utf-8")], f"bpe:{vocabulary}")
    )
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(preset_config(shape), vocab_size=tokenizer.vocab_size)).eval()
    with path.open("wb") as file:
        write_page(file, model, tokenizer, PageText(title=shape))
    return model.config.n_parameters


def measure(browser: Any, path: Path, tokens: int) -> dict[str, str]:
    """Opens the page, writes three texts, and returns the page's figures, of the fastest text."""
    browser.open(path)
    wait(browser, "document.body.dataset.ready")
    ready = float(browser.ask("document.body.dataset.ready")) / 1000
    arithmetic = browser.ask("document.getElementById('status').textContent")
    for name, value in {"count": tokens, "temperature": 0}.items():
        browser.ask(f"document.getElementById('setting-{name}').value = '{value}'")
    speeds = []
    for _ in range(3):
        browser.ask("document.getElementById('write').click()")
        wait(browser, "!document.getElementById('more').hidden")
        status = browser.ask("document.getElementById('status').textContent")
        speeds.append(int(status.split(" tokens/s")[0].split()[-1].replace(",", "")))
    return {"ready, s": f"{ready:.2f}", "tokens/s": f"{max(speeds):,}", "arithmetic": arithmetic}


def wait(browser: Any, condition: str) -> None:
    """Waits until a condition holds in the page, at most five minutes."""
    end = time.monotonic() + 300
    while not browser.ask(f"Boolean({condition})"):
        if time.monotonic() > end:
            raise SystemExit("the page does not answer: " + browser.ask("document.body.innerText"))
        time.sleep(0.02)


def open_browser(folder: Path) -> Any:
    """The browser that the tests use."""
    spec = importlib.util.spec_from_file_location("browser", ROOT / "tests" / "browser" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = next(filter(None, map(shutil.which, module.NAMES)), None)
    if program is None:
        raise SystemExit(f"no browser: none of {', '.join(module.NAMES)} is on the PATH")
    return module.Browser(program, folder / "profile")


def main() -> None:
    """Prints one line of JSON for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["nano", "micro", "mini", "gpt2"])
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        browser = open_browser(folder)
        for shape in arguments.shapes:
            path = folder / f"{shape}.html"
            parameters = write(path, shape, arguments.vocabulary)
            row = {"shape": shape, "parameters": f"{parameters:,}", "MB": f"{path.stat().st_size / 1e6:.2f}"}
            print(json.dumps(row | measure(browser, path, arguments.tokens)), flush=True)
            path.unlink()
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
