"""docs/launchers/slurm.sh on a Slurm cluster of two nodes: jobs that end, are preempted, run out of time or fail."""

import functools
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_cluster import Slurm, cluster, missing, wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "launchers" / "slurm.sh"
OTHER = "process 2 of 2, on node2, has"
WORDS = [f"{first}{second}" for first in "abcdefghij" for second in ("ko", "li", "mu", "na")]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(missing() is not None, reason=f"there can be no Slurm cluster here: {missing()}"),
]


@pytest.fixture(scope="module")
def slurm(folder: Path, environment: dict[str, str]) -> Iterator[Slurm]:
    with cluster(["node1", "node2"], folder, environment, down_after=10) as running:
        yield running


@pytest.fixture(autouse=True)
def idle(slurm: Slurm) -> Iterator[None]:
    """Every test begins and ends with an idle cluster."""
    yield
    slurm.run("scancel", "--user=root")
    wait_until(slurm.is_idle, slurm.logs)


def output(slurm: Slurm, job: str) -> str:
    path = slurm.folder / f"slurm-{job}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def trains(slurm: Slurm, job: str) -> bool:
    """Whether a job has trained some steps."""
    return re.search(r"^step +[1-9]\d*/", output(slurm, job), re.MULTILINE) is not None


def submit(slurm: Slurm, tiny: list[str], steps: int, *options: str) -> str:
    """Submits the example of the documentation."""
    return slurm.submit(*options, str(SCRIPT), *tiny, "--steps", str(steps))


