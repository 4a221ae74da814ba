"""LoRA adapters of peft open here and those of minigpt open in peft, with the same logits; damaged ones are refused."""

import copy
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_run, random_model
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters.export import export_model
from minigpt.exporters.gguf import write_gguf_adapter
from minigpt.importers.gguf_file import GgufFile
from minigpt.lora.adapter import weights_hash
from minigpt.lora.adapter_format import merge_adapter
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.lora.layers import lora_layers
from minigpt.lora.peft import read_adapter
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import import_gpt2
from minigpt.pretrained.open_model import describe_model, load_model
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.storage.tensors import load_tensors, save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

SHAPES = {
    "odd": GPTConfig(vocab_size=257, n_positions=17, n_embd=21, n_layer=3, n_head=7, dropout=0.0),
    "one block": GPTConfig(vocab_size=263, n_positions=9, n_embd=10, n_layer=1, n_head=1, dropout=0.0),
}
ALL = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
OF_PEFT: dict[str, dict[str, Any]] = {
    "peft's default": {"target_modules": ["c_attn"]},
    "every layer": {"target_modules": ["c_attn", "c_proj", "c_fc"]},
    "one matrix": {"target_modules": ["mlp.c_proj"], "r": 1, "lora_alpha": 3},
    "a pattern as target": {"target_modules": r".*\.h\.0\.(attn|mlp)\.c_proj"},
    "some blocks": {"target_modules": ALL, "layers_to_transform": [0], "layers_pattern": "h"},
    "ranks": {"target_modules": ALL, "rank_pattern": {"attn.c_attn": 2, r"h\.0\.mlp\.c_proj": 5}},
    "alphas": {"target_modules": ALL, "alpha_pattern": {"c_fc": 1, "^transformer.h.0.attn.c_proj": 40}},
    "ranks, alphas and rsLoRA": {
        "target_modules": ALL, "rank_pattern": {"c_proj": 7}, "alpha_pattern": {"c_proj": 3}, "use_rslora": True,
    },
    "rsLoRA": {"target_modules": ALL, "use_rslora": True},
    "DoRA": {"target_modules": ALL, "use_dora": True},
    "all biases": {"target_modules": ["c_attn"], "bias": "all"},
    "biases of the adapted layers": {"target_modules": ALL, "bias": "lora_only"},
    "whole modules": {"target_modules": ["c_attn"], "modules_to_save": ["ln_f", "wpe", "ln_1", "mlp.c_fc"]},
    "modules of modules": {"target_modules": ["c_attn"], "modules_to_save": ["mlp"]},
    "the embedding": {"target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"], "ensure_weight_tying": True},
    "without fan_in_fan_out": {"target_modules": ["c_attn"], "fan_in_fan_out": False},
}  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_base(tmp_path / "base")


def save_base(folder: Path, shape: GPTConfig = SHAPES["odd"], seed: int = 0) -> Path:
    return save_checkpoint(folder, random_model(shape, seed=seed, std=0.15), Tokenizer.named("bytes"))


def ids_for(shape: GPTConfig) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(257, (2, shape.n_positions), generator=generator)


def adapted(base: Path, **settings: Any) -> GPT:
    """A model with an adapter whose matrices are random, in eval mode."""
    model = load_checkpoint(base, "cpu").model
    apply_fine_tuning(model, TrainConfig(lora=True, **settings))
    generator = torch.Generator().manual_seed(2)
    for _, layer in lora_layers(model):
        layer.lora_a.data.normal_(0, 0.3, generator=generator)
        layer.lora_b.data.normal_(0, 0.3, generator=generator)
    if settings.get("lora_embedding"):
        model.token_embedding.weight.data.normal_(0, 0.3, generator=generator)
    return model.eval()


def save_adapted(folder: Path, base: Path, model: GPT) -> Path:
    """The folder of a run that trains this adapter."""
    named = {"name": str(base), "sha256": weights_hash(load_checkpoint(base, "cpu").model)}
    return new_run(folder, model, "bytes", {"adapter_base": named}).directory


# peft


@pytest.fixture
def peft() -> Any:
    pytest.importorskip("transformers")
    return pytest.importorskip("peft")


