"""Writes the model card, the README.md that Hugging Face's hub shows, from a run's record.

It states only what is known: no license and no language. It never shows a path of the machine that trained the model.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from minigpt.bounded_reading import read_regular
from minigpt.config import GPTConfig
from minigpt.evaluation.perplexity import perplexity
from minigpt.shell import join
from minigpt.storage.checkpoint import read_config
from minigpt.storage.names import ADAPTER_CONFIG, CARD, encodable, last_part, plain_source
from minigpt.storage.run_record import RunRecord
from minigpt.units import shown_loss, shown_perplexity

# The metadata that the hub reads. Source: https://huggingface.co/docs/hub/model-cards
_FRONT_MATTER = """\
---
library_name: {}
pipeline_tag: text-generation
tags:
- minigpt
- gpt2
---"""
_USE = """\
With minigpt, transformers and llama.cpp. Run the commands in this folder, which they call `.`; elsewhere, give its \
path. transformers also accepts the model's name on the hub:

```sh
minigpt generate "Once upon a time" --model .
```

```python
from transformers import pipeline

print(pipeline("text-generation", ".")("Once upon a time", max_new_tokens=100))
```

```sh
minigpt export . --to gguf --output model.gguf
llama-completion -m model.gguf -p "Once upon a time" -n 100
```"""
_USE_ADAPTER = """\
The adapter needs its base model, {}. With minigpt and with peft, in this folder, which the commands call `.`:

```sh
minigpt generate "Once upon a time" --model .
```

```python
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer, pipeline

model, tokenizer = AutoPeftModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
print(pipeline("text-generation", model, tokenizer=tokenizer)("Once upon a time", max_new_tokens=100))
```

As one model without a base, from which `minigpt export` writes other formats:

```sh
minigpt merge . --name merged
```"""
_SETTINGS = {
    "sequences per step": "batch_size",
    "tokens per sequence": "context_length",
    "optimizer": "optimizer",
    "learning rate": "learning_rate",
    "schedule": "schedule",
    "weight decay": "weight_decay",
    "token noise": "token_noise",
    "BPE-dropout": "bpe_dropout",
    "seed": "seed",
}
_MARK = "<!-- minigpt rewrites this page unless it was edited: {} -->\n"
_MAX_NAMES = 10
_NOT_UPLOADED = ("last/*", "teacher/*", "training.json", "*.jsonl", "*.html", ".lock*", "tensorboard/*", "wandb/*")


def card(
    directory: Path,
    config: GPTConfig | None,
    *,
    tokenizer: str | None = None,
    record: RunRecord | None = None,
    origin: str | None = None,
    notes: Sequence[str] = (),
) -> bytes | None:
    """The README.md of the model in a directory, as `model_card`; None if it is not to be replaced.

    Without a `config`, it is read from the directory.
    """
    if not may_write_card(directory):
        return None
    config = config or read_config(directory)
    return model_card(directory.name, config, tokenizer=tokenizer, record=record, origin=origin, notes=notes).encode()


def may_write_card(directory: Path) -> bool:
    """Whether the README.md of a directory is missing, or unchanged since minigpt wrote it."""
    try:
        content = read_regular(directory / CARD).decode()
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    body, _, _ = content.rpartition("<!-- minigpt ")
    return content == _marked(body)


def _marked(body: str) -> str:
    """The page with a comment that holds its hash, by which `may_write_card` notices edits."""
    return body + _MARK.format(hashlib.sha256(body.encode()).hexdigest())


def model_card(
    name: str,
    config: GPTConfig,
    *,
    tokenizer: str | None = None,
    record: RunRecord | None = None,
    origin: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The content of README.md for the model of that name.

    `tokenizer` is the tokenizer's name, `record` that of the run that trained the model, `origin` the file or
    repository that it was imported from, and `notes` what the import changed.
    """
    known = record or RunRecord()
    base = known.adapter_base
    shape = {
        "blocks": f"{config.n_layer:,}",
        "attention heads per block": f"{config.n_head:,}",
        "width": f"{config.n_embd:,}",
        "context length": f"{config.n_positions:,} tokens",
        "vocabulary size": f"{config.vocab_size:,} tokens",
    }
    if tokenizer := tokenizer or known.tokenizer:
        shape["tokenizer"] = _code(tokenizer)
    sections = [
        _FRONT_MATTER.format("peft" if base else "transformers"),
        f"# {_plain(name)}",
        _introduction(config, record, origin, notes),
        *_data(known),
        "## Shape",
        _table(shape),
        *_training(known),
        *([] if record is None else _results(record, config)),
        "## Use",
        _USE_ADAPTER.format(_code(_public_name(base.name))) if base else _USE,
        "## Limits",
        _limits(config, known),
        "## Share it",
    ]
    if base and _is_path(base.name):
        sections.append(
            f"{_code(ADAPTER_CONFIG)} names the base model by its path on your machine. Before you upload the adapter, "
            "replace that path by the base model's name on the hub."
        )
    sections += [
        f"The folder is a complete {'adapter' if base else 'model'} for the hub. This command does not upload files "
        "that are needed only to resume training, or that contain paths of your machine:",
        f"```sh\n{upload_command(name, '.')}\n```",
    ]
    return _marked("\n\n".join(sections) + "\n\n")


def upload_command(name: str, path: str) -> str:
    """The shell command that uploads the model of that name, in the folder at `path`, to Hugging Face's hub."""
    excluded = [word for pattern in _NOT_UPLOADED for word in ("--exclude", pattern)]
    return join("hf", "upload", f"USER/{_repository(name)}", path, ".", *excluded)


