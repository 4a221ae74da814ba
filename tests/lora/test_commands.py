"""`minigpt train --lora`: an adapter is trained, resumed, opened by every command and merged; the rest is refused."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import new_model
from click.testing import Result

from minigpt.exporters import export as exporting
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.run import Run as RunFolder
from minigpt.storage.tensors import load_tensors, save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

Run = Callable[..., Result]


FOX, LETTERS = Path("checkpoints/fox"), Path("checkpoints/letters")
LORA = ["letters.txt", "--from", "fox", "--lora", "--lora-rank", "3", "--context-length", "16", "--batch-size", "4",
        "--steps", "6", "--eval-every", "3", "--device", "cpu", "--dtype", "float32", "--dropout", "0.1",
        "--lora-dropout", "0.1"]  # fmt: skip


@pytest.fixture
def base(finished: Path, here: Path) -> None:
    """The base model and a text in the current folder."""
    shutil.copytree(finished / "checkpoints", here / "checkpoints")
    Path("letters.txt").write_text("dear friend, the fox is well and sends its regards; " * 40)


@pytest.fixture
def letters(base: None, run: Run) -> None:
    """A finished run of an adapter, `checkpoints/letters`."""
    done = run("train", *LORA)
    assert done.exit_code == 0, done.output


def config_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "adapter_config.json").read_text())


def test_the_run_is_a_folder_of_peft(letters: None) -> None:
    assert not (LETTERS / "model.safetensors").exists()
    config = config_of(LETTERS)
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == ("LORA", 3, 32, True)
    assert config["base_model_name_or_path"] == str(FOX.resolve())
    tensors, metadata = load_tensors(LETTERS / "adapter_model.safetensors")
    names = {name.removeprefix("base_model.model.") for name in tensors}
    assert {name for name in names if ".lora_" not in name} == {"transformer.wte.weight", "lm_head.weight"}
    assert len(names) == 2 * 4 + 2  # two matrices for each of the four of one block
    assert (config["modules_to_save"], config["ensure_weight_tying"]) == (["wte", "lm_head"], True)
    assert len(metadata["base_sha256"]) == 64
    states, _ = load_tensors(LETTERS / "last" / "state.safetensors")
    assert sum(tensor.numel() for name, tensor in states.items() if name.startswith("model.")) == sum(
        tensor.numel() for name, tensor in tensors.items() if not name.endswith("lm_head.weight")
    ), "the base model is not saved again"
    card = (LETTERS / "README.md").read_text()
    assert "library_name: peft" in card
    assert "An adapter (LoRA, rank 3, with the token embedding) of `fox`" in card


def test_the_embedding_stays_as_it_was_if_it_is_not_to_be_trained(base: None, run: Run) -> None:
    plans = [run("train", *LORA, "--plan", *options).stdout for options in ([], ["--no-lora-embedding"])]
    assert ["and the token embedding" in plan for plan in plans] == [True, False]
    assert run("train", *LORA, "--no-lora-embedding").exit_code == 0
    tensors, _ = load_tensors(LETTERS / "adapter_model.safetensors")
    assert len(tensors) == 2 * 4
    assert config_of(LETTERS)["modules_to_save"] is None
    assert json.loads(run("info", "letters", "--json").stdout)["adapter"]["replaced"] == []


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_trained_embedding_is_that_of_the_merged_model(base: None, run: Run, dtype: str) -> None:
    assert run("train", *LORA, "--base-dtype", dtype).exit_code == 0
    assert run("merge", "letters").exit_code == 0
    before, _ = load_tensors(FOX / "model.safetensors")
    adapter, _ = load_tensors(LETTERS / "adapter_model.safetensors")
    after, _ = load_tensors(Path("checkpoints/letters-merged/model.safetensors"))
    name = "transformer.wte.weight"
    assert after[name].equal(adapter[f"base_model.model.{name}"])
    assert not after[name].equal(before[name])


def kept(directory: Path) -> dict[str, Any]:
    tensors = {
        f"{name}: {key}": value.flatten().tolist()
        for name in ("adapter_model.safetensors", "last/state.safetensors")
        for key, value in load_tensors(directory / name)[0].items()
    }
    losses = [(line["step"], line["loss"]) for line in RunFolder.open(directory).read_log() if "loss" in line]
    return tensors | {"losses": losses}


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(base: None, run: Run) -> None:
    options = [*LORA, "--schedule", "constant", "--warmup-steps", "1"]
    assert run("train", *options, "--name", "whole").exit_code == 0
    parts = [option if option != "6" else "3" for option in options]
    assert run("train", *parts, "--name", "parts").exit_code == 0
    resumed = run("train", "--resume", "--name", "parts", "--steps", "6")
    assert resumed.exit_code == 0, resumed.output
    assert kept(Path("checkpoints/parts")) == kept(Path("checkpoints/whole"))


def test_the_base_model_may_be_compressed_and_the_run_resumed(base: None, run: Run) -> None:
    options = [*LORA, "--schedule", "constant", "--warmup-steps", "1", "--base-dtype", "int8"]
    assert run("train", *options, "--name", "whole").exit_code == 0
    assert run("train", *[option if option != "6" else "3" for option in options], "--name", "parts").exit_code == 0
    assert run("train", "--resume", "--name", "parts", "--steps", "6").exit_code == 0
    assert kept(Path("checkpoints/parts")) == kept(Path("checkpoints/whole"))
    assert run("train", *LORA, "--schedule", "constant", "--warmup-steps", "1", "--name", "exact").exit_code == 0
    assert kept(Path("checkpoints/exact")) != kept(Path("checkpoints/whole")), "the weights are rounded"


def test_the_micro_batch_size_is_not_free_if_only_the_adapter_has_dropout(base: None, run: Run) -> None:
    options = [*LORA, "--dropout", "0"]
    assert run("train", *options).exit_code == 0
    assert run("train", *options, "--lora-dropout", "0", "--name", "without").exit_code == 0
    more = ["train", "--resume", "--steps", "7", "--micro-batch-size", "2", "--name"]
    refused = run(*more, "letters")
    assert refused.exit_code == 1
    assert "--micro-batch-size (2) cannot change on --resume without --allow-change" in refused.stderr
    assert run(*more, "letters", "--allow-change").exit_code == 0
    assert [change.option for change in RunFolder.open(LETTERS).record.changes] == ["micro_batch_size"]
    assert run(*more, "without").exit_code == 0
    assert not RunFolder.open(LETTERS.with_name("without")).record.changes


def test_a_run_with_damaged_best_weights_is_resumed_from_its_state(letters: None, run: Run) -> None:
    (LETTERS / "adapter_model.safetensors").write_bytes(b"")
    resumed = run("train", "--resume", "--name", "letters", "--steps", "9")
    assert resumed.exit_code == 0, resumed.output
    assert run("generate", "the", "--model", "letters", "--max-new-tokens", "2").exit_code == 0


@pytest.mark.parametrize(
    "change",
    [
        ["--lora-rank", "4", "--lora"],
        ["--no-lora"],
        ["--freeze", "0", "--lora-targets", "qkv_proj", "--lora"],
        ["--no-lora-embedding", "--lora"],
    ],
)
def test_the_adapter_cannot_change_on_resume(letters: None, run: Run, change: list[str]) -> None:
    before = kept(LETTERS)
    refused = run("train", "--resume", "--name", "letters", "--steps", "9", "--allow-change", *change)
    assert refused.exit_code == 1
    assert "cannot change on --resume" in refused.stderr
    assert kept(LETTERS) == before


def test_every_command_opens_the_run(letters: None, run: Run) -> None:
    assert "with the base model" in " ".join(run("info", "letters").stdout.split())
    assert json.loads(run("info", "letters", "--json").stdout)["adapter"] == {
        "base": str(FOX.resolve()), "rank": 3, "alpha": 32.0, "layers": 4,
        "parameters": 3 * (16 + 48 + 16 + 16 + 16 + 64 + 64 + 16) + 257 * 16, "replaced": ["wte.weight"],
    }  # fmt: skip
    assert "it replaces the base's wte.weight" in " ".join(run("info", "letters").stdout.split())
    held_out = run("evaluate", "letters", "--held-out")
    assert held_out.exit_code == 0, held_out.output
    last = RunFolder.open(LETTERS).record.result
    assert f"{last.bits_per_byte:.3f}"[:4] in held_out.stdout
    assert "letters.txt" in run("list").stdout
    for command in (["inspect", "letters", "the fox"], ["evaluate", "letters", "fox.txt"]):
        assert run(*command).exit_code == 0, command
    assert run("play", "letters", stdin="").exit_code == 0


def test_an_adapter_is_added_to_a_model_by_name(letters: None, run: Run) -> None:
    options = ["the", "--temperature", "0", "--max-new-tokens", "12"]
    by_run = run("generate", *options, "--model", "letters")
    assert by_run.exit_code == 0, by_run.output
    assert run("generate", *options, "--adapter", "letters").stdout == by_run.stdout
    assert run("generate", *options, "--adapter", str(LETTERS), "--model", "fox").stdout == by_run.stdout
    refused = run("generate", *options, "--adapter", "fox")
    assert refused.stderr == "minigpt: --adapter (fox) is a whole model, not an adapter; give it as --model\n"


def test_merging_gives_a_whole_model_that_continues_in_the_same_way(letters: None, run: Run) -> None:
    merged = run("merge", "letters")
    assert merged.exit_code == 0, merged.output
    assert merged.stdout == "minigpt generate 'Once upon a time' --model letters-merged\n"
    options = ["the", "--temperature", "0", "--max-new-tokens", "12"]
    assert (
        run("generate", *options, "--model", "letters-merged").stdout
        == run("generate", *options, "--model", "letters").stdout
    )
    again = run("merge", "letters")
    assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
    assert "may be merged already" in again.stderr
    assert run("merge", "letters-merged").stderr == (
        "minigpt: checkpoints/letters-merged is a whole model, so there is no adapter to merge\n"
    )


def test_a_merged_adapter_can_be_adapted_again_and_an_unmerged_one_not(
    letters: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run("train", *[option if option != "fox" else "letters" for option in LORA], "--name", "second")
    message = "minigpt: --from (letters) is an adapter itself; merge it first: minigpt merge letters\n"
    assert refused.stderr.endswith(message)
    with monkeypatch.context() as context:  # also if all weights were to be trained, and do not fit
        context.setattr("minigpt.device.free_memory", lambda _: 120_000)
        refused = run(
            "train", "letters.txt", "--from", "letters", "--steps", "2", "--device", "cpu", "--name", "second"
        )
    assert (refused.exit_code, refused.stderr.endswith(message)) == (1, True)
    assert not Path("checkpoints/second").exists()
    run("merge", "letters")
    again = run("train", *[option if option != "fox" else "letters-merged" for option in LORA], "--name", "second")
    assert again.exit_code == 0, again.output


def test_a_base_model_that_is_missing_or_has_changed_is_one_line(letters: None, run: Run) -> None:
    weights = FOX / "model.safetensors"
    run("train", "fox.txt", "--resume", "--name", "fox", "--steps", "12")
    for command in (["generate", "the", "--model", "letters"], ["merge", "letters"],
                    ["train", "--resume", "--name", "letters", "--steps", "9"]):  # fmt: skip
        changed = run(*command)
        assert (changed.exit_code, changed.stderr.count("\n")) == (1, 1), command
        assert "it has changed since: the hash of its weights differs" in changed.stderr
    shutil.rmtree(FOX)
    missing = run("generate", "the", "--model", "letters")
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    assert f"is an adapter of {FOX.resolve()}, which does not exist" in missing.stderr
    assert not weights.exists()


def mark_as_downloaded(folder: Path, repository: str) -> None:
    """Makes a folder one that was imported from a repository of the hub."""
    tensors, metadata = load_tensors(folder / "model.safetensors")
    save_tensors(folder / "model.safetensors", tensors, metadata | {"source": f"{repository}@0"})


def test_a_base_that_was_imported_from_the_hub_under_another_name_is_found(base: None, run: Run) -> None:
    mark_as_downloaded(FOX, "someone/gpt")
    save_checkpoint("checkpoints/gpt", new_model(n_embd=16, n_layer=1), Tokenizer.named("bytes"))
    assert run("train", *LORA).exit_code == 0
    assert config_of(LETTERS)["base_model_name_or_path"] == "someone/gpt"
    for command in (["generate", "the", "--model", "letters", "--max-new-tokens", "2"], ["merge", "letters"],
                    ["train", "--resume", "--name", "letters", "--steps", "9"]):  # fmt: skip
        done = run(*command)
        assert done.exit_code == 0, done.output
    shutil.rmtree("checkpoints/gpt")
    shutil.rmtree(FOX)
    missing = run("generate", "the", "--model", "letters")
    assert "is an adapter of 'someone/gpt', which is not here; get it with `minigpt load-gpt2 " in missing.stderr


def test_an_adapter_of_a_model_with_another_scale_of_the_attention_names_its_import(base: None, run: Run) -> None:
    config = json.loads((FOX / "config.json").read_text())
    (FOX / "config.json").write_text(json.dumps(config | {"scale_attn_weights": False}))
    refused = run("train", *LORA)
    assert "--from (fox) scales its attention differently from GPT-2, and peft would apply" in refused.stderr
    assert not LETTERS.exists()
    assert run("load-gpt2", str(FOX), "--name", "copy").exit_code == 0
    mark_as_downloaded(copy := FOX.with_name("copy"), "someone/gpt")
    trained = run("train", *[option if option != "fox" else "copy" for option in LORA])
    assert trained.exit_code == 0, trained.output
    assert config_of(LETTERS)["base_model_name_or_path"] == str(copy.resolve())
    assert run("generate", "the", "--model", "letters", "--max-new-tokens", "2").exit_code == 0


def test_the_base_of_an_adapter_elsewhere_is_found_in_the_checkpoints(
    base: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr(exporting, "_MAX_SIZE_FOR_LLAMA", 0)  # llama.cpp takes seconds
    assert run("train", *LORA, "--no-lora-embedding").exit_code == 0
    (LETTERS / "training.json").unlink()
    config = config_of(LETTERS) | {"base_model_name_or_path": "someone/fox"}
    (LETTERS / "adapter_config.json").write_text(json.dumps(config))
    Path("adapters").mkdir()
    shutil.move(LETTERS, "adapters/letters")
    shutil.move("checkpoints", "models")
    elsewhere = ["--checkpoints", "models"]
    about = run("info", "adapters/letters", *elsewhere)
    assert about.exit_code == 0, about.output
    exported = run("export", "adapters/letters", *elsewhere)
    assert exported.exit_code == 0, exported.output
    found = re.search(r"llama.cpp adds it to its base model: minigpt (export fox .*)\n", exported.stderr)
    assert found is not None
    assert run(*shlex.split(found[1])).exit_code == 0
    assert Path("base.gguf").exists()


def test_lora_is_chosen_only_where_training_all_weights_does_not_fit_and_that_is_said(
    base: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["letters.txt", "--from", "fox", "--steps", "2", "--device", "cpu", "--dtype", "float32"]
    assert "LoRA" not in run("train", *options, "--plan").stdout
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: 120_000)
    planned = run("train", *options, "--plan")
    assert planned.exit_code == 0, planned.output
    assert "an adapter (LoRA) of rank 16" in planned.stdout
    output = " ".join(planned.output.split())
    assert "only an adapter of rank 16 is trained (--lora): training all weights takes about" in output
    assert "the token embedding is not trained with the adapter, to fit into memory (--lora-embedding)" in output
    assert "rank 16 and the token embedding" not in output
    refused = run("train", *options, "--no-lora")
    assert refused.exit_code == 1
    assert "GB are free" in refused.stderr


def test_frozen_blocks_and_embeddings_stay_as_they_were(base: None, run: Run) -> None:
    assert run("train", "fox.txt", "--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--tokenizer", "bytes",
               "--steps", "2", "--device", "cpu", "--name", "two").exit_code == 0  # fmt: skip
    frozen = run("train", "letters.txt", "--from", "two", "--freeze", "1", "--steps", "3", "--device", "cpu",
                 "--learning-rate", "0.01", "--name", "upper")  # fmt: skip
    assert frozen.exit_code == 0, frozen.output
    before, _ = load_tensors(Path("checkpoints/two/model.safetensors"))
    after, _ = load_tensors(Path("checkpoints/upper/model.safetensors"))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(".h.1." in name or ".ln_f." in name for name in changed)
