"""Attention maps as image files."""

import errno
from pathlib import Path

import pytest
from builders import new_model

from minigpt.errors import CheckpointError, ConfigError
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
    with pytest.raises(ConfigError, match=r"map.wrong cannot be written .*; give a file name such as map.png"):
        draw_map(found, labels, tmp_path / "map.wrong", layer=0, head=0)


def test_a_full_disk_leaves_the_earlier_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "map.png"
    path.write_bytes(b"earlier")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"map.png could not be written \(no space left on device\); free some"):
        draw_map(inspect(new_model(), [36, 65], top=1), ["$", "A"], path, layer=0, head=0)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"earlier"]
