"""Several real processes over gloo against one process: losses, figures, weights, and runs that change processes.

This file is also the program of those processes: `python test_distributed.py FOLDER` trains every case in
FOLDER/cases.json in the world that the environment describes, and the main process writes the results.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.chat_logs.settings import ChatLogSettings
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.distributed.launchers import environment_of
from minigpt.distributed.process_group import ProcessGroup, init_world, local_device
from minigpt.errors import CheckpointError, ConfigError, DeviceError
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.training.clock import Control
from minigpt.training.events import Evaluation, Finished, Sample, Saved, Step
from minigpt.training.loop import train
from minigpt.training.world import World

TEXT = "the quick brown fox jumps over the lazy dog; " * 60
SHAPE = {"vocab_size": 262, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
SETTINGS = {"warmup_steps": 2, "learning_rate": 3e-3, "eval_every": 10, "eval_tokens": 200, "device": "cpu"}

# What is trained: the settings, the model's dropout, the run's folder, whether it resumes, the step to stop at, and how
# many saves of best weights the disk refuses first, and in which dtype sharded weights are gathered.
Case = dict[str, Any]


def case(
    run: str | None = None,
    stop: int | None = None,
    resume: bool = False,
    refused: int = 0,
    dropout: float = 0.0,
    gathered: str = "float32",
    **settings: Any,
) -> Case:
    base = {"sample_every": 0, "sharding": "off", **SETTINGS, **settings}
    others = {"resume": resume, "refused": refused, "dropout": dropout, "gathered": gathered}
    return {"run": run, "stop": stop, **others, "settings": base}


def refuse(run: Run, times: int) -> None:
    """Makes the disk refuse the next saves of best weights."""
    save = run.save_best

    def refusing(*weights: Any) -> Path:
        nonlocal times
        times -= 1
        if times >= 0:
            raise CheckpointError("no space left on device")
        return save(*weights)

    run.save_best = refusing  # type: ignore[method-assign]


def result(case: Case, folder: Path, world: World) -> dict[str, Any]:
    """Trains a case; returns its events as plain values."""
    config = TrainConfig(**case["settings"])
    text = "fox.txt" if ChatLogSettings.of(config).loss_on == "all" else "log.jsonl"
    corpus = Corpus.build([folder / text], "bpe:262", cache=folder / "cache")
    torch.manual_seed(world.rank)  # only the initial weights of the main process are used
    model = GPT(GPTConfig(**SHAPE, dropout=case["dropout"]))
    apply_fine_tuning(model, config)
    if isinstance(world, ProcessGroup):
        world.gathered = getattr(torch, case["gathered"])
    control, run = Control(), None
    if case["run"] and world.is_main:
        path = folder / case["run"]
        run = Run.open(path) if case["resume"] else Run.create(path, model, corpus.tokenizer, {})
        refuse(run, case["refused"])
    found: dict[str, Any] = {"losses": [], "figures": [], "saved": [], "sample": None}
    for event in train(model, corpus, config, run, resume=case["resume"], control=control, world=world):
        if isinstance(event, Step):
            found["losses"].append(event.loss)
            control.stop = (
                event.step == case["stop"] and world.rank == world.size - 1
            )  # one process requests it, all stop
        elif isinstance(event, Evaluation):
            found["figures"] += [event.validation_loss, event.bits_per_byte]
        elif isinstance(event, Sample):
            found["sample"] = event.text
        elif isinstance(event, Saved):
            found["saved"].append([event.what, event.step])
        elif isinstance(event, Finished):
            found["figures"] += [event.validation_loss, event.bits_per_byte, event.validation_tokens]
    with world.unsharded(model):
        found["dtypes"] = {name: str(weight.dtype) for name, weight in model.named_parameters()}
    return found


def results_of(cases: dict[str, Case], folder: Path, world: World) -> dict[str, Any]:
    return {name: result(case, folder, world) for name, case in cases.items()}


def on_processes(count: int, cases: dict[str, Case], folder: Path) -> dict[str, Any]:
    """The results of the cases on so many processes."""
    (folder / "cases.json").write_text(json.dumps(cases))
    errors = folder / "errors.txt"
    with errors.open("w") as file:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(folder)],
                env=os.environ | environment_of(rank, count, folder / "store") | {"OMP_NUM_THREADS": "1"},
                stderr=file,
            )
            for rank in range(count)
        ]
    try:
        for process in processes:
            assert process.wait(timeout=300) == 0, errors.read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert errors.read_text() == ""  # and no warning
    return json.loads((folder / "results.json").read_text())


def new_folder(path: Path) -> Path:
    (path / "fox.txt").write_text(TEXT)
    roles = [("user", "the quick brown fox jumps " * 4), ("assistant", "the lazy dog")]
    conversation = json.dumps([{"role": role, "content": content} for role, content in roles])
    (path / "log.jsonl").write_text(f"{conversation}\n" * 40)
    return path


def check_equal(several: dict[str, Any], one: dict[str, Any]) -> None:
    assert one["losses"]
    assert several["losses"] == pytest.approx(one["losses"], abs=1e-5, nan_ok=True)
    assert several["figures"] == pytest.approx(one["figures"], abs=1e-5)
    assert several["sample"] == one["sample"]
    assert several["saved"] == one["saved"]


# Two processes, which are started once.

TWO = {
    "DDP, accumulated, with dropout": case(
        steps=50,
        batch_size=8,
        micro_batch_size=2,
        dropout=0.1,
        token_noise=0.2,
        bpe_dropout=0.2,
        sampled_softmax=60,
        sample_every=25,
        spelling_features=True,
    ),
    "sharded, uneven": case(
        steps=50, batch_size=7, micro_batch_size=3, sharding="on", sampled_softmax=60, sample_every=25
    ),
    "an adapter and the embedding": case(
        steps=20,
        batch_size=7,
        micro_batch_size=2,
        lora=True,
        lora_rank=3,
        lora_embedding=True,
        dropout=0.1,
        lora_dropout=0.1,
    ),
    "an adapter of an int8 model": case(steps=20, batch_size=8, lora=True, lora_rank=3, base_dtype="int8"),
    "sharded, failing saves": case(
        run="refused", steps=9, batch_size=4, eval_every=3, save_every=100, sharding="on", refused=2
    ),
    **{
        f"sharded, gathered in {dtype}": case(
            steps=10,
            batch_size=7,
            micro_batch_size=3,
            sharding="on",
            dtype="bfloat16",
            gathered=dtype,
            sample_every=5,
            checkpoint_activations="on",
        )
        for dtype in ("float32", "bfloat16")
    },
    "DDP, steps without a scored token": case(steps=30, batch_size=2, loss_on="assistant"),
    "sharded, steps without a scored token": case(steps=30, batch_size=2, loss_on="assistant", sharding="on"),
    "started with DDP": case(run="started with DDP", stop=7, steps=20, batch_size=7),
    "started sharded": case(run="started sharded", stop=7, steps=20, batch_size=7, sharding="on"),
}
CONTINUED = {
    "finished with DDP": case(run="finished with DDP", resume=True, steps=20, batch_size=7),
    "finished sharded": case(run="finished sharded", resume=True, steps=20, batch_size=7, sharding="on"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_folder(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> dict[str, Any]:
    return result(case(run="uninterrupted", steps=20, batch_size=7), folder, World())


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Any]:
    for continued in CONTINUED.values():
        result({**continued, "resume": False, "stop": 7}, folder, World())
    return on_processes(2, TWO | CONTINUED, folder)


@pytest.mark.parametrize(
    "name",
    [
        "DDP, accumulated, with dropout",
        "sharded, uneven",
        "an adapter and the embedding",
        "an adapter of an int8 model",
        "DDP, steps without a scored token",
        "sharded, steps without a scored token",
    ],
)
def test_two_processes_train_like_one(two: dict[str, Any], folder: Path, name: str) -> None:
    one = result(TWO[name], folder, World())
    check_equal(two[name], one)
    assert any(map(math.isnan, one["losses"])) == ("without a scored token" in name)


def test_weights_that_are_gathered_in_bfloat16_give_the_same_bits(two: dict[str, Any]) -> None:
    one, other = two["sharded, gathered in float32"], two["sharded, gathered in bfloat16"]
    assert other["losses"] == one["losses"]
    assert other["figures"] == pytest.approx(one["figures"], abs=1e-3)
    assert other["sample"]
    assert set(one["dtypes"].values()) == {"torch.float32"}
    for name, dtype in other["dtypes"].items():
        assert dtype == ("torch.bfloat16" if "_proj" in name else "torch.float32")


def test_all_processes_know_of_a_failed_save(two: dict[str, Any], folder: Path) -> None:
    refused = two["sharded, failing saves"]
    assert refused["saved"] == [["last", 0], ["best", 6], ["last", 6], ["best", 9], ["last", 9]]
    check_equal(refused, result({**TWO["sharded, failing saves"], "run": "refused to one"}, folder, World()))


@pytest.mark.parametrize("name", ["started with DDP", "started sharded"])
def test_one_process_continues_a_run_of_two(
    two: dict[str, Any], uninterrupted: dict[str, Any], folder: Path, name: str
) -> None:
    assert two[name]["saved"][-1] == ["last", 7]
    rest = result({**TWO[name], "stop": None, "resume": True}, folder, World())
    assert two[name]["losses"] + rest["losses"] == pytest.approx(uninterrupted["losses"], abs=1e-5)
    assert rest["figures"][-3:] == pytest.approx(uninterrupted["figures"][-3:], abs=1e-5)


@pytest.mark.parametrize("name", ["finished with DDP", "finished sharded"])
def test_two_processes_continue_a_run_of_one(two: dict[str, Any], uninterrupted: dict[str, Any], name: str) -> None:
    assert two[name]["losses"] == pytest.approx(uninterrupted["losses"][7:], abs=1e-5)
    assert two[name]["figures"][-3:] == pytest.approx(uninterrupted["figures"][-3:], abs=1e-5)


def test_a_state_does_not_depend_on_the_number_of_processes(
    two: dict[str, Any], uninterrupted: dict[str, Any], folder: Path
) -> None:
    expected = Run.open(folder / "uninterrupted").load_last()
    for name in CONTINUED:
        state = Run.open(folder / name).load_last()
        assert expected is not None
        assert state is not None
        assert state.tensors.keys() == expected.tensors.keys()
        for key, tensor in expected.tensors.items():
            assert state.tensors[key].dtype == tensor.dtype
            torch.testing.assert_close(state.tensors[key], tensor, rtol=0, atol=1e-4)


# Three processes, in all ways to train.

THREE = (
    {
        f"{optimizer}, sharding {sharding}, micro-batches of {micro}": case(
            steps=50, batch_size=7, micro_batch_size=micro, optimizer=optimizer, sharding=sharding
        )
        for optimizer in ("muon", "adamw")
        for sharding in ("off", "on")
        for micro in (1, None)
    }
    | {"DDP and checkpointing": case(steps=10, batch_size=7, checkpoint_activations="on")}
    | {"sharded and checkpointing": case(steps=10, batch_size=7, checkpoint_activations="on", sharding="on")}
)


@pytest.mark.slow
def test_three_processes_train_like_one(tmp_path: Path) -> None:
    new_folder(tmp_path)
    several, one = on_processes(3, THREE, tmp_path), results_of(THREE, tmp_path, World())
    for name in THREE:
        check_equal(several[name], one[name])


@pytest.mark.gpu
def test_several_gpus_train_like_one_process(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"{count} GPU")
    new_folder(tmp_path)
    cases = {
        f"{optimizer}, sharding {sharding}": case(
            steps=20, batch_size=count + 1, optimizer=optimizer, sharding=sharding, device="cuda", dtype="float32",
            compile="off",
        )
        for optimizer in ("muon", "adamw")
        for sharding in ("off", "on")
    }  # fmt: skip
    several, one = on_processes(count, cases, tmp_path), results_of(cases, tmp_path, World())
    for name in cases:
        assert several[name]["losses"] == pytest.approx(one[name]["losses"], abs=0.02)


# Processes and devices.


def test_a_single_process_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    world = init_world()
    assert (world.rank, world.size, world.is_main) == (0, 1, True)


@pytest.mark.parametrize("missing", ["RANK", "MASTER_PORT"])
def test_a_missing_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=rf"the environment variable {missing} \(absent\) must be a number"):
        init_world()


@pytest.mark.parametrize("settings", [{"lora": True}, {"freeze": 1}, {"distill": "on"}])
def test_settings_that_cannot_be_sharded_are_refused_with_sharding(settings: dict[str, Any]) -> None:
    TrainConfig(**settings, sharding="auto")
    with pytest.raises(ConfigError, match=r"cannot be combined with sharding \(on\); omit one of them$"):
        TrainConfig(**settings, sharding="on")


def test_every_process_has_a_different_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [local_device("auto", 2, rank) for rank in (0, 1)] == [torch.device("cuda:0"), torch.device("cuda:1")]
    with pytest.raises(DeviceError, match=r"devices \(3\) must be at most 2, the cuda devices of this machine"):
        local_device("cuda", 3)
    with pytest.raises(ConfigError, match=r"device \('cuda:1'\) is a single device; give cuda"):
        local_device("cuda:1", 2)


def main(folder: Path) -> None:
    world = init_world()
    results = results_of(json.loads((folder / "cases.json").read_text()), folder, world)
    if world.is_main:
        (folder / "results.json").write_text(json.dumps(results))
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
