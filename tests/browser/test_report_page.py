"""The report in a real browser: no errors, the right values under mouse and keys, light and dark mode."""

from pathlib import Path
from typing import Any

import pytest
from builders import new_model, new_run

from minigpt.reports.run_report import report_page
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result

HOSTILE = "</script><script>alert(1)</script><b>x</b>"
PASSAGE = [104, 105, 10, 60, 98, 62]


def loss(step: int, slope: float = 1.0) -> float:
    return 2 + slope * 3 / step


def save_run(folder: Path, slope: float = 1.0) -> Run:
    """A run of 40 steps, with an evaluation every 10 and a sample every 20."""
    corpus = {"fingerprint": "f00d", "train_bytes": 1000, "train_tokens": 500}
    sizes = {"train_bytes": 1000, "validation_bytes": 100, "whole_train_bytes": 1000, "whole_validation_bytes": 100}
    baselines = {"fingerprint": "f00d", "measured": [{"name": "xz", "bits_per_byte": 1.25} | sizes]}
    record = {"corpus": corpus, "baselines": baselines, "sources": [HOSTILE], "training": {"weight_decay": slope}}
    run = new_run(folder, new_model(n_layer=1), record=record)
    for step in range(1, 41):
        run.log({"step": step, "loss": loss(step, slope), "learning_rate": 0.01 * step, "tokens_per_second": 5000.0})
        if step % 10 == 0:
            surprise = [0.1 * step * place for place in range(len(PASSAGE) - 1)]
            run.log({"step": step, "validation_loss": loss(step, slope) + 0.5, "bits_per_byte": loss(step, slope) / 2,
                     "passage": PASSAGE, "surprise": surprise})  # fmt: skip
        if step % 20 == 0:
            run.log({"step": step, "prompt": "é🐋", "sample": f"🐋 {HOSTILE} step {step}", "longest_copied_words": step,
                     "longest_copied_characters": 3, "copied_share": 0.5, "copied_at_least": 8,
                     "copied_spans": [[2, 2 + len(HOSTILE)]]})  # fmt: skip
    return run


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """The page of one run."""
    path = tmp_path / "page.html"
    path.write_text(report_page([save_run(tmp_path / "fox").directory]), encoding="utf-8")
    browser.open(path)
    yield browser
    assert browser.errors == []
    assert browser.requests == [path.as_uri()]


def readout(browser: Any, place: int = 0) -> str:
    return str(browser.ask(f"document.querySelectorAll('.readout')[{place}].textContent"))


def point_at(browser: Any, share: float, place: int = 0) -> None:
    """Moves the mouse over a chart, to a fraction of the way from its first step to its last."""
    left, top, height, inner, outer = browser.ask(
        f"(() => {{ const s = document.querySelectorAll('svg.chart')[{place}]; s.scrollIntoView({{block: 'center'}});"
        " const b = s.getBoundingClientRect();"
        " const lines = [...s.querySelectorAll('.grid')].map(e => [+e.getAttribute('x1'), +e.getAttribute('x2')]);"
        " const [left, right] = lines.find(([from, to]) => to > from);"
        " return [b.left, b.top, b.height, left, right - left]; })()"
    )
    browser.point(left + inner + share * outer, top + height / 2)


def test_the_page_opens_without_errors_and_text_of_the_run_is_not_part_of_it(opened: Any) -> None:
    assert opened.ask("document.querySelector('h1').textContent") == "fox"
    headings = opened.ask("[...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert headings == [
        "Loss",
        "Learning rate and speed",
        "Samples",
        "Copied from the training text",
        "Surprisal",
        "All settings and figures",
    ]
    assert opened.ask("document.querySelectorAll('script').length") == 9  # the data, page.js, seven parts
    assert opened.ask("[...document.querySelectorAll('b')].map(e => e.textContent)") == ["é🐋"] * 2  # only the prompts
    assert "alert(1)" in opened.ask("document.querySelector('.sample').textContent")
    assert "alert(1)" in opened.ask("document.querySelector('blockquote').textContent")


