"""Generation speed on a CPU: minigpt, transformers, nanoGPT, CTranslate2, llama.cpp and the limit of the memory.

    python benchmarks/generation.py --nanogpt PATH/TO/nanoGPT --json generation.json --plot generation.svg

Peers are optional: `pip install transformers ctranslate2 llama-cpp-python gguf`; a missing peer is reported and
skipped. All engines use the same prompt and random weights in GPT-2 small's shape; nanoGPT draws other weights. Each
generates 128 tokens greedily, one sequence. Every measurement runs in a separate process, and each round measures all
engines in turn. If the speed of the machine drifts, it affects all engines, so compare ratios within a round. Tokens
per second exclude the first token. "Limit" is the speed at which all weights can be read once per token at the
bandwidth of a plain read in the same round: 4 bytes a weight in float32, 1 in int8. Position embeddings are not
counted, since each token reads one row of them.

`--start` measures the time of a whole `minigpt generate x --max-new-tokens 1` beyond `import torch`.
`--quality MODEL TEXT` measures how much int8 weights change a trained model's predictions on a text.
"""

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import (
    WorkerError,
    add_options,
    available_engines,
    describe,
    draw,
    figure,
    machine,
    median,
    print_progress,
    run_job,
    spread,
    table,
    write_results,
)  # fmt: skip

N_NEW, N_LONG = 128, 512
PROMPT, LONG_PROMPT = list(range(100, 116)), list(range(1000, 1000 + N_LONG))
BYTES = {"float32": 4.0, "int8": 1.0, "F32": 4.0, "Q8_0": 1.0625, "Q4_0": 0.5625, "bfloat16": 2.0}
ENGINES = (
    "minigpt-float32", "minigpt-int8", "minigpt-pytorch", "transformers-float32", "nanogpt-float32",
    "ctranslate2-float32", "ctranslate2-int8", "llama.cpp-F32", "llama.cpp-Q8_0", "llama.cpp-Q4_0",
)  # fmt: skip
BANDWIDTH = "bandwidth"


# The worker: one engine in one process. Each engine is a function from (prompt ids, count) to an iterator of ids.


def minigpt_engine(kind: str, folder: Path) -> Callable[[list[int], int], Any]:
    import torch

    from minigpt.config import SamplingConfig
    from minigpt.generation.decoding import generate
    from minigpt.generation.engine import Engine
    from minigpt.generation.resolve_engine import resolve_engine
    from minigpt.storage.checkpoint import load_checkpoint

    model = load_checkpoint(folder / "model", "cpu", mapped=True).model
    engine = Engine(model) if kind == "pytorch" else resolve_engine(model, "int8" if kind == "int8" else "none")
    return lambda prompt, count: generate(
        engine, torch.tensor([prompt]), SamplingConfig(max_new_tokens=count, temperature=0)
    )


def transformers_engine(_kind: str, folder: Path, seconds: float | None = None) -> Callable[[list[int], int], Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None

    class Tokens:  # transformers' streamer interface
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, _value: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None: ...

    def generate(prompt: list[int], count: int) -> Any:
        tokens = Tokens()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                max_time=seconds,
                streamer=tokens,
            )
        return tokens.times[1:]  # the first call passes the prompt

    return generate


def nanogpt_engine(_kind: str, folder: Path, nanogpt: str) -> Callable[[list[int], int], Any]:
    import torch

    sys.path.insert(0, nanogpt)
    from model import GPT, GPTConfig

    del folder
    model = GPT(GPTConfig(dropout=0.0)).eval()  # its own random weights: it loads only OpenAI's weights

    def generate(prompt: list[int], count: int) -> Any:
        ids = torch.tensor([prompt])
        for _ in range(count):
            ids = model.generate(ids, 1, top_k=1)
            yield ids[0, -1]

    return generate


def ctranslate2_engine(kind: str, folder: Path, threads: int) -> Callable[[list[int], int], Any]:
    import ctranslate2

    generator = ctranslate2.Generator(
        str(folder / "ct2"), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )
    tokens = json.loads((folder / "ct2" / "vocabulary.json").read_text())

    def generate(prompt: list[int], count: int) -> Any:
        stream = generator.generate_tokens(
            [tokens[id] for id in prompt], max_length=count, min_length=count, sampling_topk=1, end_token=[]
        )
        yield from stream

    return generate