def _introduction(config: GPTConfig, record: RunRecord | None, origin: str | None, notes: Sequence[str]) -> str:
    what = f"A language model with GPT-2's architecture and {config.n_parameters:,} parameters"
    if origin:
        imported = f"{what}, imported by minigpt from {_code(origin)}. Its weights are the same, in float32"
        if not notes:
            return f"{imported}."
        return f"{imported}. Notes on the import:\n\n" + "\n".join(f"- {_plain(note)}" for note in notes)
    if record is None:
        return f"{what}, saved by minigpt."
    version = f" {record.minigpt}" if record.minigpt else ""
    text = " on the text below" if record.sources or record.corpus else ""
    if record.adapter_base and record.training:
        parts = f"LoRA, rank {getattr(record.training, 'lora_rank', 'unknown')}"
        if getattr(record.training, "lora_embedding", False):
            parts += ", with the token embedding"
        return (
            f"An adapter ({parts}) of {_code(_public_name(record.adapter_base.name))}, a language model with GPT-2's "
            f"architecture and {config.n_parameters:,} parameters, trained with minigpt{version}{text}. The base model "
            "is not in this folder."
        )
    start = f"fine-tuned from {_code(plain_source(record.base))}" if record.base else "trained from scratch"
    return f"{what}, {start} with minigpt{version}{text}."


def _data(record: RunRecord) -> list[str]:
    """The names of the files, without their folders, and the sizes."""
    rows, corpus = {}, record.corpus
    if record.sources:
        rows["files"] = _names(record.sources)
    if corpus is not None:
        rows["training text"] = f"{corpus.train_bytes:,} bytes, {corpus.train_tokens:,} tokens"
        if corpus.validation_bytes is not None and corpus.validation_tokens is not None:
            rows["validation text"] = f"{corpus.validation_bytes:,} bytes, {corpus.validation_tokens:,} tokens"
        if corpus.fingerprint:
            rows["SHA-256 of text, tokenizer and split"] = _code(corpus.fingerprint)
    return ["## Training data", _table(rows)] if rows else []


def _training(record: RunRecord) -> list[str]:
    settings, result = record.training, record.result
    if settings is None:
        return []
    rows = {}
    if result is not None and result.step is not None:
        stopped = {"early stop": ", stopped early", "diverged": ", diverged"}.get(result.reason or "", "")
        best = "" if result.best_step is None else f"; the weights are those of step {result.best_step:,}"
        rows["steps"] = f"{result.step:,}{stopped}{best}"
    if result is not None and result.seconds is not None:
        rows["time"] = f"{result.seconds:,.0f} s on {record.device or 'an unknown device'}"
    for label, key in _SETTINGS.items():
        if (value := getattr(settings, key, None)) is not None:
            rows[label] = str(value)
    if record.torch:
        rows["PyTorch"] = record.torch
    return ["## Training", _table(rows)]


def _results(record: RunRecord, config: GPTConfig) -> Iterator[str]:
    yield "## Results"
    result = record.result
    if result is None:
        yield "Training has not finished: the weights are the best so far."
        return
    loss, per_byte = result.validation_loss, result.bits_per_byte
    if loss is None and result.reason == "diverged":
        yield "Training diverged: the weights are the best before that."
        return
    if loss is None:
        yield "There was no validation text, so nothing was measured."
        return
    rows = {"validation loss": f"{shown_loss(loss)} nats per token", "perplexity": shown_perplexity(perplexity(loss))}
    scored_text = record.training.scored_text if record.training else ""
    if per_byte is not None:
        rows["bits per byte"] = f"{shown_loss(per_byte)} {scored_text}".rstrip()
    yield _table(rows)
    context = (record.training and record.training.context_length) or config.n_positions
    whole = record.corpus.validation_tokens if record.corpus else None
    tokens = result.validation_tokens or 0
    part = "all" if whole is not None and tokens >= whole - 1 else "a sample"
    scored = "Every token except the first is scored once."
    if record.training is not None and record.training.scored_role != "all":
        part, scored = f"the {record.training.scored_role}'s turns", "No token is scored twice."
    yield (
        f"Measured on {part} of the validation text: {tokens:,} tokens, in windows of {context:,} tokens that do not "
        f"overlap. {scored} The weights were selected on the same text. To compare "
        "models with different tokenizers, use bits per byte."
    )


def _public_name(base: str) -> str:
    """The name of a base model on the hub, or the last part of its path: the rest may be private."""
    return last_part(base) if _is_path(base) else base


def _is_path(base: str) -> bool:
    """Whether a base model is named by its absolute path, on any system."""
    return PurePosixPath(base).is_absolute() or PureWindowsPath(base).is_absolute()


def _limits(config: GPTConfig, record: RunRecord) -> str:
    n_bytes = record.corpus.train_bytes if record.corpus else None
    size = f" It was trained on {n_bytes:,} bytes of text and nothing else." if n_bytes and not record.base else ""
    return (
        "It continues texts in the style of its training text. It does not follow instructions. Its output may be "
        f"false, offensive, or copied from the training text.{size} Its context is at most {config.n_positions:,} "
        "tokens. The licenses of the training text and of the model are not recorded."
    )


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in rows.items())])


def _names(sources: Sequence[str]) -> str:
    shown = ", ".join(_code(plain_source(source)) for source in sources[:_MAX_NAMES])
    return shown + (f" and {len(sources) - _MAX_NAMES} more" if len(sources) > _MAX_NAMES else "")


def _plain(text: str) -> str:
    """A text on one line, with Markdown's and HTML's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", _line(text))


def _code(text: str) -> str:
    return "`" + _line(text.replace("`", "'").replace("|", "/")) + "`"


def _line(text: str) -> str:
    return " ".join(encodable(text).split())


def _repository(name: str) -> str:
    """The name in a form that the hub accepts."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "model"