def test_the_page_begins_with_how_good_the_model_is_and_ends_with_the_folded_record(opened: Any) -> None:
    assert opened.ask("document.querySelector('.figure').textContent") == f"{loss(40) / 2:.4f} bits per byte"
    assert opened.ask("document.querySelector('.verdict').textContent") == "Better than xz."
    rows = "[...document.querySelectorAll('.methods li')].map(e => e.querySelector('.name').textContent)"
    assert opened.ask(rows) == ["this model", "xz"]
    widths = opened.ask("[...document.querySelectorAll('.methods .bar')].map(e => e.getBoundingClientRect().width)")
    assert widths[0] / widths[1] == pytest.approx(loss(40) / 2 / 1.25, rel=0.02)
    assert opened.ask("document.querySelector('section:last-child details').open") is False
    opened.ask("document.querySelector('section:last-child summary').click()")
    assert opened.ask("document.querySelector('.record').getBoundingClientRect().height") > 0


def test_the_page_has_the_advice_of_a_finished_run_and_its_plan_as_text(browser: Any, tmp_path: Path) -> None:
    run = save_run(tmp_path / "fox")
    steps = {"after": 40, "steps": [{"text": f"continue {HOSTILE}", "commands": ["minigpt train 'a.txt'"]}]}
    plan = [["model", f"nano {HOSTILE}", "--preset"], ["", "4 layers", ""]]
    run.update(result=Result(step=40, reason="length"), other={"next_steps": steps, "plan": plan})
    path = tmp_path / "page.html"
    path.write_text(report_page([run.directory]), encoding="utf-8")
    browser.open(path)
    assert browser.ask("document.querySelector('.advice p').textContent") == f"continue {HOSTILE}"
    assert browser.ask("document.querySelector('.advice code').textContent") == "minigpt train 'a.txt'"
    rows = "[...document.querySelectorAll('.record tr')].map(e => e.textContent)"
    assert f"modelnano {HOSTILE} (--preset); 4 layers" in browser.ask(rows)
    assert browser.errors == []


def test_the_mouse_over_a_curve_shows_the_step_and_every_value_there(opened: Any) -> None:
    ratio = (loss(40) / 2) / (loss(40) + 0.5)
    for step in (1, 20, 40):
        point_at(opened, (step - 1) / 39)
        text = readout(opened)
        assert text.startswith(f"step {step}training {loss(step) * ratio:.4f} bits per byte, {loss(step):.4f} nats")
        evaluated = min((10, 20, 30, 40), key=lambda other: abs(other - step))
        assert f"validation {loss(evaluated) / 2:.4f} bits per byte" in text
        assert ("(step 10)" in text) == (step == 1)
    point_at(opened, 9 / 39, place=1)
    assert readout(opened, 1) == "step 100.1"  # the chart's title names it


def test_arrow_keys_go_from_step_to_step(opened: Any) -> None:
    opened.ask("document.querySelector('svg.chart').focus()")
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("End", 40), ("ArrowRight", 40), ("ArrowLeft", 39),
                      ("Home", 1), ("ArrowLeft", 1)]:  # fmt: skip
        opened.press(key)
        assert readout(opened).startswith(f"step {step}training"), key


def test_a_baseline_is_drawn_at_its_value(opened: Any) -> None:
    ticks = opened.ask(
        "(() => { const s = document.querySelector('svg.chart'); const t = [...s.querySelectorAll('text')]"
        ".filter(e => e.getAttribute('text-anchor') === 'end' && !isNaN(e.textContent));"
        " return t.map(e => [Number(e.textContent), Number(e.getAttribute('y')) - 4]); })()"
    )
    (low, y_low), (high, y_high) = ticks[0], ticks[-1]
    y = float(opened.ask("document.querySelector('svg.chart .level').getAttribute('y1')"))
    assert low + (y - y_low) / (y_high - y_low) * (high - low) == pytest.approx(1.25, abs=1e-3)
    assert "xz 1.25" in opened.ask("document.querySelector('svg.chart').textContent")