def llama_engine(kind: str, folder: Path, threads: int) -> Callable[[list[int], int], Any]:
    import llama_cpp
    import numpy as np

    llama = llama_cpp.Llama(
        str(folder / f"{kind}.gguf"), n_threads=threads, n_threads_batch=threads, n_ctx=1024, n_batch=N_LONG,
        n_ubatch=N_LONG, verbose=False,
    )  # fmt: skip
    vocab_size = llama.n_vocab()

    def read(ids: list[int]) -> int:
        array = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(llama.ctx, llama_cpp.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (vocab_size,))
        return int(logits.argmax())

    def generate(prompt: list[int], count: int) -> Any:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)
        token = read(prompt)
        yield token
        for _ in range(count - 1):
            token = read([token])
            yield token

    return generate


def read_bandwidth(threads: int) -> dict[str, float]:
    """Bytes per second when summing 512 MB, the best of several tries."""
    import torch

    torch.set_num_threads(threads)
    numbers = torch.ones(2**27)
    best = 0.0
    for _ in range(12):
        began = time.perf_counter()
        numbers.sum()
        best = max(best, 4 * 2**27 / (time.perf_counter() - began))
    return {"bandwidth": best}


def times(tokens: Any, began: float, seconds: float = math.inf) -> list[float]:
    """Seconds from `began` to each token; stops at `seconds` if there are two and the engine yields them one by one."""
    if isinstance(tokens, list):
        return [at - began for at in tokens]
    found: list[float] = []
    for _ in tokens:
        found.append(time.perf_counter() - began)
        if len(found) > 1 and found[-1] >= seconds:
            break
    return found


