"""The inspection page in a real browser: no errors, the right numbers under mouse and keys, light and dark mode."""

from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.inspection.activations import Inspection, inspect
from minigpt.inspection.opening import opening
from minigpt.inspection.page import inspection_page
from minigpt.tokenizer.display import token_label
from minigpt.tokenizer.tokenizer import Tokenizer

TEXT = "The fox</script>\n<b>日 \u202e שלום"
LAYERS, HEADS = 3, 4


@pytest.fixture(scope="module")
def found() -> Inspection:
    model = new_model(seed=2, scale=10, n_positions=64, n_layer=LAYERS, n_head=HEADS)
    return inspect(model, Tokenizer.named("bytes").encode(TEXT), top=5)


@pytest.fixture
def opened(browser: Any, found: Inspection, tmp_path: Path) -> Any:
    """The page, just opened."""
    path = tmp_path / "page.html"
    path.write_text(inspection_page(found, Tokenizer.named("bytes"), "a <model>", layer=1, head=2), encoding="utf-8")
    browser.open(path)
    yield browser
    assert browser.errors == []
    assert browser.requests == [path.as_uri()]


def cell(browser: Any, row: int, column: int) -> tuple[float, float]:
    """The center of a cell of the large map, in the window."""
    left, top, width = browser.ask(
        "(() => { const c = document.querySelector('canvas.large'); c.scrollIntoView({block: 'center'});"
        " const b = c.getBoundingClientRect(); return [b.left, b.top, b.width]; })()"
    )
    count = len(TEXT.encode())
    size = min(32, 640 // count)
    margin = width - 2 - count * size
    return left + margin + (column + 0.5) * size, top + margin + (row + 0.5) * size


def read_weight(browser: Any) -> str:
    return str(browser.ask("document.querySelector('#weight strong').textContent"))


def selected(browser: Any, kind: str) -> list[int]:
    """The indices of the elements of a kind that are selected."""
    found = browser.ask(
        f"[...document.querySelectorAll({kind!r})].map((e, i) => e.hasAttribute('data-selected') ? i : -1)"
        ".filter(i => i >= 0)"
    )
    return [int(place) for place in found]


def opening_cell(found: Inspection) -> tuple[int, int]:
    """The row and the column of the map of layer 1 and head 2 that the page opens with."""
    *_, row = opening(found, 1, 2)
    return row, 1 + int(found.attention[1, 2, row, 1 : row - 1].argmax())


def focus(browser: Any, kind: str, place: int = 0) -> None:
    browser.ask(f"document.querySelectorAll({kind!r})[{place}].focus()")


def test_the_page_opens_without_errors_on_the_requested_head(opened: Any, found: Inspection) -> None:
    assert opened.ask("document.querySelector('h1').textContent") == "a <model>"
    headings = opened.ask("[...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert headings == ["Text", "Attention", "Logit lens", "Norms"]
    assert selected(opened, "button.map") == [1 * HEADS + 2]
    assert selected(opened, ".text button") == [opening_cell(found)[0]]
    assert read_weight(opened) == f"{found.attention[(1, 2, *opening_cell(found))]:.4f}"
    assert opened.ask("document.querySelectorAll('button.map').length") == LAYERS * HEADS
    assert opened.ask("document.querySelectorAll('.lens tbody button').length") == LAYERS * len(TEXT.encode())
    assert opened.ask("document.querySelectorAll('b').length") == 0  # tags in the text are not elements
    assert opened.ask("document.querySelectorAll('script').length") == 8  # the data and seven scripts


def test_the_mouse_over_a_cell_shows_its_weight(opened: Any, found: Inspection) -> None:
    for row, column in [(0, 0), (9, 4), (9, 9), (20, 3), (len(TEXT.encode()) - 1, 0)]:
        opened.point(*cell(opened, row, column))
        assert read_weight(opened) == f"{found.attention[1, 2, row, column]:.4f}"
        text = opened.ask("document.querySelector('#weight').textContent")
        assert f"({row}) attends to" in text
        assert f"({column}) with weight" in text
    before = read_weight(opened)
    opened.point(*cell(opened, 3, 20))  # above the diagonal there are no weights
    assert read_weight(opened) == before


def test_the_pixels_of_a_map_are_the_weights_with_none_above_the_diagonal(opened: Any) -> None:
    pixels = opened.ask(
        "(() => { const c = document.querySelectorAll('button.map canvas')[5]; const n = c.width;"
        " const d = c.getContext('2d').getImageData(0, 0, n, n).data; return [...d]; })()"
    )
    count = len(TEXT.encode())
    seen = [[pixels[4 * (row * count + column) + 3] > 0 for column in range(count)] for row in range(count)]
    assert seen == [[column <= row for column in range(count)] for row in range(count)]
    assert pixels[:3] == [0xFE, 0xE8, 0x38]  # the first token has only itself to attend to


def test_arrow_keys_move_between_heads(opened: Any, found: Inspection) -> None:
    focus(opened, "button.map", 1 * HEADS + 2)
    for key, place in [("ArrowDown", (2, 2)), ("ArrowDown", (2, 2)), ("ArrowRight", (2, 3)), ("ArrowRight", (2, 3)),
                       ("ArrowUp", (1, 3)), ("Home", (1, 0)), ("End", (1, 3)), ("ArrowLeft", (1, 2))]:  # fmt: skip
        opened.press(key)
        assert selected(opened, "button.map") == [place[0] * HEADS + place[1]], key
        assert opened.ask("document.querySelector('.head-map h3').textContent") == f"layer {place[0]}, head {place[1]}"
        assert read_weight(opened) == f"{found.attention[(*place, *opening_cell(found))]:.4f}"


def test_arrow_keys_move_in_a_map_and_select_the_token(opened: Any, found: Inspection) -> None:
    last = len(TEXT.encode()) - 1
    opened.point(*cell(opened, last, 0))
    focus(opened, "canvas.large")
    for key, row, column in [("ArrowRight", last, 1), ("ArrowUp", last - 1, 1), ("End", last - 1, last - 1),
                             ("ArrowRight", last - 1, last - 1), ("ArrowUp", last - 2, last - 2),
                             ("Home", last - 2, 0), ("ArrowLeft", last - 2, 0)]:  # fmt: skip
        opened.press(key)
        assert read_weight(opened) == f"{found.attention[1, 2, row, column]:.4f}", key
        assert selected(opened, ".text button") == [row]


def test_arrow_keys_move_in_the_text_and_show_the_tokens_figures(opened: Any, found: Inspection) -> None:
    focus(opened, ".text button", 0)
    assert "nothing comes before it" in opened.ask("document.querySelector('#token').textContent")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert selected(opened, ".text button") == [2]
    figures = opened.ask("[...document.querySelectorAll('#token dd')].map(e => e.textContent)")
    own = found.predictions
    bits = -own.logprobs[1].item() / 0.6931471805599453
    assert figures[1] == f"{bits:.2f} bits"
    assert figures[2] == str(own.ranks[1].item() + 1)
    assert figures[3] == f"{own.entropy[1].item() / 0.6931471805599453:.2f} bits"
    assert opened.ask("document.querySelectorAll('#token .most-likely li').length") == 10


def test_the_lens_shows_the_predictions_of_a_layer(opened: Any, found: Inspection) -> None:
    count = len(TEXT.encode())
    tokenizer = Tokenizer.named("bytes")
    labels = opened.ask("[...document.querySelectorAll('.lens tbody button')].map(e => e.textContent)")
    assert labels == [token_label(tokenizer, id) for id in found.lens.top_ids[:, :, 0].flatten().tolist()]
    focus(opened, ".lens tbody button", 1 * count + 3)
    opened.press("ArrowUp")
    assert opened.ask("document.activeElement.closest('tr').querySelector('th').textContent") == "layer 0"
    shown = opened.ask("[...document.querySelectorAll('#lens .most-likely .number')].map(e => e.textContent)")
    shares = [100 * value.exp().item() for value in found.lens.top_logprobs[0, 3]]
    assert [float(text.strip("<%")) for text in shown] == pytest.approx(shares, rel=0.06, abs=0.011)
    assert f"rank {found.lens.ranks[0, 3].item() + 1}" in opened.ask("document.querySelector('#lens').textContent")
    assert selected(opened, ".text button") == [3]


def test_tab_reaches_every_part_once_and_the_focus_is_visible(opened: Any) -> None:
    stops = []
    for _ in range(9):
        opened.press("Tab")
        if opened.ask("document.activeElement === document.body"):
            break
        stops.append(opened.ask("document.activeElement.closest('section')?.getAttribute('aria-label') ?? ''"))
        assert opened.ask("getComputedStyle(document.activeElement).outlineStyle") != "none", stops
    assert stops == [
        "",
        "Text",
        "Attention",
        "Attention",
        "Logit lens",
        "Norms",
    ]  # the first is the switch to dark mode


def test_every_control_has_a_name(opened: Any) -> None:
    unnamed = opened.ask(
        "[...document.querySelectorAll('button, canvas[tabindex], svg, [role]')]"
        ".filter(e => !e.textContent.trim() && !e.getAttribute('aria-label')).length"
    )
    assert unnamed == 0


def test_light_and_dark_follow_the_system_and_the_switch(browser: Any, opened: Any) -> None:
    def brightness() -> int:
        color = browser.ask("getComputedStyle(document.body).backgroundColor")
        return int(color.split("(")[1].split(",")[0])

    path = Path(browser.ask("location.pathname"))
    assert brightness() > 200
    browser.open(path, dark=True)
    assert brightness() < 60
    browser.ask("document.querySelector('#theme').click()")
    assert brightness() > 200
    browser.ask("document.querySelector('#theme').click()")
    assert brightness() < 60
