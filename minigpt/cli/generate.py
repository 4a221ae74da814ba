"""`minigpt generate`: continues prompts with a model, streaming."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minigpt.cli.models import (
    AdapterOption,
    CompileOption,
    DtypeOption,
    QuantizeOption,
    open_drafter,
    open_engine,
    open_model,
    out_of_memory_as,
)
from minigpt.cli.options import (
    CheckpointsOption,
    DeviceOption,
    JsonOption,
    command_line,
    model_name,
    names_of,
    run_option,
    settings_options,
)
from minigpt.cli.prompts import READING, PromptFormat, note_unread_text, read_prompts, refuse_reading
from minigpt.cli.render.continuations import Continuation, JsonOutput, Output, PlainOutput, collect
from minigpt.cli.render.terminal import note, write
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.errors import ConfigError, GenerationError
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

_ALTERNATIVES = 5  # shown for each token if --alternatives is not given


@settings_options((SamplingConfig, names_of(SamplingConfig)), (ReadingConfig, READING))
def generate(
    given: dict[str, Any],
    prompt: Annotated[
        str | None, typer.Argument(help="the text to continue; without one, a new document begins", metavar="PROMPT")
    ] = None,
    model: Annotated[
        str | None,
        run_option("--model", "-m", help="a run's name, or a model's file or folder [default: the newest model]"),
    ] = None,
    adapter: AdapterOption = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="read prompts from this file, or - for standard input")
    ] = None,
    prompt_format: Annotated[
        PromptFormat,
        typer.Option(
            help="lines (a prompt per line), jsonl (a JSON text or list of token ids per line), whole (one prompt), or "
            "auto: jsonl for .jsonl, whole for -, else lines"
        ),
    ] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="refuse prompts longer than the context length")] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "auto",
    compiled: CompileOption = False,
    draft: Annotated[
        str | None, run_option(help="a smaller model with the same tokenizer, for speculative decoding")
    ] = None,
    speculate: Annotated[
        Literal["auto", "lookup", "off"],
        typer.Option(help="speculative decoding: guess repeated text and verify it at once; the text is the same"),
    ] = "auto",
    alternatives: Annotated[
        int | None, typer.Option(help="with --json or --table: how many likely tokens to show [default: 5]", min=0)
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="color each token by the probability the model gave it")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="print a row for each token: probability, surprisal, most likely tokens")
    ] = False,
    memorization: Annotated[
        bool,
        typer.Option("--memorization", help="mark what is copied word for word from the training text, and say where"),
    ] = False,
    corpus: Annotated[
        list[str] | None, typer.Option(help="with --memorization: a text to search [default: the training text]")
    ] = None,
    copied_words: Annotated[
        int | None,
        typer.Option(
            help="with --memorization: minimum words in a copied run; 2.5 characters of a script without spaces "
            "count as one [default: 8]",
            min=1,
        ),
    ] = None,
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Continue one or several prompts with a model, by default the one whose weights were written last.

    Examples:

    - `minigpt generate "Call me"`
    - `minigpt generate "Call me" --model moby_dick --temperature 0.7 --samples 3 --stop "."`
    - `cat letter.txt | minigpt generate --prompt-file - --until paragraph --json`
    - `minigpt generate "Call me" --memorization`
    """
    read_with = {name: given.pop(name) for name in READING if name in given}
    config, reading = SamplingConfig(**given), ReadingConfig(**read_with)  # before the slow imports
    prompts = read_prompts(prompt, prompt_file, prompt_format, reading)
    if corpus and not memorization:
        raise ConfigError(f"--corpus {corpus[0]} needs --memorization, which searches it")
    if not corpus and prompt_file is None:
        refuse_reading(read_with, "the texts of --corpus and --prompt-file")
    if copied_words is not None and not memorization:
        raise ConfigError(f"--copied-words {copied_words} needs --memorization")
    if alternatives is not None and not (as_json or table):
        raise ConfigError(f"--alternatives {alternatives} needs --json or --table, which show them")
    if alternatives is not None and config.beams > 1:
        raise ConfigError(
            f"--alternatives {alternatives} cannot be combined with --beams: beam search gives no probabilities of its "
            "tokens"
        )
    if config.beams > 1 and draft is not None:
        raise ConfigError(f"beams ({config.beams}) cannot be combined with --draft: beam search uses no draft model")
    for name, is_given in {"--json": as_json, "--memorization": memorization, "--beams": config.beams > 1}.items():
        if is_given and (explain or table):
            raise ConfigError(f"{'--explain' if explain else '--table'} cannot be combined with {name}")

    from minigpt.data.records import writes_conversations
    from minigpt.generation.capacity import rows_at_once
    from minigpt.generation.sampling import Sampler

    checkpoint = open_model(model, checkpoints, device, dtype=dtype, adapter=adapter)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.model.config
    texts = [each for each in prompts if isinstance(each, str)]
    note_unread_text(checkpoint.model, tokenizer, texts, config.special_tokens)
    lengths, config = _fit_into_context(
        prompts, tokenizer, shape.n_positions, config, strict=strict, shorten="max_new_tokens" not in given
    )
    meter = None
    if memorization:
        from minigpt.memorization.command import open_meter  # takes a tenth of a second

        meter = open_meter(checkpoint, corpus or [], copied_words, reading)
    engine = open_engine(checkpoint.model, quantize, compiled=compiled)
    sampler = Sampler(config, tokenizer)
    drafter = open_drafter(draft, speculate, checkpoint, engine, checkpoints)
    if draft is not None and len(prompts) * config.texts_per_prompt > 1:
        note("--draft has an effect only while a single continuation is being generated")
    output: Output = PlainOutput()
    if as_json:
        shared = {"seed": sampler.seed, "model": str(checkpoint.directory)}
        shared |= {"tokenizer": tokenizer.name, "engine": engine.description}
        output = JsonOutput(tokenizer, shared, meter.record if meter else None)
    else:
        note(f"{checkpoint.directory} · {shape.n_parameters:,} parameters · {engine.description}")
        if writes_conversations(tokenizer):
            talk = command_line("chat", model_name(checkpoint.directory, checkpoints), checkpoints=checkpoints)
            note(f"this model was trained on a chat log; to talk to it: {talk}")
        if prompts == [""]:
            note("no prompt: generates a new document, starting from the end-of-text token")
    if meter and not as_json:
        output = meter
    elif explain or table:
        from minigpt.cli.render.console import console
        from minigpt.inspection.explained_output import ColoredOutput, TableOutput

        output = (TableOutput if table else ColoredOutput)(console(stderr=False), tokenizer)
    if as_json or explain or table:
        alternatives = _ALTERNATIVES if alternatives is None else alternatives
    at_once = rows_at_once(shape, checkpoint.model.token_embedding.weight.dtype, config, engine.device)
    n_new, seconds, first = _print_continuations(
        engine, tokenizer, prompts, config, output, at_once, None if as_json else "\n---", sampler=sampler,
        drafter=drafter, alternatives=alternatives,
    )  # fmt: skip
    if not as_json:
        counts = [(lengths[index // config.samples], new) for index, new in enumerate(n_new)]
        _print_speed(counts, shape.n_positions, config, seconds, first)


def _fit_into_context(
    prompts: list[str | list[int]],
    tokenizer: "Tokenizer",
    context: int,
    config: SamplingConfig,
    *,
    strict: bool,
    shorten: bool,
) -> tuple[list[int], SamplingConfig]:
    """The number of tokens of each prompt, and the settings; for beams, with fewer new tokens if that may `shorten`.

    Notes prompts that are longer than the context length.
    """
    from minigpt.generation.beam_search import check_room
    from minigpt.generation.decoding import check_keep_first
    from minigpt.generation.healing import encode_prompt

    check_keep_first(config.keep_first, context)
    how = {"token_healing": config.token_healing, "special_tokens": config.special_tokens}
    lengths = [len(encode_prompt(tokenizer, each, **how).ids) for each in prompts]
    if config.beams > 1:
        if shorten and (room := context - max(lengths)) > 0:
            config = config.replace(max_new_tokens=min(config.max_new_tokens, room))
        check_room(max(lengths), config.max_new_tokens, context)
    for number, length in enumerate(lengths, 1):
        if length <= context:
            continue
        which = "the prompt" if len(lengths) == 1 else f"prompt {number}"
        too_long = f"{which} has {length:,} tokens, more than the context length ({context:,})"
        if strict:
            raise ConfigError(f"{too_long}; shorten it, or drop --strict to continue from its end")
        seen = f"its first {config.keep_first} tokens and its end" if config.keep_first else "only its end"
        note(f"{too_long}; the model reads {seen}")
    return lengths, config


def _print_continuations(
    engine: "Engine",
    tokenizer: "Tokenizer",
    prompts: list[str | list[int]],
    config: SamplingConfig,
    output: Output,
    at_once: int,
    separator: str | None,
    **how: Any,
) -> tuple[list[int], float, float]:
    """Generates and prints the continuations of all prompts, `at_once` texts together, with a line between two of them.

    Returns the number of tokens of each, the seconds that all took, and those until the first token.
    """
    from minigpt.generation.streaming import generate_pieces

    streams = output.streams and len(prompts) == config.texts_per_prompt == 1
    at_once //= config.texts_per_prompt
    out_of_memory = GenerationError(
        "out of memory during generation; give fewer --samples, --best-of or --beams, fewer prompts, or a smaller model"
    )
    n_new: list[int] = []
    seconds, first = 0.0, 0.0
    for begin in range(0, len(prompts), at_once):
        batch = prompts[begin : begin + at_once]
        texts = [each if isinstance(each, str) else tokenizer.decode(each) for each in batch]
        continuations = [Continuation(text, number) for text in texts for number in range(config.samples)]
        if streams:
            output.begin(texts[0])
        with out_of_memory_as(out_of_memory):
            pieces = generate_pieces(engine, tokenizer, batch, config, **how)
            collect(continuations, pieces, output if streams else None)
        timing = continuations[0].timing
        seconds, first = seconds + timing["seconds"], first or timing["first_token_seconds"]
        for continuation in [] if streams else continuations:
            if begin + continuation.number and separator is not None:
                write(separator)
            output.write(continuation)
        n_new += [len(each.pieces) for each in continuations]
    output.end()
    return n_new, seconds, first


def _print_speed(
    counts: list[tuple[int, int]], context: int, config: SamplingConfig, seconds: float, first_token_seconds: float
) -> None:
    """Prints how fast the tokens were generated, and how often the window moved.

    `counts` are the tokens of each prompt and of its continuation.
    """
    from minigpt.generation.decoding import window_moves

    if moves := sum(window_moves(*each, context, config.keep_first) for each in counts):
        note(
            f"the text is longer than the context ({context} tokens): the window moved "
            f"{'once' if moves == 1 else f'{moves:,} times'}, and the model read it again each time"
        )
    n_tokens = sum(new for _, new in counts)
    if config.best_of > 1:
        kept = "the most likely" if config.samples == 1 else f"the {config.samples:,} most likely"
        each = "" if len(counts) == config.samples else " for each prompt"
        note(f"{kept} of {config.best_of:,} texts{each}: {count(n_tokens, 'token')}, drawn in {seconds:.2f} s")
        return
    speed = f"{n_tokens / seconds:,.0f} tokens/s, first token after {1000 * first_token_seconds:,.0f} ms"
    note(f"{count(n_tokens, 'token')} in {seconds:.2f} s, {speed}")