def test_the_slider_shows_the_samples_with_their_copied_runs_marked(opened: Any) -> None:
    opened.ask("document.querySelectorAll('input[type=range]')[0].focus()")
    text = "document.querySelector('.sample').textContent"
    assert opened.ask(text) == f"é🐋🐋 {HOSTILE} step 40"
    opened.press("ArrowLeft")
    assert opened.ask(text) == f"é🐋🐋 {HOSTILE} step 20"
    assert opened.ask("document.querySelector('.slider output').textContent") == "step 20"
    assert opened.ask("document.querySelector('.sample mark').textContent") == HOSTILE  # spans count code points
    assert "50% of it, in marked runs of 8 words or more; longest run 20 words" in opened.ask(
        "document.querySelector('.run').textContent"
    )


def test_the_passage_shows_the_surprisal_of_each_token_at_each_evaluation(opened: Any) -> None:
    opened.ask("document.querySelectorAll('.token')[0].focus()")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    details = "[...document.querySelectorAll('.run p')].map(e => e.textContent).filter(t => t.startsWith('Mean'))[0]"
    bits = [0.1 * 40 * place / 0.69314718 for place in range(5)]
    assert opened.ask(details) == f"Mean {sum(bits) / 5:.2f} bits per token. Token 3, “<”: {bits[2]:.2f} bits."
    opened.ask("document.querySelectorAll('input[type=range]')[1].focus()")
    opened.press("Home")
    assert opened.ask(details).endswith(f"Token 3, “<”: {bits[2] / 4:.2f} bits.")
    background = "getComputedStyle(document.querySelectorAll('.token')[{}]).backgroundColor"
    assert opened.ask(background.format(1)).endswith("/ 0)")  # 0 bits has no color
    strengths = [float(opened.ask(background.format(place)).split("/")[1].strip(" )")) for place in (1, 2, 3)]
    assert strengths == sorted(set(strengths))


def test_two_runs_share_the_charts_and_their_differences_are_marked(browser: Any, tmp_path: Path) -> None:
    folders = [save_run(tmp_path / name, slope).directory for name, slope in (("fox", 1.0), ("cat", 2.0))]
    (tmp_path / "page.html").write_text(report_page(folders), encoding="utf-8")
    browser.open(tmp_path / "page.html", dark=True)
    point_at(browser, 1.0)
    text = readout(browser)
    for name, slope in (("fox", 1.0), ("cat", 2.0)):
        assert f"{name}, validation {loss(40, slope) / 2:.4f} bits per byte" in text
    assert browser.ask("[...document.querySelectorAll('.differs th')].map(e => e.textContent)") == ["weight decay"]
    levels = "[...document.querySelectorAll('svg.chart')][0].querySelectorAll('.level').length"
    assert browser.ask(levels) == 1  # both runs' baseline is the same
    assert browser.ask("document.querySelectorAll('.sample').length") == 2
    assert browser.errors == []


def test_the_switch_changes_to_dark_mode(opened: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.ask(background) == "rgb(255, 255, 255)"
    opened.ask("document.querySelector('#theme').click()")
    assert opened.ask(background) == "rgb(21, 24, 28)"


def test_an_empty_log_is_reported_as_such(browser: Any, tmp_path: Path) -> None:
    run = new_run(tmp_path / "new", record={"corpus": {"fingerprint": "", "train_bytes": 0, "train_tokens": 0}})
    (tmp_path / "page.html").write_text(report_page([run.directory]), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.errors == []
    assert "No data yet." in browser.ask("document.body.textContent")
    assert "No samples were generated." in browser.ask("document.body.textContent")
