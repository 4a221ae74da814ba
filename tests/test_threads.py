"""How many threads compute: by the container's quota, and shared among processes."""

from collections.abc import Iterator

import pytest
import torch

from minigpt import threads


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch computes with three threads, which the user has not set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("variable", "expected"), [(None, 1), ("3", 3)])
def test_a_containers_cpu_quota_limits_torchs_threads_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    threads.respect_cpu_quota()
    assert torch.get_num_threads() == expected


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(
    ("processes", "variable", "expected"), [(1, None, 3), (2, None, 2), (3, None, 1), (9, None, 1), (2, "3", 3)]
)
def test_processes_that_share_the_cores_have_a_part_of_the_threads_each(
    monkeypatch: pytest.MonkeyPatch, processes: int, variable: str | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: 5)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    with threads.sharing_cores(processes):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3
