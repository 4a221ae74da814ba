"""Full disks and power cuts at each call that changes a run's folder: what is said to be saved can be resumed.

The processes that train are forked from one that has loaded fault_shim.c, which is this file run as a script.
docs/reference/fault-injection.md sums up the results.
"""

import ctypes
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_server import ForkServer, serve

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import MinigptError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.tensors import load_tensors
from minigpt.training.events import Finished, Notice, Saved
from minigpt.training.loop import train

SHIM = Path(__file__).parent.parent / "shared" / "fault_shim.c"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="the shim is for gcc and Linux"
)
CONFIG = TrainConfig(
    steps=4, batch_size=4, context_length=16, learning_rate=1e-2, warmup_steps=1, eval_every=2, eval_tokens=100,
    sample_every=0, save_every=1, schedule="trapezoid", cooldown=0.5, device="cpu",
)  # fmt: skip
NAMES = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "generation_config.json"}
KINDS = ("one refused call", "full disk from there on", "power cut, names lost", "power cut, names kept")

# In the process that trains.


def attempt(root: Path, writing: int, config: TrainConfig) -> None:
    """Continues the run in this folder or starts it; tells what it says, line by line."""

    def tell(**facts: Any) -> None:
        os.write(writing, json.dumps(facts).encode() + b"\n")

    corpus = Corpus.build([root.parent / "fox.txt"], "bytes", cache=root.parent / "cache")
    directory = root / "fox"
    try:
        resume = (directory / "training.json").exists()
        if resume:
            run, model = Run.open(directory), load_checkpoint(directory, "cpu").model
        else:
            model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
            run = Run.create(directory, model, corpus.tokenizer, {})
        for event in train(model, corpus, config, run, resume=resume):
            if isinstance(event, Saved) and event.what == "last":
                tell(saved=event.step)
            if isinstance(event, Notice):
                tell(said=event.text)
            if isinstance(event, Finished):
                tell(ended=event.reason, seconds=event.seconds, wall_clock=time.time())
    except MinigptError as error:
        tell(said=str(error))


# In the process that forks.


def fork(
    root: str, at: int, sticky: bool, kill: bool, snapshots: str, minutes: float | None, jumps: bool
) -> dict[str, Any]:
    """Trains in a child process with a fault; returns what it said and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            armed = ctypes.CDLL(None).fault_arm(
                os.fsencode(root), ctypes.c_long(at), int(sticky), int(kill),
                os.fsencode(f"{snapshots}/journal"), os.fsencode(snapshots),
            )  # fmt: skip
            assert armed >= 0
            if jumps:
                ctypes.CDLL(None).fault_jump_clock()
            attempt(Path(root), writing, CONFIG.replace(steps=None, minutes=minutes) if minutes else CONFIG)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = [json.loads(line) for line in pipe]
    return {"told": told, "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


# In the process that tests.


class Disk:
    """A folder of runs, the fork server that trains in it, and what a power cut leaves of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = folder, itertools.count()
        shim = folder / "shim.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, SHIM], check=True)
        (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 20)
        Corpus.build([folder / "fox.txt"], "bytes", cache=folder / "cache")
        self.server = ForkServer(__file__, LD_PRELOAD=str(shim))

    def new(self) -> Path:
        root = self.folder / f"checkpoints-{next(self.numbers)}"
        root.mkdir()
        return root

    def train(
        self, root: Path, at: int = 0, *, kind: str = "", minutes: float | None = None, jumps: bool = False
    ) -> dict[str, Any]:
        """Trains with a fault of this kind at the call with this number; returns what it said and its journal."""
        snapshots = Path(tempfile.mkdtemp(dir=self.folder))
        power_cut = kind.startswith("power cut")
        answer = self.server.ask(
            root=str(root), at=at, sticky=kind == "full disk from there on", kill=power_cut,
            snapshots=str(snapshots), minutes=minutes, jumps=jumps,
        )  # fmt: skip
        answer["journal"] = (snapshots / "journal").read_text().splitlines()
        if power_cut and at:
            self.cut_power(root, snapshots, keeps_names="kept" in kind)
        shutil.rmtree(snapshots)
        answer["saved"] = max((each["saved"] for each in answer["told"] if "saved" in each), default=-2)
        answer["said"] = [each["said"] for each in answer["told"] if "said" in each]
        return answer

    def cut_power(self, root: Path, snapshots: Path, *, keeps_names: bool) -> None:
        """Drops what was not flushed: the content of files and, unless `keeps_names`, the names in folders."""
        after = root.with_name(f"{root.name}-after")
        self.restore(root, root.stat().st_ino, after, snapshots, keeps_names=keeps_names)
        shutil.rmtree(root)
        after.rename(root)

    def restore(self, real: Path | None, inode: int, target: Path, snapshots: Path, *, keeps_names: bool) -> None:
        target.mkdir()
        listing = snapshots / f"d{inode}"
        if keeps_names and real is not None:
            entries = [(path.stat().st_ino, path.is_dir(), path.name) for path in real.iterdir()]
        else:
            lines = [line.split(" ", 2) for line in listing.read_text().splitlines()] if listing.exists() else []
            entries = [(int(number), is_folder == "1", name) for number, is_folder, name in lines]
        for number, is_folder, name in entries:
            below = real / name if real is not None else None
            if is_folder:
                self.restore(below, number, target / name, snapshots, keeps_names=keeps_names)
            else:
                flushed = snapshots / f"f{number}"
                (target / name).write_bytes(flushed.read_bytes() if flushed.exists() else b"")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    made = Disk(tmp_path_factory.mktemp("disk"))
    yield made
    made.server.close()