def load_engine(job: dict[str, Any], seconds: float | None = None) -> Callable[[list[int], int], Any]:
    """The function of a job's engine from (prompt ids, count) to tokens; transformers' stops by itself at `seconds`."""
    folder, threads = Path(job["folder"]), job["threads"]
    name, _, kind = job["engine"].partition("-")
    if name not in ("ctranslate2", "llama.cpp"):
        import torch

        torch.set_num_threads(threads)
    makers: dict[str, Callable[[str, Path], Any]] = {
        "minigpt": minigpt_engine,
        "transformers": functools.partial(transformers_engine, seconds=seconds),
        "nanogpt": functools.partial(nanogpt_engine, nanogpt=job["nanogpt"]),
        "ctranslate2": functools.partial(ctranslate2_engine, threads=threads),
        "llama.cpp": functools.partial(llama_engine, threads=threads),
    }
    return makers[name](kind, folder)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one measurement in this process."""
    if job["engine"] == BANDWIDTH:
        return read_bandwidth(job["threads"])
    generate = load_engine(job)
    times(generate(PROMPT, 8), 0.0)  # a warm-up
    began = time.perf_counter()
    at = times(generate(PROMPT, job["tokens"]), began)
    prompts = {str(length): first_token(generate, list(range(1000, 1000 + length))) for length in job["prompts"]}
    return {
        "tokens_per_second": (len(at) - 1) / (at[-1] - at[0]),
        "first_token": at[0],
        "long_prompt": first_token(generate, LONG_PROMPT),
        "prompts": prompts,
    }


def first_token(generate: Callable[[list[int], int], Any], prompt: list[int]) -> float:
    """The seconds to the first token after a prompt: the shorter of two times."""
    took = []
    for _ in range(2):
        began = time.perf_counter()
        took.append(times(generate(prompt, 1), began)[0])
    return min(took)


# The models, built once.


def make_models(folder: Path, engines: list[str]) -> None:
    """Writes the same random weights in the format of every engine; runs in a separate process."""
    import torch

    from minigpt.config import GPTConfig
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import save_checkpoint
    from minigpt.tokenizer.tokenizer import Tokenizer

    torch.manual_seed(0)
    model, tokenizer = GPT(GPTConfig()), Tokenizer.named("gpt2")
    save_checkpoint(folder / "model", model, tokenizer)
    if any(engine.startswith("ctranslate2") for engine in engines):
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder / "model")).convert(str(folder / "ct2"))
    for engine in engines:
        if engine.startswith("llama.cpp"):
            write_gguf(folder / f"{engine.partition('-')[2]}.gguf", model, tokenizer, engine.partition("-")[2])


def write_gguf(path: Path, model: Any, tokenizer: Any, kind: str) -> None:
    """Writes the model as GGUF, with its matrices in one of llama.cpp's types."""
    import gguf

    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    vocabulary = json.loads((path.parent / "model" / "tokenizer.json").read_text())
    tokens = sorted(vocabulary["model"]["vocab"], key=vocabulary["model"]["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<|endoftext|>"][: tokenizer.vocab_size])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.end_of_text)
    writer.add_bos_token_id(tokenizer.end_of_text)
    names = {"token_embedding": "token_embd", "position_embedding": "position_embd", "final_norm": "output_norm"}
    parts = {
        "attention_norm": "attn_norm", "attention.qkv_proj": "attn_qkv", "attention.out_proj": "attn_output",
        "mlp_norm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    quantized = gguf.GGMLQuantizationType[kind]
    for ours, tensor in state.items():
        module, _, end = ours.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            name = f"blk.{layer}.{parts[part]}.{end}"
        else:
            name = f"{names[module]}.{end}"
        numbers = tensor.float().numpy()
        if tensor.dim() == 2 and name != "position_embd.weight" and kind != "F32":
            writer.add_tensor(name, gguf.quants.quantize(numbers, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# The parent process.


def weights_read() -> float:
    """The number of weights that GPT-2 small reads per token: all except the position embeddings."""
    c = 768
    return 50257 * c + 12 * (12 * c * c + 13 * c) + 2 * c


def report(results: list[dict[str, Any]], engines: list[str]) -> str:
    """A Markdown table: medians, and the medians of the ratios within each round."""
    rows = []
    rounds = sorted({result["round"] for result in results})
    found = {(result["round"], result["engine"]): result for result in results if "error" not in result}

    def ratios(engine: str, to: str) -> list[float | None]:
        pairs = [(found.get((turn, engine)), found.get((turn, to))) for turn in rounds]
        return [a["tokens_per_second"] / b["tokens_per_second"] if a and b else None for a, b in pairs]

    def of_limit(engine: str) -> list[float | None]:
        values: list[float | None] = []
        for turn in rounds:
            own, limit = found.get((turn, engine)), found.get((turn, BANDWIDTH))
            kind = engine.partition("-")[2]
            size = weights_read() * BYTES.get(kind, 4.0)
            values.append(100 * own["tokens_per_second"] * size / limit["bandwidth"] if own and limit else None)
        return values

    lengths = next((list(result["prompts"]) for result in found.values() if "prompts" in result), [])
    for engine in engines:
        own = [found[turn, engine] for turn in rounds if (turn, engine) in found]
        rows.append([
            engine,
            spread([r["tokens_per_second"] for r in own], ".1f"),
            spread(ratios(engine, "transformers-float32"), ".2f"),
            spread(of_limit(engine), ".0f"),
            spread([1e3 * r["long_prompt"] for r in own], ".0f"),
            *(spread([1e3 * r["prompts"][length] for r in own], ".0f") for length in lengths),
        ])  # fmt: skip
    header = ["engine", "tokens/s", "× transformers", "% of the limit"]
    header += [f"first token, {length}-token prompt, ms" for length in (N_LONG, *lengths)]
    bandwidth = spread(
        [found[turn, BANDWIDTH]["bandwidth"] / 1e9 for turn in rounds if (turn, BANDWIDTH) in found], ".1f"
    )
    return f"Plain read: {bandwidth} GB/s.\n\n{table(header, rows)}"


def picture(path: Path, results: list[dict[str, Any]], engines: list[str]) -> None:
    """Draws a bar for every engine: its median tokens per second."""
    drawing, (axes,) = figure(1, 0.4 * len(engines) + 1.2)
    middles = [
        median([r.get("tokens_per_second") for r in results if r["engine"] == engine]) or 0.0 for engine in engines
    ]
    order = sorted(range(len(engines)), key=middles.__getitem__)
    colors = ["tab:orange" if engines[place].startswith("minigpt") else "tab:gray" for place in order]
    bars = axes.barh([engines[place] for place in order], [middles[place] for place in order], color=colors)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_xlabel("tokens/s, GPT-2 small's shape, one sequence, greedy")
    axes.spines[["top", "right"]].set_visible(False)
    drawing.savefig(path)


def measure_start(folder: Path, rounds: int, threads: int) -> str:
    """Seconds of whole processes: `import torch`, and one generated token, in turn."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as in an ordinary installation
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "first token": [
            sys.executable, "-m", "minigpt", "generate", "x", "--max-new-tokens", "1", "--model", str(folder / "model")
        ],
    }  # fmt: skip
    took: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            if turn:  # the first fills the page cache
                took[name].append(time.perf_counter() - began)
    beyond = [first - alone for first, alone in zip(took["first token"], took["import torch"], strict=True)]
    rows = [[name, spread(list(values), ".2f")] for name, values in took.items()]
    return table(["process", "seconds"], [*rows, ["beyond import torch", spread(list(beyond), ".2f")]])


def measure_quality(model: Path, text: Path) -> str:
    """Compares the next-token distributions of float32 and int8 weights on the end of a text."""
    import torch

    from minigpt.generation.engine import Engine
    from minigpt.generation.resolve_engine import resolve_engine
    from minigpt.storage.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(model, "cpu")
    length = checkpoint.model.config.n_positions
    ids = checkpoint.tokenizer.encode(text.read_text(encoding="utf-8"))[-(16_384 + 1) :]

    def logprobs(engine: Engine, window: list[int]) -> torch.Tensor:
        first = engine.start([window[:1]])  # (1, V)
        rest = engine.read(torch.tensor([window[1:-1]]))[0]  # (T - 1, V)
        return torch.cat([first, rest]).log_softmax(-1)  # (T, V)

    exact, quantized = resolve_engine(checkpoint.model), resolve_engine(checkpoint.model, "int8")
    divergence, nats, agree, count = 0.0, [0.0, 0.0], 0, 0
    for begin in range(0, len(ids) - length, length):
        window = ids[begin : begin + length + 1]
        p, q = logprobs(exact, window), logprobs(quantized, window)
        divergence += (p.exp() * (p - q)).sum().item()
        wanted = torch.tensor(window[1:])[:, None]
        nats = [sum_ - lp.gather(1, wanted).sum().item() for sum_, lp in zip(nats, (p, q), strict=True)]
        agree += int((p.argmax(-1) == q.argmax(-1)).sum())
        count += len(window) - 1
    ratio = 2.718281828459045 ** ((nats[1] - nats[0]) / count)
    header = ["model", "tokens", "mean KL, nats", "perplexity, int8 / float32", "same most likely token"]
    row = [model.name, f"{count:,}", f"{divergence / count:.2e}", f"{ratio:.5f}", f"{100 * agree / count:.1f} %"]
    return table(header, [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, metavar="ENGINE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=N_NEW, help="new tokens, 128 in the published figures")
    parser.add_argument("--prompts", type=int, nargs="*", default=[], help="lengths of other prompts to read, too")
    parser.add_argument("--start", action="store_true", help="measure the start-up time instead")
    parser.add_argument(
        "--quality", type=Path, nargs=2, metavar=("MODEL", "TEXT"), help="measure what int8 costs instead"
    )
    parser.add_argument("--models", type=Path, help="keep the models in this folder and use those in it [temporary]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        job = json.loads(arguments.worker)
        if "make" in job:
            make_models(Path(job["folder"]), job["make"])
        print(json.dumps({} if "make" in job else work(job)))
        return
    if arguments.quality:
        print(measure_quality(*arguments.quality))
        return
    engines = available_engines(arguments.engines, arguments.nanogpt)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            run_job(__file__, {"folder": str(folder), "make": [] if arguments.start else engines}, arguments.threads)
        here = machine(arguments.threads)
        if arguments.start:
            print(f"{describe(here)}\n\n{measure_start(folder, arguments.rounds, arguments.threads)}")
            return
        results: list[dict[str, Any]] = []
        for turn in range(arguments.rounds):
            for engine in (BANDWIDTH, *engines):
                job = {
                    "engine": engine, "folder": str(folder), "threads": arguments.threads, "tokens": arguments.tokens,
                    "nanogpt": str(arguments.nanogpt), "prompts": arguments.prompts,
                }  # fmt: skip
                try:
                    figures = run_job(__file__, job, arguments.threads)
                except WorkerError as error:
                    figures = {"error": str(error)}
                results.append({"round": turn, "engine": engine, **figures})
                print_progress(f"round {turn + 1}: {engine}: {figures}")
                write_results(arguments.json, here, results)
    print(f"{describe(here)}\n\n{report(results, engines)}")
    draw(arguments.plot, lambda path: picture(path, results, engines))


if __name__ == "__main__":
    main()
