"""A model's card, README.md as Hugging Face's hub shows it, written from the record of the training; it opens no model.

It says what is known and no more: no license, no language, no path on the machine that trained.
"""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from minigpt.config import GPTConfig
from minigpt.storage.run_record import RunRecord

CARD = "README.md"

# What the hub knows a model by. Source: https://huggingface.co/docs/hub/model-cards
_FRONT_MATTER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- minigpt
- gpt2
---"""
_MARK = "<!-- minigpt writes this page anew while nobody edits it: {} -->\n"
_MOST_NAMES = 10


def may_write_card(directory: Path) -> bool:
    """Whether the README.md of a directory is missing, or as minigpt wrote it; what someone has edited is theirs."""
    try:
        content = (directory / CARD).read_bytes().decode()
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    body, _, _ = content.rpartition("<!-- minigpt")
    return content == _marked(body)


def _marked(body: str) -> str:
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

    `tokenizer` is its name, `record` that of the run that trained it, `origin` the file or repository that it was
    imported from, and `notes` what the import changed.
    """
    known = record or RunRecord()
    sections = [
        _FRONT_MATTER,
        f"# {_plain(name)}",
        _introduction(config, record, origin, notes),
        *_data(known),
        "## Shape",
        _table(_shape(config, tokenizer or known.tokenizer)),
        *_training(known),
        *([] if record is None else _results(record, config)),
        *_use(name),
        *_limits(config, known),
        "## Sharing it",
        "The folder is a model as the hub has them. What only resuming needs, and paths of this machine, stay here:",
        f"```sh\n{upload_command(name, _path(name))}\n```",
    ]
    return _marked("\n\n".join(sections) + "\n\n")


def upload_command(name: str, path: str) -> str:
    """What a shell runs to share the model of that name, in the folder at `path`, on Hugging Face's hub."""
    return (
        f"hf upload USER/{_repository(name)} {shlex.quote(path)} . "
        "--exclude 'last/*' --exclude training.json --exclude '*.jsonl' --exclude '*.html' --exclude '.lock*'"
    )


def _introduction(config: GPTConfig, record: RunRecord | None, origin: str | None, notes: Sequence[str]) -> str:
    what = f"A language model of GPT-2's architecture with {config.n_parameters:,} parameters"
    if origin:
        imported = f"{what}, imported by minigpt from {_code(origin)}. Its weights are the same, in float32"
        if not notes:
            return f"{imported}."
        return f"{imported}, but for what the import has noted:\n\n" + "\n".join(f"- {_plain(note)}" for note in notes)
    if record is None:
        return f"{what}, saved by minigpt."
    version = f" {record.minigpt}" if record.minigpt else ""
    begun = f"from {_code(_shown(record.base))}" if record.base else "from nothing but the text below"
    return f"{what}, trained by minigpt{version}, {begun}."


def _data(record: RunRecord) -> Iterator[str]:
    """The texts by their names alone, and their sizes."""
    sources, corpus = record.sources, record.corpus
    if not sources and corpus is None:
        return
    yield "## Training data"
    rows = [("texts", _names(sources))] if sources else []
    if corpus is not None:
        rows.append(("trained on", f"{corpus.train_bytes:,} bytes, {corpus.train_tokens:,} tokens"))
        if corpus.validation_bytes is not None and corpus.validation_tokens is not None:
            rows.append(("held out", f"{corpus.validation_bytes:,} bytes, {corpus.validation_tokens:,} tokens"))
        if corpus.fingerprint:
            rows.append(("SHA-256 of text, tokenizer and split", _code(corpus.fingerprint)))
    yield _table(rows)


def _shape(config: GPTConfig, tokenizer: str | None) -> list[tuple[str, str]]:
    return [
        ("blocks", f"{config.n_layer:,}"),
        ("attention heads per block", f"{config.n_head:,}"),
        ("width", f"{config.n_embd:,}"),
        ("context length", f"{config.n_positions:,} tokens"),
        ("vocabulary", f"{config.vocab_size:,} words"),
        *([("tokenizer", _code(tokenizer))] if tokenizer else []),
    ]


