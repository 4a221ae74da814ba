"""`minigpt export`: writes a model as a file or folder for another program."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minigpt.cli.models import find_named
from minigpt.cli.options import (
    CheckpointsOption,
    JsonOption,
    ModelArgument,
    command_line,
    complete_from,
    model_name,
)
from minigpt.cli.render.terminal import note, write
from minigpt.errors import ConfigError
from minigpt.settings import check_utf8
from minigpt.shell import join
from minigpt.units import size

if TYPE_CHECKING:
    from minigpt.exporters.export import Export

_PROMPT = "Once upon a time"
# Programs on one line, because an argument of cmd has only one.
_OPTIMUM = (
    "from optimum.onnxruntime import ORTModelForCausalLM as Model; "
    "from transformers import AutoTokenizer, pipeline; "
    "model, tokenizer = Model.from_pretrained({path!r}), AutoTokenizer.from_pretrained({path!r}); "
    "print(pipeline('text-generation', model, tokenizer=tokenizer)({prompt!r}, max_new_tokens={count}))"
)
_OPTIMUM_IDS = (
    "import torch; from optimum.onnxruntime import ORTModelForCausalLM as Model; "
    "print(Model.from_pretrained({path!r}).generate(torch.tensor([[0]]), max_new_tokens={count}).tolist())"
)
_CTRANSLATE2 = (
    "import ctranslate2, transformers; "
    "tokenizer = transformers.AutoTokenizer.from_pretrained({path!r}); "
    "prompt = tokenizer.convert_ids_to_tokens(tokenizer.encode({prompt!r})); "
    "result = ctranslate2.Generator({path!r}).generate_batch([prompt], max_length={count}, sampling_topk=20); "
    "print(tokenizer.decode(result[0].sequences_ids[0]))"
)


def export(
    model: ModelArgument = None,
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="the format: gguf, onnx, ctranslate2 or html",
            autocompletion=complete_from("gguf", "onnx", "ctranslate2", "html"),
        ),
    ] = "gguf",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="dtype of the weights; gguf: f32, f16, bf16, q8_0; onnx: f32; ctranslate2: f32, f16, bf16, int8; "
            "html: int8 [default: f32, html: int8]"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="the file (gguf, html) or folder [default: named after the model]"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="html: the page's heading [default: the model's name]")] = None,
    about: Annotated[str, typer.Option("--note", help="html: a text below the heading")] = "",
    prompt: Annotated[str, typer.Option(help="html: the text that the page suggests to continue")] = "",
    large: Annotated[bool, typer.Option("--yes", help="html: write a page above 60 MB")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace an earlier export")] = False,
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Export a model to llama.cpp, Ollama and LM Studio (gguf), ONNX Runtime (onnx), CTranslate2, or one HTML page.

    The logits of the export are compared with the model's; if they differ too much, the export is deleted.
    transformers and vLLM need no export: a folder in `checkpoints/` is a Hugging Face model.

    Of a LoRA adapter, gguf is the adapter alone. The other formats are of the merged model; for gguf, use
    `minigpt merge` first.

    Examples:

    - `minigpt export moby_dick --to gguf --dtype q8_0`
    - `minigpt export moby_dick --to onnx --output site/model`
    - `minigpt export moby_dick --to html --title "Moby-Dick" --prompt "Call me"`
    """
    from minigpt.cli.render.console import console, facts
    from minigpt.exporters import destination
    from minigpt.exporters.export import export_model
    from minigpt.exporters.html.page import PageText

    source = find_named(model, checkpoints)
    page = PageText(title=destination.model_name(source) if title is None else title, note=about, prompt=prompt)
    for name, text in {"--title": title or "", "--note": about, "--prompt": prompt}.items():
        check_utf8(name, text)
    if target != "html" and (title is not None or about or prompt or large):
        raise ConfigError(f"--title, --note, --prompt and --yes are for --to html, not for {target}")
    out = console()
    with out.status("writing the export and comparing its logits …"):
        done = export_model(
            source, target, dtype=dtype, output=output, force=force, checkpoints=checkpoints, text=page, large=large,
            announce=lambda about: note(f"the page will have about {size(about)}"),
        )  # fmt: skip
    if as_json:
        result = asdict(done)
        result |= {"path": str(done.path), "modelfile": None if done.modelfile is None else str(done.modelfile)}
        write(json.dumps(result))
        return
    out.print(facts(done.target, _rows(done, source)))
    for each in done.notes:
        note(each)
    _print_next_steps(done, checkpoints)


def _rows(done: "Export", source: Path) -> dict[str, str]:
    """What was exported, and how its logits compare with the model's."""
    rows = {"from": str(source), "written to": str(done.path), "dtype": done.dtype, "size": size(done.size)}
    for parity in done.parity:
        agreement = f"{parity.greedy} of {parity.of} greedy tokens equal"
        agreement += "" if parity.same_ids is None else "; token ids equal"
        rows[f"checked in {parity.by}"] = f"largest logit difference {parity.difference:.2g}; {agreement}"
    return rows


def _print_next_steps(done: "Export", checkpoints: Path) -> None:
    """Prints how to open the export, or the commands that try it in the program that it is for."""
    if done.target == "html":
        note("open it in a browser, or send it to someone; it needs no network")
        return
    if done.modelfile is not None:
        name = _ollama_name(done.path)
        note("with Ollama:")
        note(f"  {join('ollama', 'create', name, '-f', str(done.modelfile))}", is_command=True)
        note(f"  {join('ollama', 'run', name, _PROMPT)}", is_command=True)
    count = min(100, done.context // 2)
    if done.base is not None:
        base = model_name(Path(done.base), checkpoints)
        options = ["--to", "gguf", "--output", "base.gguf"]
        export_base = command_line("export", base, *options, checkpoints=checkpoints)
        note(f"llama.cpp adds it to its base model: {export_base}")
        note("try it with:")
        write(_llama_command("base.gguf", "--lora", _file_argument(str(done.path)), count=count))
        return
    note("try it with:")
    write(_command(done.target, str(done.path), count))


def _ollama_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._").lower()[:80] or "model"


def _command(target: str, path: str, count: int) -> str:
    from minigpt.tokenizer.files import is_ids_only

    if target == "gguf":
        return _llama_command(_file_argument(path), count=count)
    program = _CTRANSLATE2
    if target == "onnx":
        program = _OPTIMUM_IDS if is_ids_only(Path(path)) else _OPTIMUM
    return join("python", "-c", program.format(path=path, prompt=_PROMPT, count=count))


def _llama_command(*model: str, count: int) -> str:
    return join("llama-completion", "-m", *model, "-p", _PROMPT, "-n", str(count))


def _file_argument(path: str) -> str:
    """The path in a form that no program reads as an option."""
    return f"./{path}" if path.startswith("-") else path
