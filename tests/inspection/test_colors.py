"""The color scale for probabilities is cividis."""

import numpy as np
import pytest

from minigpt.inspection.colors import brightness, color, surprisal_bits
from minigpt.pages.document import CIVIDIS


def test_the_scale_is_cividis_and_each_bit_of_surprisal_is_a_tenth_darker() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    for step in range(101):
        theirs = [255 * part for part in matplotlib.colormaps["cividis"](step / 100)[:3]]
        assert max(abs(a - b) for a, b in zip(color(step / 100), theirs, strict=True)) <= 9, step
    assert color(0) == (0x00, 0x22, 0x4E)
    assert color(1) == tuple(bytes.fromhex(CIVIDIS[-1]))
    lightness = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in map(color, np.linspace(0, 1, 50))]
    assert lightness == sorted(lightness)
    assert [brightness(nats) for nats in (0.0, -np.log(2), -50)] == pytest.approx([1, 0.9, 0])
    assert surprisal_bits(-0.0) == 0
    assert str(surprisal_bits(0.0)) == "0.0"
