"""`minigpt generate`: continues prompts with a model, streaming."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minigpt.cli.models import CompileOption, DtypeOption, QuantizeOption, open_drafter, open_engine, open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, names_of, settings_options
from minigpt.cli.prompts import PromptFormat, read_prompts
from minigpt.cli.render.continuations import Explained, Marked, Output, Plain, Records, Sample
from minigpt.cli.render.terminal import note
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from minigpt.cli.memorization import MemorizationMeter
    from minigpt.config import GPTConfig
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

_ALTERNATIVES = 5  # of each token, where they are wanted and nobody says how many
_MOST_ROWS = 32  # side by side; more gain little


@settings_options((SamplingConfig, names_of(SamplingConfig)))
def generate(
    given: dict[str, Any],
    prompt: Annotated[str | None, typer.Argument(help="the text to continue; none starts a new document")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="a run's name or a folder [newest]")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="read prompts from a file, one per line, or - for one")
    ] = None,
    prompt_format: Annotated[
        PromptFormat, typer.Option("--prompt-format", help="of that file; auto goes by its name: .jsonl, else lines")
    ] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="refuse prompts longer than the context length")] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    quantize: QuantizeOption = "auto",
    compiled: CompileOption = False,
    draft: Annotated[
        str | None, typer.Option("--draft", help="a smaller model of the same tokenizer, to guess ahead with")
    ] = None,
    speculate: Annotated[
        Literal["auto", "lookup", "off"],
        typer.Option("--speculate", help="guess repeated text and verify it at once; no token changes"),
    ] = "auto",
    alternatives: Annotated[
        int | None,
        typer.Option(
            "--alternatives", help="with --json or --table: so many of each token's likeliest rivals [5]", min=0
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="colour each token by the probability the model gave it")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="explain by a row for every token, with its likeliest rivals")
    ] = False,
    memorization: Annotated[
        bool,
        typer.Option("--memorization", help="mark what is copied word for word from the training text, and say where"),
    ] = False,
    novelty: Annotated[bool, typer.Option("--novelty", hidden=True)] = False,  # the former name of --memorization
    corpus: Annotated[
        list[str] | None, typer.Option("--corpus", help="with --memorization: a text to search [the training text]")
    ] = None,
    copied_words: Annotated[
        int | None,
        typer.Option("--copied-words", help="with --memorization: the fewest words of a long run [8]", min=1),
    ] = None,
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Continue a prompt, or many, with a model: the newest run, or --model.

    Examples:

    - `minigpt generate "Call me"`

    - `minigpt generate "Call me" --model moby_dick --temperature 0.7 --samples 3 --stop "."`

    - `cat letter.txt | minigpt generate --prompt-file - --until paragraph --json`

    - `minigpt generate "Call me" --memorization`
    """
    config = SamplingConfig(**given)  # before anything heavy is loaded
    prompts = read_prompts(prompt, prompt_file, prompt_format)
    if novelty:
        note("--novelty is now called --memorization")
        memorization = True
    if corpus and not memorization:
        raise ConfigError(f"--corpus {corpus[0]} needs --memorization, which searches it")
    if copied_words is not None and not memorization:
        raise ConfigError(f"--copied-words {copied_words} needs --memorization")
    if alternatives is not None and not (as_json or table):
        raise ConfigError(f"--alternatives {alternatives} are shown by --json and --table; give one of them too")
    if config.beams > 1 and draft is not None:
        raise ConfigError(f"beams ({config.beams}) and --draft contradict one another: a search draws nothing to guess")

    _check_explanation(
        explain or table, {"--json": as_json, "--memorization": memorization, "--beams": config.beams > 1}
    )

    from minigpt.generation.sampling import Sampler
    from minigpt.generation.streaming import generate_pieces

    checkpoint = open_model(model, checkpoints, device, dtype=dtype)
    tokenizer, shape = checkpoint.tokenizer, checkpoint.model.config
    _check_lengths(prompts, tokenizer, shape, config, strict=strict)
    meter = _open_meter(checkpoint, corpus or [], copied_words) if memorization else None
    engine = open_engine(checkpoint.model, quantize, compiled=compiled)
    sampler = Sampler(config, tokenizer)
    drafter = open_drafter(draft, speculate, checkpoint, engine, checkpoints)
    if draft is not None and len(prompts) * config.samples > 1:
        note("the draft model guesses only while one text alone is being written")
    if not as_json:
        note(f"{checkpoint.directory} · {shape.n_parameters:,} parameters · {engine.description}")
        if prompts == [""]:
            note("no prompt: the text begins a new document, from end-of-text")

    output: Output = Plain()
    if as_json:
        about = {
            "seed": sampler.seed,
            "model": str(checkpoint.directory),
            "tokenizer": tokenizer.name,
            "engine": engine.description,
        }
        output = Records(tokenizer, about, meter, "novelty" if novelty else "memorization")
    elif meter:
        output = Marked(meter)
    elif explain or table:
        output = Explained(tokenizer, table=table)
    rivals = (_ALTERNATIVES if alternatives is None else alternatives) if as_json or explain or table else None
    alone = output.streams and len(prompts) == config.samples == 1
    at_once = _rows_at_once(shape, prompts, tokenizer, config, engine.device) // config.samples
    counted, seconds, first, slides = 0, 0.0, None, 0
    for begin in range(0, len(prompts), at_once):
        group = prompts[begin : begin + at_once]
        samples = [Sample(text, number) for text in group for number in range(config.samples)]
        if alone:
            output.begin(group[0])
        started, group_first = time.perf_counter(), None
        for piece in generate_pieces(
            engine, tokenizer, group, config, sampler=sampler, drafter=drafter, alternatives=rivals
        ):
            group_first = group_first or time.perf_counter() - started
            samples[piece.row].add(piece)
            if alone:
                output.add(piece)
        took = time.perf_counter() - started
        tokens = sum(len(sample.ids) for sample in samples)
        first, seconds, counted = first or group_first, seconds + took, counted + tokens
        slides += sum(_slides(len(tokenizer.encode(s.prompt)), len(s.ids), shape, config) for s in samples)
        timing = {"seconds": took, "first_token_seconds": group_first, "tokens_per_second": tokens / took}
        for number, sample in enumerate([] if alone else samples):
            if begin + number and not as_json:
                print("\n---")
            sample.timing = timing
            output.write(sample)
    output.end()
    if as_json:
        return
    if slides:
        note(f"past the context ({shape.n_positions}) the window slid {_times(slides)}, and was read anew each time")
    note(f"{counted} tokens in {seconds:.2f} s, {counted / seconds:.1f} tokens/s ({first:.2f} s to the first)")


