"""Prints the matrix of docs/reference/export-formats.md: every source format exported to every target format.

python docs/interop_matrix.py
"""

import pickle
import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.exporters import runners
from minigpt.exporters.export import export_model
from minigpt.exporters.gguf import GGUF_DTYPES, write_gguf
from minigpt.exporters.parity import Parity, Tokenize, compare, reference_of
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import import_gpt2
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

CORPUS = "“It’s naïve — really”, he said… 日本語 と 日曜日, 1234½ Привет 🙂🙃 ▁▂▃\t\n" * 8
PACKAGES = ("torch", "transformers", "gguf", "llama_cpp_python", "onnx", "onnxruntime", "ctranslate2")


def original(tokenizer: str, activation: Any = "gelu_new", kind: type[GPT] = GPT) -> tuple[GPT, Tokenizer]:
    """A random model whose logits are as large as a trained one's, and the tokenizer of that name."""
    found = Tokenizer.named(tokenizer) if tokenizer in ("gpt2", "bytes") else Tokenizer.train([CORPUS], tokenizer)
    torch.manual_seed(0)
    shape = {"n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 1}
    model = kind(GPTConfig(vocab_size=found.vocab_size, activation_function=activation, **shape))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if "embedding" in name else 0.15)
    return model.eval(), found


class CharacterModel(GPT):
    """A model that predicts only CORPUS's characters, not the other tokens of a `chars` tokenizer."""

    def logits(self, features: Tensor) -> Tensor:
        logits = super().logits(features)  # (..., V)
        known = torch.full((logits.shape[-1],), -torch.inf)
        known[character_ids(Tokenizer.train([CORPUS], "chars"))] = 0
        return logits + known