def saved_step(root: Path) -> int:
    """The step that can be resumed; -1 if the run has no state, -2 if there is no run."""
    if not (root / "fox").exists():
        return -2
    progress = Run.open(root / "fox").last_progress()
    return -1 if progress is None else int(progress["step"])


def final_weights(root: Path) -> dict[str, Any]:
    tensors, _ = load_tensors(root / "fox" / "last" / "state.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items() if name.startswith(("model.", "optimizer."))}


def check(disk: Disk, at: int, kind: str, expected: dict[str, Any]) -> None:
    """Trains with a fault, checks what is left, and resumes."""
    root = disk.new()
    told = disk.train(root, at, kind=kind)
    where = (at, kind, told["journal"][at - 1], told["said"])
    resumable = saved_step(root)
    assert resumable >= told["saved"], where
    for text in told["said"]:
        assert "\n" not in text, where
        for step in re.findall(r"the state of step (\d+) is kept", text):
            assert resumable >= int(step), where
    again = disk.train(root)
    assert again["told"][-1].get("ended") == "length", (*where, again["said"])
    assert final_weights(root) == expected, where
    assert list((root / "fox").rglob(".*.tmp")) == [], where


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_to_be_saved_can_be_resumed_after_a_fault(disk: Disk, kind: str, every: int) -> None:
    whole = disk.new()
    n_calls = len(disk.train(whole)["journal"])
    expected = final_weights(whole)
    assert n_calls > 100
    for at in range(1 + KINDS.index(kind), n_calls + 1, every):
        check(disk, at, kind, expected)


def test_the_simulated_power_cut_drops_what_was_not_flushed(disk: Disk) -> None:
    """Without flushing, the simulation finds a lost state, so that the other test can fail."""
    root = disk.new()
    journal = disk.train(root)["journal"]
    (fsync, *_) = [number for number, line in enumerate(journal, 1) if re.search(r"fsync .*\.state\.safetensors", line)]
    root = disk.new()
    disk.train(root, fsync, kind="power cut, names kept")
    left = [path for path in (root / "fox" / "last").iterdir() if path.name.startswith(".state.safetensors")]
    assert [path.stat().st_size for path in left] == [0]


def test_a_budget_in_minutes_does_not_follow_a_wall_clock_that_jumps(disk: Disk) -> None:
    root = disk.new()
    ended = [disk.train(root, minutes=minutes, jumps=True)["told"][-1] for minutes in (0.02, 0.04)]
    assert [each["ended"] for each in ended] == ["length", "length"]
    assert 0 < ended[0]["seconds"] < ended[1]["seconds"] < 3600
    assert abs(ended[0]["wall_clock"] - time.time()) > 80_000  # the clock did jump


if __name__ == "__main__":
    serve(fork)