def worker(slurm: Slurm, node: str) -> int:
    """The process that trains on a node."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in slurm.hosts.pids(node)}
    (pid,) = [pid for pid, line in lines.items() if line[1:4] == [b"-m", b"minigpt", b"train"]]
    return pid


@pytest.fixture(scope="module")
def uninterrupted(slurm: Slurm, tiny: list[str], folder: Path) -> str:
    """The name of a run of 150 steps on both nodes that nothing interrupts."""
    job = submit(slurm, tiny, 150)
    assert slurm.wait(job, *ENDED) == "COMPLETED", output(slurm, job)
    return f"job-{job}"


@pytest.mark.slow
def test_two_nodes_train_as_two_processes_of_one_machine(
    slurm: Slurm,
    uninterrupted: str,
    tiny: list[str],
    environment: dict[str, str],
    check_same: Callable[[str, str], None],
) -> None:
    command = ["minigpt", "train", *tiny, "--steps", "150", "--devices", "2", "--name", "own"]
    subprocess.run(command, env=environment, cwd=slurm.folder, check=True, capture_output=True)
    check_same(uninterrupted, "own")


@pytest.mark.slow
def test_a_preempted_job_continues_to_the_same_weights(
    slurm: Slurm,
    uninterrupted: str,
    tiny: list[str],
    saved: Callable[[str], int],
    check_same: Callable[[str, str], None],
) -> None:
    job = submit(slurm, tiny, 150)
    wait_until(lambda: trains(slurm, job), slurm.logs)
    urgent = slurm.submit("--partition=urgent", "--nodes=2", "--ntasks=4", "--wrap=true")
    assert slurm.wait(urgent, *ENDED) == "COMPLETED"
    assert 0 < saved(f"job-{job}") < 150
    assert slurm.wait(job, *ENDED) == "COMPLETED", output(slurm, job)
    assert output(slurm, job).count("stopped: step") == 1
    assert output(slurm, job).count(f"resuming checkpoints/job-{job} from step") == 1
    check_same(uninterrupted, f"job-{job}")


@pytest.mark.slow
def test_a_job_that_runs_out_of_time_continues_to_the_same_weights(
    slurm: Slurm, uninterrupted: str, tiny: list[str], check_same: Callable[[str, str], None]
) -> None:
    job = submit(slurm, tiny, 150, "--time=3", "--signal=B:USR1@90")
    wait_until(lambda: trains(slurm, job), slurm.logs)
    pid = worker(slurm, "node2")
    os.kill(pid, signal.SIGSTOP)  # so that the run does not end before its time is over
    wait_until(lambda: slurm.seconds(job) > 125, slurm.logs, 240)  # Slurm looks at the time twice a minute
    os.kill(pid, signal.SIGCONT)
    assert slurm.wait(job, *ENDED) == "COMPLETED", output(slurm, job)
    assert output(slurm, job).count("stopped: step") == 1
    assert output(slurm, job).count(f"resuming checkpoints/job-{job} from step") == 1
    check_same(uninterrupted, f"job-{job}")


def test_sigusr1_saves_and_a_cancelled_job_saves(slurm: Slurm, tiny: list[str], saved: Callable[[str], int]) -> None:
    job = submit(slurm, tiny, 100_000)
    name = f"job-{job}"
    wait_until(lambda: trains(slurm, job), slurm.logs)
    slurm.run("scancel", "--signal=USR1", job)
    wait_until(lambda: saved(name) > 0, slurm.logs)
    first = saved(name)
    assert slurm.state(job) == "RUNNING"
    slurm.run("scancel", job)
    wait_until(lambda: "stopped: step" in output(slurm, job), slurm.logs)
    wait_until(slurm.is_idle, slurm.logs)
    assert slurm.state(job) == "CANCELLED"
    assert saved(name) > first
    assert f"stopped: step {saved(name):,} is saved in checkpoints/{name}" in output(slurm, job)
    assert "Traceback" not in output(slurm, job)


@pytest.mark.slow
def test_a_node_whose_daemon_died_leaves_a_saved_state_that_continues_when_it_is_back(
    slurm: Slurm,
    uninterrupted: str,
    tiny: list[str],
    saved: Callable[[str], int],
    check_same: Callable[[str, str], None],
) -> None:
    job = submit(slurm, tiny, 150)
    wait_until(lambda: trains(slurm, job), slurm.logs)
    pid = worker(slurm, "node2")
    os.kill(pid, signal.SIGSTOP)  # so that the run does not end before Slurm misses the daemon
    slurm.stop_node("node2")
    try:
        wait_until(lambda: "down*" in slurm.run("sinfo", "-h", "-o", "%t"), slurm.logs)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "stopped: step" in output(slurm, job), slurm.logs)
        assert 0 < saved(f"job-{job}") < 150
        assert "DUE TO NODE FAILURE" in output(slurm, job)
    finally:
        slurm.start_node("node2")
    assert slurm.wait(job, *ENDED) == "COMPLETED", output(slurm, job)
    check_same(uninterrupted, f"job-{job}")


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_job_with_one_line_and_a_saved_state(
    slurm: Slurm, tiny: list[str], saved: Callable[[str], int]
) -> None:
    job = submit(slurm, [*tiny, "--save-every", "5"], 100_000)
    wait_until(lambda: saved(f"job-{job}") > 5, slurm.logs)
    os.kill(worker(slurm, "node2"), signal.SIGKILL)
    assert slurm.wait(job, *ENDED) == "FAILED"
    (line,) = [line for line in output(slurm, job).splitlines() if line.startswith("minigpt: ")]
    assert line == (
        "minigpt: process 1 of 2 lost the connection to another one, which has ended; continue with --resume; the "
        f"state of step {saved(f'job-{job}')} is kept"
    )


@pytest.mark.slow
def test_datatrove_prepares_on_two_nodes_and_runs_a_killed_task_again(slurm: Slurm) -> None:
    pytest.importorskip("datatrove")
    texts = [f"{n} " + " ".join(random.Random(n).choices(WORDS, k=30)) for n in range(400)]
    (slurm.folder / "web").mkdir()
    for number in range(4):
        part = [*texts[100 * number : 100 * number + 100], texts[number]]
        (slurm.folder / "web" / f"{number}.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in part))
    command = [sys.executable, str(ROOT / "docs" / "launchers" / "datatrove_prepare.py"), "web"]
    options = ["--near-duplicates", "--executor", "slurm", "--partition", "normal", "--memory", "1"]
    subprocess.run([*command, "here", *options[:1]], cwd=slurm.folder, env=slurm.environment, check=True)
    prepare = slurm.hosts.command("head", *command, "tokens", *options)
    tokens = slurm.folder / "tokens"

    def tasks() -> list[int]:
        """The processes of tasks on the second node."""
        found = [(pid, Path(f"/proc/{pid}/cmdline")) for pid in slurm.hosts.pids("node2")]
        return [pid for pid, path in found if path.exists() and b"bin/launch_pickled" in path.read_bytes()]

    for is_killed in (True, False):
        done = subprocess.run(prepare, cwd=slurm.folder, env=slurm.environment, check=True, capture_output=True)
        assert done.stdout.decode() == f"submitted; when the jobs have ended: minigpt train {tokens}/*.ds\n"
        if is_killed:
            again = subprocess.run(prepare, cwd=slurm.folder, env=slurm.environment, capture_output=True)
            assert again.returncode == 1
            assert b"tokens have not ended; wait, or: scancel " in again.stderr
            wait_until(tasks, slurm.logs)
            os.kill(tasks()[0], signal.SIGKILL)
        wait_until(lambda: len(slurm.run("squeue").splitlines()) == 1, slurm.logs, 300)
        assert (tokens / "logs" / "tokens" / "completions" / "00003").exists() != is_killed
    for path in (slurm.folder / "here").glob("*.ds"):
        assert (tokens / path.name).read_bytes() == path.read_bytes()
    assert len(list(tokens.glob("*.ds"))) == 4


# Wrong input: one line, and all processes end.

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("fox.txt --steps 1$SLURM_PROCID", f"{OTHER} steps (11), and the first process has steps (10); start all"),
        slow("fox-$SLURM_PROCID.txt", f"{OTHER} text (fox-1.txt), and the first process has text (fox-0.txt); start"),
        slow("nowhere.txt", "nowhere.txt does not exist"),
        slow("fox.txt --batch-size 1", "--batch-size (1) must be at least the number of processes (2)"),
    ],
    ids=["settings", "texts", "missing", "batch"],
)
def test_processes_with_different_commands_end_with_one_line(slurm: Slurm, arguments: str, line: str) -> None:
    task = shlex.quote(f"minigpt train {arguments} --device cpu")
    job = slurm.submit("--nodes=2", "--ntasks=2", f"--wrap=srun sh -c {task}")
    assert slurm.wait(job, *ENDED) == "FAILED"
    (found,) = [line for line in output(slurm, job).splitlines() if "minigpt: " in line]
    assert found.startswith(f"minigpt: {line}")


@pytest.mark.slow
def test_a_cache_that_is_not_shared_is_reported_by_the_main_process(slurm: Slurm, tiny: list[str]) -> None:
    task = shlex.quote(
        "export MINIGPT_CACHE=/tmp/minigpt-$SLURMD_NODENAME; mkdir -p $MINIGPT_CACHE; "
        "[ $SLURM_PROCID = 0 ] && mount -t tmpfs none $MINIGPT_CACHE; "
        f"exec minigpt train {shlex.join(tiny)} --steps 5"
    )
    job = slurm.submit("--nodes=2", "--ntasks=2", f"--wrap=srun sh -c {task}")
    assert slurm.wait(job, *ENDED) == "FAILED"
    (found,) = [line for line in output(slurm, job).splitlines() if "minigpt: " in line]
    assert found.startswith("minigpt: process 2 of 2 cannot read the tokens of the text in /tmp/minigpt-node1/")
    assert "set MINIGPT_CACHE to a folder that all machines share" in found


@pytest.mark.slow
def test_a_second_job_on_a_run_is_refused_with_one_line_and_the_first_continues(
    slurm: Slurm, tiny: list[str], saved: Callable[[str], int]
) -> None:
    command = f"--wrap=srun minigpt train {shlex.join(tiny)} --steps 100000 --save-every 5 --name one --resume"
    one = slurm.submit("--nodes=2", "--ntasks=2", command)
    wait_until(lambda: saved("one") > 5, slurm.logs)
    other = slurm.submit("--nodes=2", "--ntasks=2", command)
    assert slurm.wait(other, *ENDED) == "FAILED"
    (line,) = [line for line in output(slurm, other).splitlines() if "minigpt: " in line]
    assert line.startswith("minigpt: checkpoints/one is being trained by process ")
    assert " on node1 since " in line
    step = saved("one")
    wait_until(lambda: saved("one") > step, slurm.logs)
    assert slurm.state(one) == "RUNNING"