def _check_explanation(wanted: bool, others: dict[str, bool]) -> None:
    """Raises: ConfigError for what says something else about the text, or has nothing to say about its tokens."""
    other = next((name for name, given in others.items() if given), None)
    if wanted and other is not None:
        raise ConfigError(f"--explain and --table contradict {other}; give one of them")


def _open_meter(checkpoint: "Checkpoint", corpus: list[str], copied_words: int | None) -> "MemorizationMeter":
    """Imports the search only if it is used: that takes a tenth of a second."""
    from minigpt.cli.memorization import open_meter
    from minigpt.evaluation.memorization.index import LONG_RUN

    return open_meter(checkpoint, corpus, copied_words or LONG_RUN)


def _check_lengths(
    prompts: list[str], tokenizer: "Tokenizer", shape: "GPTConfig", config: SamplingConfig, *, strict: bool
) -> None:
    """Says which prompts are longer than the context length, or with `strict` refuses them."""
    for number, prompt in enumerate(prompts, 1):
        length = len(tokenizer.encode(prompt))
        if length <= shape.n_positions:
            continue
        which = "the prompt's" if len(prompts) == 1 else f"prompt {number}'s"
        if strict:
            raise ConfigError(
                f"{which} {length} tokens are more than the context ({shape.n_positions}); shorten it, or leave out "
                "--strict to go on from its end"
            )
        seen = f"its first {config.keep_first} and its end are" if config.keep_first else "only its end is"
        note(f"{which} {length} tokens are more than the context ({shape.n_positions}); {seen} seen")


def _rows_at_once(
    shape: "GPTConfig", prompts: list[str], tokenizer: "Tokenizer", config: SamplingConfig, device: Any
) -> int:
    """How many rows the memory has room for, a multiple of the samples.

    Raises: ConfigError where the samples of one prompt do not fit, saying how many would.
    """
    from minigpt.device import free_memory

    longest = max(len(tokenizer.encode(prompt)) for prompt in prompts) + config.max_new_tokens
    row = 2 * 4 * shape.n_layer * shape.n_embd * min(longest, shape.n_positions) + 8 * shape.vocab_size  # bytes
    side_by_side = max(config.samples, config.beams)
    fitting = int(0.8 * free_memory(device)) // row
    if fitting < side_by_side:
        raise ConfigError(
            f"{side_by_side} continuations side by side take {side_by_side * row / 1e9:.1f} GB for keys and values, "
            f"but {free_memory(device) / 1e9:.1f} GB are free; {max(1, fitting)} would fit"
        )
    return max(config.samples, min(fitting, _MOST_ROWS) // config.samples * config.samples)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _slides(n_prompt: int, n_new: int, shape: "GPTConfig", config: SamplingConfig) -> int:
    """How often the window moved while new tokens came behind a prompt."""
    from minigpt.generation.decoding import window_start

    kept = config.keep_first
    lengths = range(max(1, n_prompt), n_prompt + n_new)
    starts = {window_start(length - kept, shape.n_positions - kept) for length in lengths}
    return max(0, len(starts) - 1)
