"""Pages fit a phone and a desktop: nothing leaves its card, text is large enough, and no curve crosses a label."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.inspection.activations import inspect
from minigpt.inspection.page import inspection_page
from minigpt.reports.run_report import report_page
from minigpt.tokenizer.tokenizer import Tokenizer

PASSAGE = list(b"the quick brown fox jumps over the lazy dog")

# The elements that reach out of the window, or out of the card they are in; scrolling parts may be wider inside.
OUTSIDE = """(() => {
  const found = [];
  for (const element of document.querySelectorAll('main *, header *')) {
    const box = element.getBoundingClientRect();
    if (!box.width || element.closest('.scroll') !== null && !element.matches('.scroll')) continue;
    if (element.closest('svg') !== null && !element.matches('svg')) continue;
    const card = element.parentElement.closest('.panel, .plot, figure, section, header, body').getBoundingClientRect();
    if (box.right > card.right + 1 || box.left < card.left - 1 || box.right > innerWidth) {
      found.push(`${element.tagName} ${element.getAttribute('class')}: to ${box.right}, its card to ${card.right}`);
    }
  }
  return found;
})()"""

# The texts in pictures that are drawn in less than 11 pixels of the screen.
SMALL = """[...document.querySelectorAll('svg text')].map(text => {
  const svg = text.ownerSVGElement;
  const scale = svg.viewBox.baseVal.width ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return [parseFloat(getComputedStyle(text).fontSize) * scale, text.textContent];
}).filter(([size]) => size < 11)"""

# The labels that a curve crosses, another label overlaps, or the picture cuts off.
CROSSED = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg.chart, .chart svg')) {
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [text, box] of labels) {
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.bottom > frame.bottom + 0.5) {
        found.push(`${text} is cut off`);
      }
      for (const [other, its] of labels) {
        if (its === box || box.right <= its.left || its.right <= box.left) continue;
        if (Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top) > 4) found.push(`${text} overlaps ${other}`);
      }
    }
    for (const line of svg.querySelectorAll('path.line, polyline.line')) {
      const matrix = line.getScreenCTM(), length = line.getTotalLength();
      for (let place = 0; place <= length; place += 2) {
        const point = line.getPointAtLength(place).matrixTransform(matrix);
        const box = labels.find(([, box]) => point.x > box.left && point.x < box.right
          && point.y > box.top && point.y < box.bottom);
        if (box) found.push(`${box[0]} is crossed`);
      }
    }
  }
  return [...new Set(found)];
})()"""


def save_run(folder: Path, scale: float = 1.0) -> Path:
    """A run whose validation ends just below its baselines, two of which are nearly equal."""
    sizes = {"train_bytes": 9000, "validation_bytes": 1000, "whole_train_bytes": 9000, "whole_validation_bytes": 1000}
    figures = {"bytes": 4.4, "gzip": 3.2, "5-gram": 2.62 * scale, "xz": 2.6 * scale}
    measured = [{"name": name, "bits_per_byte": bits, **sizes} for name, bits in figures.items()]
    measured[-1]["train_bytes"] = 100  # a partial one, whose label is longer
    record = {
        "corpus": {"fingerprint": "f00d", "train_tokens": 4500, "train_bytes": 9000, "validation_bytes": 1000},
        "baselines": {"fingerprint": "f00d", "measured": measured},
        "sources": ["/texts/a_file_with_a_very_long_name_that_does_not_fit_into_a_card_of_a_telephone.txt"],
        "model": {"vocab_size": 257, "n_positions": 64, "n_embd": 192, "n_layer": 6, "n_head": 6},
        "training": {"minutes": 2, "context_length": 64},
        "environment": {"cpu": "Intel(R) Xeon(R) Platinum 8370C Processor @ 2.80GHz", "cores": 2},
        "preset": "micro",
        "tokenizer": "bytes",
        "result": {"step": 12_000, "bits_per_byte": 2.59 * scale, "seconds": 120.0, "best_step": 12_000},
    }
    run = new_run(folder, new_model(n_layer=1), record=record)
    for number in range(1, 61):
        step, loss = 200 * number, (2.5 + 5.5 / number) * scale
        run.log({"step": step, "loss": loss, "learning_rate": 3e-5 * number, "tokens_per_second": 123_456.0 + number})
        if number % 10 == 0:
            surprise = [0.01 * number * place for place in range(len(PASSAGE) - 1)]
            run.log({"step": step, "validation_loss": loss + 0.05, "bits_per_byte": loss + 0.05, "passage": PASSAGE,
                     "surprise": surprise})  # fmt: skip
            sample = "averylongwordwithoutanyspace" * 8 if number % 20 else "The quick brown fox. " * 20
            run.log({"step": step, "prompt": "It was", "sample": sample, "longest_copied_words": number,
                     "copied_share": 0.5, "copied_at_least": 8, "copied_spans": [[2, 9]]})  # fmt: skip
    return run.directory


def report(folder: Path) -> str:
    return report_page([save_run(folder / "fox")])


def comparison(folder: Path) -> str:
    return report_page([save_run(folder / "fox"), save_run(folder / "a_run_with_quite_a_long_name", 1.03)])


def inspection(folder: Path) -> str:
    tokenizer = Tokenizer.named("bytes")
    model = new_model(seed=2, scale=10, n_positions=64, n_layer=3, n_head=4)
    return inspection_page(inspect(model, PASSAGE, top=5), tokenizer, "a_model_with_a_long_name/checkpoints")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("make_page", [report, comparison, inspection])
def test_the_layout_fits_the_window(browser: Any, tmp_path: Path, make_page: Callable[[Path], str], width: int) -> None:
    (tmp_path / "page.html").write_text(make_page(tmp_path), encoding="utf-8")
    browser.open(tmp_path / "page.html", width=width)
    browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    browser.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("document.querySelectorAll('svg text').length") > 20
    assert browser.ask(OUTSIDE) == []
    assert browser.ask(SMALL) == []
    assert browser.ask(CROSSED) == []
    assert browser.errors == []


def test_charts_are_drawn_again_when_the_window_changes(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(report(tmp_path), encoding="utf-8")
    browser.open(tmp_path / "page.html", width=1280)
    wide = browser.ask("document.querySelector('svg.chart').viewBox.baseVal.width")
    browser.resize(390)
    browser.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    narrow = browser.ask("document.querySelector('svg.chart').viewBox.baseVal.width")
    assert narrow < 390 < wide
    assert browser.ask(SMALL) == []