def of_peft(peft: Any, base: Path, folder: Path, *, resized_to: int = 0, **options: Any) -> Any:
    """peft's model with an adapter whose every trained tensor is random, saved in a folder."""
    from transformers import GPT2LMHeadModel

    settings = {"r": 4, "lora_alpha": 6, "fan_in_fan_out": True, "task_type": "CAUSAL_LM"}
    settings |= copy.deepcopy(options)  # peft changes the list of modules to save
    of_base = GPT2LMHeadModel.from_pretrained(base)
    if resized_to:
        of_base.resize_token_embeddings(resized_to)
    model = peft.get_peft_model(of_base, peft.LoraConfig(**settings)).eval()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.normal_(1 if "magnitude" in name else 0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return model


@pytest.mark.filterwarnings("ignore")  # of peft and transformers themselves
@pytest.mark.parametrize("kind", OF_PEFT)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_adapter_of_peft_gives_its_logits(peft: Any, tmp_path: Path, shape: str, kind: str) -> None:
    base, ids = save_base(tmp_path / "base", SHAPES[shape]), ids_for(SHAPES[shape])
    theirs = of_peft(peft, base, tmp_path / "adapter", **OF_PEFT[kind])
    ours = load_model(tmp_path / "adapter", "cpu").checkpoint.model
    with torch.no_grad():
        expected = theirs(ids).logits
        plain = load_checkpoint(base, "cpu").model(ids)
        assert (expected - plain).abs().max() > 1e-2, "the adapter changes the model"
        torch.testing.assert_close(ours(ids), expected, atol=1e-5, rtol=1e-5)
        whole = theirs.merge_and_unload()
    for name, tensor in whole.transformer.h[0].state_dict().items():
        mine = dict(ours.blocks[0].named_parameters())[OWN[name]]
        torch.testing.assert_close(mine.t() if mine.dim() == 2 else mine, tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["peft's default", "the embedding"])
@pytest.mark.parametrize("added", [2, 0])
def test_an_adapter_may_be_made_after_the_embedding_was_resized(
    peft: Any, tmp_path: Path, base: Path, kind: str, added: int
) -> None:
    theirs = of_peft(peft, base, tmp_path / "adapter", resized_to=259, **OF_PEFT[kind])
    if added:
        Tokenizer.from_vocabulary(
            {token: id for id, token in enumerate(Tokenizer.named("bytes").token_strings[:256])},
            [],
            special={"<|endoftext|>": 256, "<a>": 257, "<b>": 258},
            end_of_text="<|endoftext|>",
        ).save(tmp_path / "adapter")
    opened = load_model(tmp_path / "adapter", "cpu")
    ids = torch.tensor([[5, 256, 257, 258, 7]])
    with torch.no_grad():
        torch.testing.assert_close(opened.checkpoint.model(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    assert opened.checkpoint.tokenizer.vocab_size == 257 + added
    assert opened.notes == (() if added else ("ids 257 to 258 have no token and are never generated",))
    config, tokenizer, notes = describe_model(tmp_path / "adapter")
    assert (config.vocab_size, tokenizer.vocab_size, notes) == (259, 257 + added, opened.notes)


OWN = {
    f"{theirs}.{kind}": f"{ours}.{kind}"
    for theirs, ours in {
        "ln_1": "attention_norm", "attn.c_attn": "attention.qkv_proj", "attn.c_proj": "attention.out_proj",
        "ln_2": "mlp_norm", "mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj",
    }.items()
    for kind in ("weight", "bias")
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora_rank": 3, "lora_alpha": 5.5, "lora_dropout": 0.5},
        {"lora_rank": 2, "lora_targets": "down_proj,qkv_proj"},
        {"lora_rank": 1, "lora_targets": "out_proj"},
        {"lora_embedding": True},
    ],
    ids=["defaults", "rank and alpha", "two layers", "one layer", "the embedding"],
)
def test_peft_opens_an_adapter_of_minigpt_with_the_same_logits(
    peft: Any, tmp_path: Path, shape: str, settings: dict[str, Any]
) -> None:
    from transformers import GPT2LMHeadModel

    settings = {"lora_rank": 8} | settings
    base, ids = save_base(tmp_path / "base", SHAPES[shape]), ids_for(SHAPES[shape])
    model = adapted(base, **settings)
    folder = save_adapted(tmp_path / "run", base, model)
    theirs = peft.PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(base), folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=1e-5)
        merged = load_model(folder, "cpu").checkpoint.model
        torch.testing.assert_close(merged(ids), model(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_peft_opens_the_folder_by_itself_and_an_adapter_above_frozen_blocks(
    peft: Any, tmp_path: Path, base: Path
) -> None:
    ids, model = ids_for(SHAPES["odd"]), adapted(base, lora_rank=4, freeze=2)
    folder = save_adapted(tmp_path / "run", base, model)
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()  # opens the base that the adapter names
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=1e-5)
    assert not any(".h.0." in name or ".h.1." in name for name, _ in theirs.named_parameters() if "lora" in name)


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_in_a_pickled_file_opens(peft: Any, tmp_path: Path, base: Path) -> None:
    of_peft(peft, base, tmp_path / "adapter", target_modules=ALL)
    before = load_model(tmp_path / "adapter", "cpu").checkpoint.model
    tensors, _ = load_tensors(tmp_path / "adapter" / "adapter_model.safetensors")
    torch.save(tensors, tmp_path / "adapter" / "adapter_model.bin")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    after = load_model(tmp_path / "adapter", "cpu").checkpoint.model
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, after.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": ["c_attn", "wte"]}, "changes 'wte.lora_embedding_A', which is not supported"),
        ({"target_modules": ["c_attn"], "modules_to_save": ["wte"]}, "has a token embedding (wte) that differs from"),
        (
            {"target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"]},
            "differs from its output head (lm_head)",
        ),
        ({"target_modules": ["c_attn"], "trainable_token_indices": [1]}, "trainable_token_indices ([1])"),
        ({"target_modules": ["c_attn"], "lora_bias": True}, "lora_bias (True)"),
        ({"target_modules": ["c_attn"], "init_lora_weights": "pissa"}, "init_lora_weights ('pissa')"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(
    peft: Any, tmp_path: Path, base: Path, options: dict[str, Any], message: str
) -> None:
    of_peft(peft, base, tmp_path / "adapter", **options)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_model(tmp_path / "adapter", "cpu")


# Without peft


def test_the_base_is_found_next_to_the_adapter_when_both_were_moved(tmp_path: Path, base: Path) -> None:
    save_adapted(tmp_path / "run", base, adapted(base))
    shutil.move(tmp_path, moved := tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert load_model(moved / "run", "cpu").checkpoint.model.config.n_embd == 21


def test_the_base_of_an_adapter_from_windows_is_found_next_to_it(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    edit(folder, base_model_name_or_path=rf"C:\Users\jane\{base.name}")
    assert load_model(folder, "cpu").checkpoint.model.config.n_embd == 21
    export_model(folder, "gguf", output=tmp_path / "adapter.gguf")
    file = GgufFile(tmp_path / "adapter.gguf")
    assert file.metadata["general.base_model.0.name"] == base.name
    file.close()


def test_a_base_that_was_chosen_by_its_name_alone_is_said(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    edit(folder, base_model_name_or_path=f"somewhere/{base.name}")
    assert load_model(folder, "cpu").notes == ()  # its hash is that of the base
    forget_hash(folder)
    (note,) = load_model(folder, "cpu").notes
    assert f"trained on somewhere/{base.name} and has no hash of it; {base} was chosen by its name" in note
    assert load_model(folder, "cpu", base=base).notes == ()
    merged = merge_adapter("run", checkpoints=tmp_path)
    assert merged.notes == (note,)
    assert "was chosen by its name" in (merged.checkpoint.directory / "README.md").read_text()


def test_a_text_ends_at_the_end_ids_of_the_base_if_the_adapter_has_its_own_tokenizer(
    tmp_path: Path, base: Path
) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    (folder / "generation_config.json").unlink()
    (base / "generation_config.json").write_text('{"eos_token_id": [256, 9]}')
    assert load_model(folder, "cpu").checkpoint.tokenizer.end_ids == (256, 9)


def test_an_adapter_is_described_with_its_own_tokenizer(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    (folder / "training.json").unlink(missing_ok=True)  # as in a folder that peft has written
    (folder / "tokenizer.json").unlink(missing_ok=True)
    Tokenizer.train(["abc"], "chars").save(folder)
    assert describe_model(folder)[1].name == load_model(folder, "cpu").checkpoint.tokenizer.name == "chars"


def test_a_missing_base_is_named_with_the_command_that_gets_it(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=rf"an adapter of {re.escape(str(base))}, which does not exist; put the"):
        load_model(folder, "cpu")
    edit(folder, base_model_name_or_path="openai-community/gpt2")
    with pytest.raises(CheckpointError, match="get it with `minigpt load-gpt2 openai-community/gpt2`"):
        load_model(folder, "cpu")
    edit(folder, base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match="does not name its base model; give it: --model BASE --adapter"):
        load_model(folder, "cpu")


def scale_attention(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"scale_attn_by_inverse_layer_idx": True}))


@pytest.mark.parametrize("of_import", [False, True])
def test_an_adapter_for_other_query_weights_than_those_of_its_base_is_refused(
    tmp_path: Path, base: Path, of_import: bool
) -> None:
    queries = save_adapted(tmp_path / "queries", base, adapted(base))
    others = save_adapted(tmp_path / "others", base, adapted(base, lora_targets="out_proj,up_proj"))
    for folder in (queries, others):
        forget_hash(folder)
    scale_attention(base)
    chosen = None
    if of_import:
        first = import_gpt2(base, checkpoints=tmp_path / "first", device="cpu").checkpoint.directory
        chosen = import_gpt2(first, checkpoints=tmp_path / "again", device="cpu").checkpoint.directory
    assert load_model(others, "cpu", base=chosen).checkpoint.model.config.n_embd == 21
    for given in (chosen, chosen and chosen / "model.safetensors"):
        with pytest.raises(CheckpointError, match=r"may be for other weights than those of .*, whose queries minigpt"):
            load_model(queries, "cpu", base=given)


def test_an_adapter_that_was_trained_on_an_import_with_scaled_queries_opens(tmp_path: Path, base: Path) -> None:
    scale_attention(base)
    chosen = import_gpt2(base, name="import", checkpoints=tmp_path, device="cpu").checkpoint.directory
    model, ids = adapted(chosen), ids_for(SHAPES["odd"])
    folder = save_adapted(tmp_path / "run", chosen, model)
    edit(folder, base_model_name_or_path="somewhere/import")
    for _ in range(2):
        with torch.no_grad():
            opened = load_model(folder, "cpu").checkpoint.model
            torch.testing.assert_close(opened(ids), model(ids), atol=1e-5, rtol=1e-5)
        forget_hash(folder)
        edit(folder, base_model_name_or_path=str(chosen))


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    forget_hash(folder)
    other = save_base(tmp_path / "other", SHAPES["one block"])
    with pytest.raises(CheckpointError, match=r"is not an adapter for this model: its 'h.0.attn.c_attn' has 21 inputs"):
        load_model(folder, "cpu", base=other)


def test_two_adapters_that_name_each_other_are_refused(tmp_path: Path, base: Path) -> None:
    folders = [save_adapted(tmp_path / name, base, adapted(base)) for name in ("first", "second")]
    for folder, other in (folders, folders[::-1]):
        edit(folder, base_model_name_or_path=str(other))
        (folder / "training.json").unlink()
    for opened in (describe_model, load_model):
        with pytest.raises(CheckpointError, match="is an adapter itself; merge it first: minigpt merge"):
            opened(folders[0])


def test_merging_twice_is_refused_and_nothing_is_written(tmp_path: Path, base: Path) -> None:
    save_adapted(tmp_path / "run", base, adapted(base))
    merged = merge_adapter("run", checkpoints=tmp_path).checkpoint.directory
    before = sorted(tmp_path.rglob("*"))
    for name, message in {
        "run": "already exists, so .* may be merged already",
        "run-merged": "is a whole model, so there is no adapter to merge",
        "base": "is a whole model, so there is no adapter to merge",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            merge_adapter(name, checkpoints=tmp_path)
    with pytest.raises(CheckpointError, match=re.escape("name ('../x') must be the name of a folder")):
        merge_adapter("run", into="../x", checkpoints=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert (merged / "model.safetensors").exists()


def test_the_hash_is_of_the_weights_whatever_file_they_come_from(tmp_path: Path, base: Path) -> None:
    model = load_checkpoint(base, "cpu").model
    mapped = load_model(base, "cpu", mapped=True).checkpoint.model
    assert weights_hash(model) == weights_hash(mapped)
    model.final_norm.bias.data[0] += 1e-6
    assert weights_hash(model) != weights_hash(mapped)


@pytest.mark.parametrize("kind", ["ranks, alphas and rsLoRA", "every layer"])
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_as_gguf_has_the_scale_of_every_layer(peft: Any, tmp_path: Path, base: Path, kind: str) -> None:
    of_peft(peft, base, tmp_path / "adapter", **OF_PEFT[kind])
    done = export_model(tmp_path / "adapter", "gguf", output=tmp_path / "adapter.gguf")
    assert done.base == str(base)
    assert [each.by for each in done.parity] == ["minigpt"]
    assert done.parity[0].difference < 1e-4
    file = GgufFile(tmp_path / "adapter.gguf")
    assert (file.metadata["general.type"], file.metadata["adapter.type"]) == ("adapter", "lora")
    adapter, alpha = read_adapter(tmp_path / "adapter"), file.metadata["adapter.lora.alpha"]
    for layer, name in (("h.1.attn.c_attn", "blk.1.attn_qkv"), ("h.2.mlp.c_proj", "blk.2.ffn_down")):
        a, b = (file.read(f"{name}.weight.{each}") for each in ("lora_a", "lora_b"))
        expected = adapter.layers[layer]
        torch.testing.assert_close(alpha / len(a) * (b @ a), expected.scale * (expected.b @ expected.a))
    file.close()


@pytest.mark.parametrize(
    "options",
    [{"lora_alpha": 0}, {"lora_alpha": 1e-60}, {"alpha_pattern": {"h.0.attn.c_attn": 0}}],
    ids=str,
)
def test_an_adapter_with_any_alpha_becomes_gguf(tmp_path: Path, base: Path, options: dict[str, Any]) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    edit(folder, **options)
    done = export_model(folder, "gguf", output=tmp_path / "adapter.gguf")
    assert done.parity[0].difference < 1e-4
    file = GgufFile(tmp_path / "adapter.gguf")
    assert file.metadata["adapter.lora.alpha"] > 0
    file.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("DoRA", "uses DoRA, which GGUF adapters do not have; merge it first"),
        ("all biases", r"replaces '.*\.bias', and GGUF adapters only add to matrices; merge it first"),
        ("the embedding", r"replaces 'wte\.weight', and GGUF adapters only add to matrices; merge it first"),
    ],
)
def test_what_gguf_adapters_do_not_have_is_refused(
    peft: Any, tmp_path: Path, base: Path, kind: str, message: str
) -> None:
    of_peft(peft, base, tmp_path / "adapter", **OF_PEFT[kind])
    with pytest.raises(CheckpointError, match=message):
        export_model(tmp_path / "adapter", "gguf", output=tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()


def test_a_name_that_is_not_utf8_has_question_marks_in_gguf(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    adapter = dataclasses.replace(read_adapter(folder), base="models/caf\udce9")
    with (tmp_path / "adapter.gguf").open("wb") as file:
        write_gguf_adapter(file, adapter, SHAPES["odd"], "caf\udce9")
    written = GgufFile(tmp_path / "adapter.gguf")
    assert written.metadata["general.name"] == written.metadata["general.base_model.0.name"] == "caf?"
    written.close()


def test_the_adapter_of_a_run_is_exported_to_gguf_in_f32_only(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    with pytest.raises(ConfigError, match=re.escape("dtype (q8_0) must be f32 for an adapter; merge it first")):
        export_model(folder, "gguf", dtype="q8_0", output=tmp_path / "adapter.gguf")
    assert export_model(folder, "gguf", output=tmp_path / "adapter.gguf").parity[0].difference < 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["every layer", "ranks, alphas and rsLoRA"])
def test_llama_cpp_computes_with_the_adapter(peft: Any, tmp_path: Path, kind: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    shape = GPTConfig(vocab_size=257, n_positions=64, n_embd=64, n_layer=2, n_head=4, dropout=0.0)
    base = save_base(tmp_path / "base", shape)
    folder = tmp_path / "adapter"
    of_peft(peft, base, folder, **OF_PEFT[kind])
    export_model(base, "gguf", dtype="f32", output=tmp_path / "base.gguf")
    export_model(folder, "gguf", output=tmp_path / "adapter.gguf")
    ids = ids_for(shape)[0].tolist()
    logits = []
    for adapter in (None, str(tmp_path / "adapter.gguf")):
        llama = llama_cpp.Llama(
            str(tmp_path / "base.gguf"), lora_path=adapter, n_ctx=64, logits_all=True, type_k=0, type_v=0, verbose=False
        )
        llama.eval(ids)
        logits.append(torch.tensor(llama.scores[: len(ids)]))
    expected = [load_model(path, "cpu").checkpoint.model(torch.tensor([ids]))[0] for path in (base, folder)]
    spread = expected[1].std()
    assert (expected[0] - expected[1]).abs().max() > 0.5 * spread  # the adapter changes the logits
    for found, own in zip(logits, expected, strict=True):
        assert (found - own).abs().max() < 0.01 * spread  # llama.cpp's GELU is a float16 table


def edit(folder: Path, **options: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))


def forget_hash(folder: Path) -> None:
    tensors, _ = load_tensors(folder / "adapter_model.safetensors")
    save_tensors(folder / "adapter_model.safetensors", tensors, {"format": "pt"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type ('IA3') in"),
        ({"base_model_name_or_path": "base\0"}, r"base_model_name_or_path ('base\x00') in"),
        ({"base_model_name_or_path": "\ud800"}, r"base_model_name_or_path ('\ud800') in"),
        ({"r": 0}, "r (0) in"),
        ({"r": 5}, "but its adapter_config.json says 5"),
        ({"lora_alpha": "high"}, "lora_alpha ('high') in"),
        ({"bias": "some"}, "bias ('some') in"),
        ({"modules_to_save": "wte"}, "modules_to_save ('wte') in"),
        ({"use_qalora": True}, "use_qalora (True) in"),
        ({"of_the_future": {"x": 1}}, "of_the_future ({'x': 1}) in"),
        ({"rank_pattern": {"c_attn": 0.5}}, "is 0.5, not a whole number of at least 1"),
        ({"rank_pattern": {"(": 4}}, "'(' is not a regular expression"),
        ({"alpha_pattern": {"(a|a)*": 4}}, "the regular expression '(a|a)*' is not supported"),
        ({"alpha_pattern": {".*" * 30: 4}}, "is not supported"),
        ({"alpha_pattern": {"(a|b)" * 13: 4}}, "is not supported"),
        ({"alpha_pattern": {r"(\w|.|\d)" * 24 + "-": 4}}, "is not supported"),
        ({"alpha_pattern": {"(a|b)" * 12 + str(i): 4 for i in range(3)}}, "together are not supported"),
        ({"rank_pattern": {f"a{i}": 1 for i in range(501)}}, "has 501 entries; the maximum is 500"),
        ({"modules_to_save": [f"a{i}" for i in range(501)]}, "has 501 entries; the maximum is 500"),
        ({"alpha_pattern": {"(?x:(.+) #\n+)": 4}}, "is not supported"),
        ({"use_dora": True}, "has no lora_magnitude_vector for 'h.0.attn.c_attn'"),
    ],
)
def test_a_config_that_is_damaged_or_not_supported_is_one_sentence(
    tmp_path: Path, base: Path, options: dict[str, Any], message: str
) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    edit(folder, **options)
    with pytest.raises(CheckpointError, match=re.escape(message)) as refused:
        load_model(folder, "cpu")
    assert "\n" not in str(refused.value)


def test_missing_and_strange_tensors_are_refused(tmp_path: Path, base: Path) -> None:
    folder = save_adapted(tmp_path / "run", base, adapted(base))
    path = folder / "adapter_model.safetensors"
    tensors, metadata = load_tensors(path)
    first = "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"
    for changed, message in (
        ({name: tensor for name, tensor in tensors.items() if name != first}, "has no matrix lora_B for"),
        (tensors | {"base_model.model.score.weight": torch.zeros(2)}, "changes 'score.weight', which is not supported"),
        ({}, "has an adapter without tensors"),
    ):
        save_tensors(path, changed, metadata)
        with pytest.raises(CheckpointError, match=re.escape(message)):
            load_model(folder, "cpu")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"has an adapter_config.json but no adapter_model.safetensors"):
        load_model(folder, "cpu")
