"""What it costs to keep generated text UTF-8: tokens per second with and without the constraint, in turn.

    python benchmarks/utf8.py --rounds 40

The models have random weights: the nano preset with 1,024 tokens, and GPT-2 small's shape with GPT-2's tokenizer. Their
text has far more incomplete characters than English text, so that the figures are upper bounds. Each round continues a
prompt by 100 tokens with both settings, one sequence, in alternating order, so that a change of the machine's speed
affects both. The ratio is the median of the rounds' ratios.
"""

import argparse
import time
from typing import TYPE_CHECKING, Any

from measuring import add_options, describe, machine, median, print_progress, table, write_results

if TYPE_CHECKING:
    from minigpt.generation.engine import Engine
    from minigpt.tokenizer.tokenizer import Tokenizer

N_NEW = 100
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen; naïve Grüße, 朝起きると雨だった。 "


def build(preset: str, quantization: str) -> "tuple[Engine, Tokenizer]":
    """A model with a preset's shape and random weights, and its tokenizer."""
    import torch

    from minigpt.config import PRESETS
    from minigpt.generation.resolve_engine import resolve_engine
    from minigpt.model.gpt import GPT
    from minigpt.tokenizer.tokenizer import Tokenizer

    torch.manual_seed(0)
    words = (f"{TEXT}word{number} " * 2 for number in range(2000))
    tokenizer = Tokenizer.named("gpt2") if preset == "gpt2" else Tokenizer.train(words, "bpe:1024")
    model = GPT(PRESETS[preset].replace(vocab_size=tokenizer.vocab_size)).eval()
    return resolve_engine(model, quantization), tokenizer  # type: ignore[arg-type]


def seconds(engine: "Engine", tokenizer: "Tokenizer", *, allow_invalid_utf8: bool) -> float:
    """The time of N_NEW tokens after a short prompt, without the first, which reads the prompt."""
    from minigpt.config import SamplingConfig
    from minigpt.generation.decoding import Decoder
    from minigpt.generation.sampling import Sampler
    from minigpt.model.gpt import eval_mode

    config = SamplingConfig(seed=0, allow_invalid_utf8=allow_invalid_utf8)
    prompt = tokenizer.encode("It was")
    decoder = Decoder(engine, [prompt], Sampler(config, tokenizer), vocab_size=tokenizer.vocab_size)
    with eval_mode(engine.model):
        decoder.advance()
        began = time.perf_counter()
        for _ in range(N_NEW):
            decoder.advance()
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, device=False)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    here, rows = machine(arguments.threads), []
    results: list[dict[str, Any]] = []
    for preset, quantization in (("nano", "none"), ("gpt2", "none"), ("gpt2", "int8")):
        engine, tokenizer = build(preset, quantization)
        for turn in range(arguments.rounds + 2):  # the first two warm up
            times = {}
            for allowed in (True, False) if turn % 2 else (False, True):
                times[allowed] = seconds(engine, tokenizer, allow_invalid_utf8=allowed)
            if turn >= 2:
                results.append(
                    {"model": preset, "engine": engine.description, "any": times[True], "utf8": times[False]}
                )
                print_progress(str(results[-1]))
        own = results[-arguments.rounds :]
        speeds = [f"{N_NEW / (median(result[key] for result in own) or 1):,.0f}" for key in ("any", "utf8")]
        ratio = median(result["any"] / result["utf8"] for result in own) or 1
        rows.append([preset, engine.description, *speeds, f"{100 * (ratio - 1):+.1f} %"])
        write_results(arguments.json, here, results)
    print(describe(here))
    print()
    print(table(["shape", "engine", "any bytes, tokens/s", "UTF-8, tokens/s", "difference"], rows))


if __name__ == "__main__":
    main()
