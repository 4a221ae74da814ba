"""Installs the packages in tests/plugins, as pip would, in a folder for PYTHONPATH."""

import shutil
import tomllib
from pathlib import Path

PLUGINS = Path(__file__).parents[1] / "plugins"


def install_plugin(name: str, site: Path) -> None:
    """Copies a plugin's packages, and writes the entry points of its pyproject.toml next to them."""
    project = tomllib.loads((PLUGINS / name / "pyproject.toml").read_text())["project"]
    for package in (PLUGINS / name).glob("*/"):
        shutil.copytree(package, site / package.name)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "\n".join(f"{entry} = {target}" for entry, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
