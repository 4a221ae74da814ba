"""Attention maps as image files."""

from pathlib import Path

import pytest
from builders import new_model

from minigpt.errors import ConfigError
from minigpt.inspection.activations import inspect
from minigpt.inspection.attention_map import draw_map


def test_an_attention_map_is_drawn_and_a_wrong_layer_head_or_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = inspect(new_model(), [36, 65, 36, 66], top=1)
    labels = ["$", "A", "$", "日"]  # not read as mathematics, and no warning about a missing glyph
    draw_map(found, labels, tmp_path / "map.png", layer=1, head=0)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    for layer, head, message in [
        (2, 0, r"layer \(2\) must be from 0 to 1"),
        (0, -1, r"head \(-1\) must be from 0 to 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            draw_map(found, labels, tmp_path / "no.png", layer=layer, head=head)
    for name in ("missing/map.png", "map.wrong"):
        with pytest.raises(ConfigError, match="cannot be written"):
            draw_map(found, labels, tmp_path / name, layer=0, head=0)