def character_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of CORPUS's characters, in nanoGPT's order."""
    return [tokenizer.encode(character)[0] for character in sorted(set(CORPUS))]


Make = Callable[[GPT, Tokenizer, Path], Path]  # writes a source into a folder and returns the path to open


def checkpoint(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    return save_checkpoint(folder / "model", model, tokenizer)


def _in_transformers(model: GPT, tokenizer: Tokenizer, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint(model, tokenizer, folder))


def sharded(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    _in_transformers(model, tokenizer, folder).save_pretrained(folder / "sharded", max_shard_size="200KB")
    assert len(list((folder / "sharded").glob("*.safetensors"))) > 2
    tokenizer.save(folder / "sharded")
    return folder / "sharded"


def in_bfloat16(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    """The model in bfloat16; rounds the original, too."""
    model.bfloat16().float()
    _in_transformers(model, tokenizer, folder).bfloat16().save_pretrained(folder / "in_bfloat16")
    tokenizer.save(folder / "in_bfloat16")
    return folder / "in_bfloat16"


def pickled(model: GPT, tokenizer: Tokenizer, folder: Path, *, zipped: bool = True) -> Path:
    theirs = _in_transformers(model, tokenizer, folder)
    theirs.config.save_pretrained(folder / "pickled")
    path = folder / "pickled" / "pytorch_model.bin"
    torch.save(theirs.state_dict(), path, _use_new_zipfile_serialization=zipped)
    tokenizer.save(folder / "pickled")
    return folder / "pickled"


def nanogpt(model: GPT, _: Tokenizer, folder: Path, *, ids: list[int] | None = None) -> Path:
    names = {
        "token_embedding": "wte",
        "position_embedding": "wpe",
        "blocks": "h",
        "attention_norm": "ln_1",
        "attention": "attn",
        "qkv_proj": "c_attn",
        "out_proj": "c_proj",
        "mlp_norm": "ln_2",
        "up_proj": "c_fc",
        "down_proj": "c_proj",
        "final_norm": "ln_f",
    }
    config = model.config
    state = {
        "transformer." + ".".join(names.get(part, part) for part in name.split(".")): tensor
        for name, tensor in model.state_dict().items()
    }
    if ids is not None:
        state["transformer.wte.weight"] = state["transformer.wte.weight"][ids]
    state["lm_head.weight"] = embedding = state["transformer.wte.weight"]
    sizes = {name: getattr(config, name) for name in ("n_layer", "n_head", "n_embd")} | {"vocab_size": len(embedding)}
    arguments = sizes | {"block_size": config.n_positions, "bias": True, "dropout": 0.0}
    content = {"model": {f"_orig_mod.{name}": tensor for name, tensor in state.items()}, "model_args": arguments}
    torch.save(content | {"iter_num": 1, "best_val_loss": torch.tensor(1.0), "config": {}}, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def characters(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    itos = dict(enumerate(sorted(set(CORPUS))))
    meta = {"vocab_size": len(itos), "itos": itos, "stoi": {character: id for id, character in itos.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return nanogpt(model, tokenizer, folder, ids=character_ids(tokenizer))


def tensorflow(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
    import tensorflow_checkpoints

    tensorflow_checkpoints.save_checkpoint(folder / "124M", tensorflow_checkpoints.openai_tensors(model))
    tensorflow_checkpoints.write_hparams(folder / "124M", model.config)
    tensorflow_checkpoints.write_vocabulary(folder / "124M", tokenizer)
    return folder / "124M"


def gguf(model: GPT, tokenizer: Tokenizer, folder: Path) -> Path:
    with (folder / "model.gguf").open("wb") as file:
        write_gguf(file, model, tokenizer)
    return folder / "model.gguf"


SOURCES: dict[str, tuple[Make, str, str]] = {
    "a run, `gpt2`": (checkpoint, "gpt2", "gelu_new"),
    "a run, `bytes`": (checkpoint, "bytes", "gelu_new"),
    "a run, `chars`": (checkpoint, "chars", "gelu_new"),
    "a run, `bpe:400`": (checkpoint, "bpe:400", "gelu_new"),
    "safetensors in shards": (sharded, "bpe:400", "gelu_new"),
    "safetensors in bf16": (in_bfloat16, "bpe:400", "gelu_new"),
    "`pytorch_model.bin`": (pickled, "bpe:400", "gelu_new"),
    "`pytorch_model.bin`, not zipped": (partial(pickled, zipped=False), "bpe:400", "gelu_new"),
    "nanoGPT's `ckpt.pt`": (nanogpt, "gpt2", "gelu"),
    "nanoGPT's characters (`meta.pkl`)": (characters, "chars", "gelu"),
    "OpenAI's TensorFlow": (tensorflow, "bpe:400", "gelu_new"),
    "GGUF f32": (gguf, "chars", "gelu_new"),
}
_IN_LLAMA = tuple(f"GGUF {dtype} in llama.cpp" for dtype in GGUF_DTYPES)
TARGETS = ("transformers", "GGUF, read back", *_IN_LLAMA, "ONNX", "CTranslate2")


def cell(source: str, target: str, folder: Path) -> Parity:
    """Converts a source to a target in a folder, and compares the result with the original."""
    make, name, activation = SOURCES[source]
    model, tokenizer = original(name, activation, CharacterModel if make is characters else GPT)
    path = make(model, tokenizer, folder)
    reference = reference_of(model, tokenizer)
    if target == "transformers":
        imported = import_gpt2(path, name="imported", checkpoints=folder, device="cpu").checkpoint.directory
        return compare(target, _transformers(imported), reference, _auto_tokenizer(imported))
    if target.startswith("GGUF"):
        output = folder / "out.gguf"
        export_model(path, "gguf", dtype=target.split()[1] if target in _IN_LLAMA else "f32", output=output)
        read = runners.gguf_in_llama if "llama.cpp" in target else runners.gguf_in_torch
        run, tokenize = read(output)
        return compare(target, run, reference, tokenize)
    output = folder / "out"
    export_model(path, target.lower(), output=output)
    run = (
        runners.onnx_in_onnxruntime(output, model.config) if target == "ONNX" else runners.model_in_ctranslate2(output)
    )
    return compare(target, run, reference, _auto_tokenizer(output))


def _transformers(folder: Path) -> Callable[[Any], Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return lambda ids: model(torch.tensor([list(ids)])).logits[0].detach()


def _auto_tokenizer(folder: Path) -> Tokenize:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder).encode


def matrix() -> str:
    """The table in Markdown, with the date and the versions; sources with the same results share a row."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    rows: dict[str, list[str]] = defaultdict(list)  # the sources with these results
    for source in SOURCES:
        cells = []
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as folder:
                found = cell(source, target, Path(folder))
            greedy = "" if found.greedy == found.of else f", {found.greedy}/{found.of}"
            cells.append(f"{found.difference:.1e}{greedy}" + ("" if found.same_ids else ", **ids differ**"))
            print(source, target, cells[-1], file=sys.stderr)
        rows[" | ".join(cells)].append(source)
    lines = ["| from \\ to | " + " | ".join(TARGETS) + " |", "|---" * (len(TARGETS) + 1) + "|"]
    lines += [f"| {'; '.join(sources)} | {cells} |" for cells, sources in rows.items()]
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return "\n".join([*lines, "", f"Made {date.today()} with Python {platform.python_version()}, {versions}."])


if __name__ == "__main__":
    print(matrix())
