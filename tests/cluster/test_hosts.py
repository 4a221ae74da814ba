"""`torchrun` on hosts of their own, whose processes are killed and whose links fail."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from network_hosts import Hosts, joined_hosts, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(missing() is not None, reason=f"there can be no hosts here: {missing()}"),
]
STEPS = 150
LOST = 60  # seconds without an answer until a connection is lost


@pytest.fixture
def hosts(folder: Path) -> Iterator[Hosts]:
    with joined_hosts(["node1", "node2"], folder) as joined:
        yield joined


class Group:
    """`torchrun -m minigpt train` on every host, which share the folder."""

    def __init__(
        self, hosts: Hosts, folder: Path, environment: dict[str, str], *arguments: str, restarts: int = 0
    ) -> None:
        self.hosts, self.folder = hosts, folder
        several = ["--nnodes", str(len(hosts.names)), "--nproc-per-node", "1", "--max-restarts", str(restarts)]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.names[0]}:29500"]
        train = ["-m", "minigpt", "train", *arguments]
        self.agents = {}
        for host in hosts.names:
            command = hosts.command(host, sys.executable, "-m", "torch.distributed.run", *several, *meeting, *train)
            with self.path(host).open("w") as errors:
                self.agents[host] = subprocess.Popen(
                    command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors
                )

    def path(self, host: str) -> Path:
        return self.folder / f"{host}.err"

    def errors(self, host: str | None = None) -> str:
        """What a host's processes have written, or those of all hosts."""
        return "\n".join(
            self.path(name).read_text(errors="replace") for name in self.hosts.names if host in (name, None)
        )

    def lines(self) -> list[str]:
        """The error messages of minigpt on all hosts."""
        return [line for line in self.errors().splitlines() if line.startswith("minigpt: ")]

    def until(self, reached: Callable[[], object], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end, self.errors()
            time.sleep(0.1)

    def until_trains(self) -> None:
        """Waits for the first steps."""
        self.until(lambda: re.search(r"^step +[1-9]\d*/", self.errors(), re.MULTILINE))

    def worker(self, host: str) -> int | None:
        """The process that trains on a host."""
        for pid in self.hosts.pids(host):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"-m" in command and command[command.index(b"-m") + 1] == b"minigpt":
                    return pid
        return None

    def kill(self) -> None:
        """Kills every torchrun that has not ended; its processes end with their host."""
        for agent in self.agents.values():
            agent.kill()
            agent.wait()

    def end(self, seconds: float = 240) -> dict[str, int]:
        """The exit codes of all hosts' torchrun."""
        until = time.monotonic() + seconds
        return {host: agent.wait(max(1.0, until - time.monotonic())) for host, agent in self.agents.items()}


@pytest.fixture
def start(hosts: Hosts, folder: Path, environment: dict[str, str], tiny: list[str]) -> Iterator[Callable[..., Group]]:
    """Starts a run of this name on all hosts."""
    groups: list[Group] = []

    def group(name: str, *more: str, steps: int = STEPS, restarts: int = 0) -> Group:
        arguments = [*tiny, "--steps", str(steps), "--name", name, *more]
        groups.append(Group(hosts, folder, environment, *arguments, restarts=restarts))
        return groups[-1]

    yield group
    for each in groups:
        each.kill()


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, environment: dict[str, str], tiny: list[str]) -> str:
    """A run on two processes of one host."""
    command = ["minigpt", "train", *tiny, "--steps", str(STEPS), "--devices", "2", "--name", "uninterrupted"]
    subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
    return "uninterrupted"


Same = Callable[[str, str], None]


@pytest.mark.slow
@pytest.mark.parametrize("named_by_loopback", [False, True])
def test_two_hosts_train_as_two_processes_of_one(
    start: Callable[..., Group], hosts: Hosts, uninterrupted: str, check_same: Same, named_by_loopback: bool
) -> None:
    if named_by_loopback:
        hosts.name_by_loopback()
    group = start(f"two hosts {named_by_loopback}")
    assert set(group.end().values()) == {0}, group.errors()
    check_same(uninterrupted, f"two hosts {named_by_loopback}")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["node2", "node1"])
def test_a_killed_process_restarts_the_group_which_resumes_to_the_same_weights(
    start: Callable[..., Group],
    uninterrupted: str,
    check_same: Same,
    saved: Callable[[str], int],
    killed: str,
) -> None:
    name = f"killed {killed}"
    group = start(name, "--save-every", "5", restarts=2)
    group.until(lambda: saved(name) > 5)
    worker = group.worker(killed)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    assert set(group.end().values()) == {0}, group.errors()
    assert f"resuming checkpoints/{name} from step" in group.errors()
    check_same(uninterrupted, name)


@pytest.mark.slow
def test_a_link_that_drops_for_five_seconds_changes_nothing(
    start: Callable[..., Group], hosts: Hosts, uninterrupted: str, check_same: Same
) -> None:
    group = start("dropped")
    group.until_trains()
    hosts.cut("node2")
    time.sleep(5)
    hosts.mend("node2")
    assert set(group.end().values()) == {0}, group.errors()
    assert "resuming" not in group.errors()
    check_same(uninterrupted, "dropped")


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["node2", "node1"])
def test_a_link_that_drops_for_ever_ends_all_with_one_line_and_a_saved_state(
    start: Callable[..., Group], hosts: Hosts, saved: Callable[[str], int], cut: str
) -> None:
    name = f"cut {cut}"
    group = start(name, "--save-every", "5", steps=100_000)
    group.until(lambda: saved(name) > 5)
    hosts.cut(cut)
    group.until(lambda: not any(map(group.worker, hosts.names)), 2 * LOST + 60)  # torchrun may wait longer for itself
    assert group.agents["node1"].wait(60) != 0
    step = saved(name)
    (line,) = group.lines()
    assert line == (
        "minigpt: process 1 of 2 lost the connection to another one, which has ended; continue with --resume; the "
        f"state of step {step} is kept"
    )
    assert line in group.errors("node1")


def test_a_first_host_without_an_address_is_named(
    hosts: Hosts, folder: Path, environment: dict[str, str], tiny: list[str]
) -> None:
    variables = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "29500",
    }
    command = hosts.command("node2", "minigpt", "train", *tiny, "--steps", "5")
    done = subprocess.run(command, env=environment | variables, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("minigpt: the host name of the first process (node7) has no address on node2 (")
    assert done.stderr.count("\n") == 1
