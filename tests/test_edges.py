"""The table of edges, and edges of other packages."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from minigpt.config import TrainSettings
from minigpt.edges import Edge
from minigpt.errors import ConfigError
from minigpt.settings import combined, setting


def test_an_edge_is_missing_without_its_package_or_an_edge_that_it_needs() -> None:
    assert Edge(name="a", sentence="", package="json").is_installed
    assert not Edge(name="a", sentence="", package="no_such_package").is_installed
    assert not Edge(name="a", sentence="", package="no_such_package.module").is_installed
    assert not Edge(name="a", sentence="", package="json", needs=("no such edge",)).is_installed


def test_a_setting_has_one_owner() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(TrainSettings):
        mine: int = setting(1, "a number")

    @dataclass(frozen=True, kw_only=True)
    class Other(TrainSettings):
        mine: int = setting(2, "another number")

    @dataclass(frozen=True, kw_only=True)
    class Taken(TrainSettings):
        grad_clip: float = setting(7.5, "a number that training has")

    assert combined("All", "All settings.", (TrainSettings, Own))().mine == 1
    for groups in ((TrainSettings, Own, Other), (TrainSettings, Taken)):
        with pytest.raises(ConfigError, match=r"both declare the setting (mine|grad_clip)"):
            combined("All", "All settings.", groups)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n", encoding="utf-8")
    description = tmp_path / "broken-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (description / "entry_points.txt").write_text("[minigpt.edges]\nbroken = broken:EDGE\n", encoding="utf-8")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['minigpt', 'list']; import runpy; " + (
        "runpy.run_module('minigpt', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "minigpt: broken:EDGE, which adds to minigpt, cannot be imported (ModuleNotFoundError: No module named "
        "'no_such_module'); fix or uninstall broken\n",
    )
