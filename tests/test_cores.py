"""How many cores a process may use, by its control group's limits."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minigpt import cgroups, cores


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, dict[str, str]], None]:
    """Puts this process into control groups that have these files."""

    def put_groups(groups: str, files: dict[str, str]) -> None:
        (tmp_path / "groups").write_text(groups)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(cgroups, "_OWN_GROUPS", tmp_path / "groups")
        monkeypatch.setattr(cgroups, "_CGROUP", tmp_path)

    return put_groups


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"job/step/cpu.max": "150000 100000\n"}, 2),
        ({"job/step/cpu.max": "10000 100000\n"}, 1),
        ({"job/cpu.max": "300000 100000\n", "job/step/cpu.max": "800000 100000\n"}, 3),  # the parent's limit
        ({"job/step/cpu.max": "9900000 100000\n"}, 64),  # more than the machine has
        ({"elsewhere/cpu.max": "200000 100000\n"}, 64),
        ({"cpu/outer/cpu.cfs_quota_us": "250000\n", "cpu/outer/cpu.cfs_period_us": "50000\n"}, 5),
        ({"cpu/outer/cpu.cfs_quota_us": "-1\n", "cpu/outer/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_a_control_groups_quota_and_its_parents_limit_the_cores(
    monkeypatch: pytest.MonkeyPatch, put: Callable[..., None], files: dict[str, str], expected: int
) -> None:
    put("4:cpu,cpuacct:/outer/inner\n1:memory:/none\n0::/job/step\n", files)
    monkeypatch.setattr(cores, "usable_cpus", lambda: list(range(64)))
    assert cores.available_cores() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, sys.maxsize),
        ({"job/step/pids.max": "max", "job/step/pids.current": "12"}, sys.maxsize),
        ({"job/step/pids.max": "100", "job/step/pids.current": "12"}, 88),
        ({"job/step/pids.max": "100", "job/step/pids.current": "120"}, 0),
        (
            {"job/step/pids.max": "100", "job/step/pids.current": "9", "job/pids.max": "50", "job/pids.current": "40"},
            10,
        ),
        ({"pids/limited/pids.max": "64", "pids/limited/pids.current": "60"}, 4),
    ],
)
def test_a_control_group_and_its_parents_limit_the_threads(
    put: Callable[..., None], files: dict[str, str], expected: int
) -> None:
    put("4:pids:/limited\n0::/job/step\n", files)
    assert cgroups.free_threads() == expected