def _training(record: RunRecord) -> Iterator[str]:
    settings, result = record.training, record.result
    if settings is None:
        return
    yield "## Training"
    rows = []
    if result is not None:
        stopped = ", stopped early" if result.reason == "early stop" else ""
        if result.step is not None:
            of = "" if result.best_step is None else f"; the weights are those of step {result.best_step:,}"
            rows.append(("steps", f"{result.step:,}{stopped}{of}"))
        if result.seconds is not None:
            rows.append(("time", f"{result.seconds:,.0f} s on {record.device or 'unknown'}"))
    for label, key in (
        ("sequences per step", "batch_size"),
        ("tokens per sequence", "context_length"),
        ("optimizer", "optimizer"),
        ("learning rate", "learning_rate"),
        ("schedule", "schedule"),
        ("weight decay", "weight_decay"),
        ("token noise", "token_noise"),
        ("BPE-dropout", "bpe_dropout"),
        ("seed", "seed"),
    ):
        if (value := getattr(settings, key)) is not None:
            rows.append((label, str(value)))
    if record.torch:
        rows.append(("PyTorch", record.torch))
    yield _table(rows)


def _results(record: RunRecord, config: GPTConfig) -> Iterator[str]:
    yield "## Results"
    result = record.result
    if result is None:
        yield "The training has not come to its end: the weights are the best so far."
        return
    loss, per_byte = result.validation_loss, result.bits_per_byte
    if loss is None:
        yield "No text was held out, so nothing was measured."
        return
    rows = [("validation loss", f"{loss:.4f} nats per token"), ("perplexity", f"{math.exp(min(loss, 700)):,.2f}")]
    if per_byte is not None:
        rows.append(("bits per byte", f"{per_byte:.4f}"))
    yield _table(rows)
    context = (record.training and record.training.context_length) or config.n_positions
    whole = record.corpus.validation_tokens if record.corpus else None
    tokens = result.validation_tokens or 0
    part = "the whole" if whole is not None and tokens >= whole - 1 else "a sample"
    yield (
        f"Measured on {part} of the held-out text, {tokens:,} tokens, in windows of {context:,} tokens that do not "
        "overlap, each token but the very first scored once. The weights were chosen by the same text. Only bits per "
        "byte compare models of different tokenizers."
    )


def _use(name: str) -> Iterator[str]:
    path, folder = _path(name), shlex.quote(_path(name))
    yield "## Use"
    yield "With minigpt, transformers and llama.cpp, by the folder's path; transformers takes its name on the hub too:"
    yield f'```sh\nminigpt generate "Once upon a time" --model {folder}\n```'
    yield (
        "```python\nfrom transformers import pipeline\n\n"
        f'print(pipeline("text-generation", {json.dumps(path)})("Once upon a time", max_new_tokens=100))\n```'
    )
    yield (
        f"```sh\nminigpt export {folder} --to gguf --output model.gguf\n"
        'llama-completion -m model.gguf -p "Once upon a time" -n 100\n```'
    )


def _limits(config: GPTConfig, record: RunRecord) -> Iterator[str]:
    yield "## Limits"
    n_bytes = record.corpus.train_bytes if record.corpus else None
    learnt = f" It has seen {n_bytes:,} bytes of text, and knows nothing else." if n_bytes else ""
    learnt = "" if record.base else learnt
    yield (
        "It continues a text in the manner of those it was trained on; it follows no instructions, and what it writes "
        f"may be false, offensive, or word for word from those texts.{learnt} It attends to {config.n_positions:,} "
        "tokens at most. Whose those texts are, and so what may be done with the model, this page does not know."
    )


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in rows)])


def _names(sources: Sequence[str]) -> str:
    shown = ", ".join(_code(_shown(source)) for source in sources[:_MOST_NAMES])
    return shown + (f" and {len(sources) - _MOST_NAMES} more" if len(sources) > _MOST_NAMES else "")


def _shown(source: str) -> str:
    """What a text or a model is called: the last part of its path, of which the rest may be private."""
    return "standard input" if source == "-" else PurePath(source).name or source


def _plain(text: str) -> str:
    """A name on one line of its own, without what Markdown or HTML would read as more."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", _line(text))


def _code(text: str) -> str:
    return "`" + _line(text.replace("`", "'").replace("|", "/")) + "`"


def _line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split())


def _path(name: str) -> str:
    """Where the folder stands, to be put into commands."""
    return "checkpoints/" + (name if re.fullmatch(r"[\w. -]+", name) else "NAME")


def _repository(name: str) -> str:
    """A name as the hub takes it."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "model"
