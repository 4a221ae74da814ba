"""`minigpt generate`: continues prompts with a model, streaming."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.generate_settings import GenerateSettings
from minigpt.cli.models import (
    AdapterOption,
    DtypeOption,
    ModelOption,
    loaded_line,
    open_engine,
    open_model,
    out_of_memory_as,
)
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, common_option, names_of, settings_options
from minigpt.cli.prompts import PIPE, READING, note_unread_text, prompt_or_pipe, read_prompts, refuse_reading
from minigpt.cli.render.continuations import Continuation, JsonOutput, Output, PlainOutput, collect
from minigpt.cli.render.terminal import note, write
from minigpt.config import ReadingConfig, SamplingConfig
from minigpt.edges import provided
from minigpt.errors import ConfigError, GenerationError
from minigpt.settings import combined
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.generation.healing import Prompt
    from minigpt.tokenizer.tokenizer import Tokenizer

_ALTERNATIVES = 5  # shown for each token if --alternatives is not given
_SETTINGS: type[GenerateSettings] = combined(
    "AllGenerateSettings",
    "The settings of `generate` and of the installed edges.",
    (GenerateSettings, *provided("engine_settings"), *provided("generate_settings")),
)


@settings_options((SamplingConfig, names_of(SamplingConfig)), (ReadingConfig, READING), options=_SETTINGS)
def generate(
    given: dict[str, Any],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="the text to continue; without it, or -: what is piped, or else a new document", metavar="PROMPT"
        ),
    ] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    prompt_file: Annotated[
        Path | None, common_option(help="read prompts from this file, or - for standard input")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    *,
    options: dict[str, Any],
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Continue one or several prompts with a model, by default the one whose weights were written last.

    Examples:

    - `minigpt generate "Call me"`
    - `minigpt generate "Call me" --model moby_dick --temperature 0.7 --samples 3`
    - `cat letter.txt | minigpt generate --until paragraph --json`
    - `minigpt generate "Call me" --memorization`
    """
    read_with = {name: given.pop(name) for name in READING if name in given}
    config, reading = SamplingConfig(**given), ReadingConfig(**read_with)  # before the slow imports
    settings = _SETTINGS(**options)
    settings.check_together(config, as_json=as_json)
    prompt = prompt_or_pipe(prompt, prompt_file, settings.reads_files)
    prompts = read_prompts(prompt, prompt_file, settings.prompt_format, reading)
    if prompt_file is None and prompt != PIPE and not any(settings.reads_files.values()):
        refuse_reading(read_with, f"the texts of {' and '.join([*settings.reads_files, '--prompt-file'])}")

    from minigpt.generation.healing import encode_prompt
    from minigpt.generation.sampling import Sampler

    checkpoint = open_model(model, checkpoints, device, dtype=dtype, adapter=adapter)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.model.config
    texts = [each for each in prompts if isinstance(each, str)]
    note_unread_text(checkpoint.model, tokenizer, texts, config.special_tokens)
    how = {"token_healing": config.token_healing, "special_tokens": config.special_tokens}
    encoded = [encode_prompt(tokenizer, each, **how) for each in prompts]
    may_shorten = "max_new_tokens" not in given
    config = _fit_into_context(encoded, shape.n_positions, config, settings, may_shorten=may_shorten)
    output = settings.output(checkpoint, reading)
    engine = open_engine(checkpoint.model, settings)
    sampler = Sampler(config, tokenizer)
    drafter = settings.drafter(checkpoint, engine, checkpoints)
    for each in settings.notes(len(prompts) * config.texts_per_prompt):
        note(each)
    if as_json:
        shared = {"seed": sampler.seed, "model": str(checkpoint.directory)}
        shared |= {"tokenizer": tokenizer.name, "engine": engine.description}
        output = JsonOutput(tokenizer, shared, output)
    else:
        note(loaded_line(checkpoint, engine))
        for hint in settings.hints(checkpoint, checkpoints):
            note(hint)
        if prompts == [""]:
            note("no prompt: generates a new document, starting from the end-of-text token")
    output = output or PlainOutput()
    alternatives = settings.alternatives
    if alternatives is None and output.shows_probabilities:
        alternatives = _ALTERNATIVES
    shown = [each if isinstance(each, str) else tokenizer.decode(each) for each in prompts]
    n_new, seconds, first = _print_continuations(
        engine, tokenizer, shown, encoded, config, output, sampler=sampler, drafter=drafter, alternatives=alternatives
    )
    if not as_json:
        counts = [(len(encoded[index // config.samples].ids), new) for index, new in enumerate(n_new)]
        _print_speed(counts, shape.n_positions, config.keep_first, settings.chosen(config, len(n_new)), seconds, first)


def _fit_into_context(
    prompts: "Sequence[Prompt]", context: int, config: SamplingConfig, settings: GenerateSettings, *, may_shorten: bool
) -> SamplingConfig:
    """The settings, as those of the command fit them to the prompts.

    Notes prompts that are longer than the context length.
    """
    from minigpt.generation.decoding import check_keep_first

    check_keep_first(config.keep_first, context)
    lengths = [len(prompt.ids) for prompt in prompts]
    config = settings.fitted(config, max(lengths), context, may_shorten=may_shorten)
    for number, length in enumerate(lengths, 1):
        if length <= context:
            continue
        which = "the prompt" if len(lengths) == 1 else f"prompt {number}"
        too_long = f"{which} has {length:,} tokens, more than the context length ({context:,})"
        if settings.strict:
            raise ConfigError(f"{too_long}; shorten it, or drop --strict to continue from its end")
        seen = f"its first {config.keep_first} tokens and its end" if config.keep_first else "only its end"
        note(f"{too_long}; the model reads {seen}")
    return config


def _print_continuations(
    engine: "Engine",
    tokenizer: "Tokenizer",
    texts: "Sequence[str]",
    prompts: "Sequence[Prompt]",
    config: SamplingConfig,
    output: Output,
    **how: Any,
) -> tuple[list[int], float, float]:
    """Generates and prints the continuations of all prompts, which the `texts` show.

    Returns the number of tokens of each, the seconds that all took, and those until the first token.
    """
    from minigpt.generation.capacity import rows_at_once
    from minigpt.generation.streaming import generate_pieces

    at_once = rows_at_once(engine.model.config, engine.model.token_embedding.weight.dtype, config, engine.device)
    at_once //= config.texts_per_prompt
    streams = output.streams and len(prompts) == config.texts_per_prompt == 1
    out_of_memory = GenerationError(
        "out of memory during generation; give fewer --samples, --best-of or --beams, fewer prompts, or a smaller model"
    )
    n_new: list[int] = []
    seconds, first = 0.0, 0.0
    for begin in range(0, len(prompts), at_once):
        batch = slice(begin, begin + at_once)
        continuations = [Continuation(text, number) for text in texts[batch] for number in range(config.samples)]
        if streams:
            output.begin(texts[0])
        with out_of_memory_as(out_of_memory):
            pieces = generate_pieces(engine, tokenizer, prompts[batch], config, **how)
            collect(continuations, pieces, output if streams else None)
        timing = continuations[0].timing
        seconds, first = seconds + timing["seconds"], first or timing["first_token_seconds"]
        for continuation in [] if streams else continuations:
            if begin + continuation.number and output.separator is not None:
                write(output.separator)
            output.write(continuation)
        n_new += [len(each.pieces) for each in continuations]
    output.end()
    return n_new, seconds, first


def _print_speed(
    counts: list[tuple[int, int]],
    context: int,
    keep_first: int,
    chosen: str,
    seconds: float,
    first_token_seconds: float,
) -> None:
    """Prints how fast the tokens were generated, and how often the window moved.

    `counts` are the tokens of each prompt and of its continuation, `chosen` is what these were chosen from.
    """
    from minigpt.generation.decoding import window_moves

    if moves := sum(window_moves(*each, context, keep_first) for each in counts):
        note(
            f"the text is longer than the context ({context} tokens): the window moved "
            f"{'once' if moves == 1 else f'{moves:,} times'}, and the model read it again each time"
        )
    n_tokens = sum(new for _, new in counts)
    if chosen:
        note(f"{chosen}: {count(n_tokens, 'token')}, drawn in {seconds:.2f} s")
        return
    speed = f"{n_tokens / seconds:,.0f} tokens/s, first token after {1000 * first_token_seconds:,.0f} ms"
    note(f"{count(n_tokens, 'token')} in {seconds:.2f} s, {speed}")
