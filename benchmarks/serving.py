"""Servers under load: `minigpt serve`, llama.cpp's server and `transformers serve`.

    python benchmarks/serving.py --json serving.json
    python benchmarks/serving.py --memory 2000

All servers have random weights in GPT-2 small's shape. A number of clients send requests one after another, each with
another prompt of 128 tokens, and read a stream of 128 tokens. "Tokens/s" is what all clients get together; the times
are those that a client sees: to the first piece, and between pieces. One server runs at a time; each round measures all
of them in turn, so compare ratios within a round. A missing peer is reported and skipped.

`--memory N` sends N short requests to minigpt, of which every third is cut off by its client, and prints how the
server's memory grows.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from measuring import cores, describe, machine, print_progress, table, write_results

SHAPE: dict[str, Any] = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
N_PROMPT, N_NEW = 128, 128
START_SECONDS = 300.0


# The servers


@dataclass(frozen=True)
class Server:
    """How a server is started: its command for a port, the path that answers when it is ready, and its model's name."""

    name: str
    command: Callable[[int], list[str]]
    ready: str
    model: str


def minigpt_server(folder: Path, quantize: str, *options: str) -> Server:
    """`minigpt serve` with float32 or int8 weights."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "minigpt", "serve", str(folder), "--port", str(port), "--quantize", quantize,
                "--max-batch", "32", *options]  # fmt: skip

    name = "float32" if quantize == "none" else quantize
    return Server(f"minigpt {name}", command, "/health", folder.name)


def llama_server(file: Path, kind: str) -> Server | None:
    """llama.cpp's own server with 32 slots, or the one of llama-cpp-python, which runs one request at a time."""
    if program := shutil.which("llama-server"):
        slots = ["--parallel", "32", "--ctx-size", str(32 * (N_PROMPT + N_NEW + 16)), "--threads", str(cores())]
        return Server(
            f"llama.cpp {kind}",
            lambda port: [program, "--model", str(file), "--port", str(port), *slots],
            "/health",
            file.stem,
        )
    try:
        import llama_cpp.server.app  # noqa: F401
    except ImportError as error:
        print_progress(f"llama.cpp is skipped: no llama-server, and {error}; pip install 'llama-cpp-python[server]'")
        return None
    return Server(
        f"llama-cpp-python {kind}",
        lambda port: [sys.executable, "-m", "llama_cpp.server", "--model", str(file), "--port", str(port),
                      "--n_threads", str(cores()), "--n_ctx", "1024"],
        "/v1/models",
        file.stem,
    )  # fmt: skip


def transformers_server(folder: Path) -> Server | None:
    """`transformers serve` in float32. Its continuous batching, which is for GPUs, wrote 0.85 tokens/s on two cores."""
    program = shutil.which("transformers") or str(Path(sys.executable).with_name("transformers"))
    probe = (
        subprocess.run([program, "serve", "--help"], capture_output=True, check=False)
        if Path(program).exists()
        else None
    )
    if probe is None or probe.returncode:
        print_progress(
            "transformers is skipped: `transformers serve` does not start; pip install 'transformers[serving]'"
        )
        return None
    return Server(
        "transformers float32",
        lambda port: [program, "serve", str(folder), "--port", str(port)],
        "/health",
        str(folder),
    )


class Running:
    """A server process on a free port, ended with the context."""

    def __init__(self, server: Server) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.server = server
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = os.environ | {"OMP_NUM_THREADS": str(cores())}
        self.process = subprocess.Popen(server.command(self.port), stdout=self.log, stderr=self.log, env=environment)

    def __enter__(self) -> "Running":
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError(f"{self.server.name} does not start: {self.log.read().strip()[-300:]}")
            with suppress(OSError):
                if asyncio.run(get_status(self.port, self.server.ready)) == 200:
                    return self
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    @property
    def memory(self) -> int:
        """Bytes of memory of the process and its children that no file backs."""
        processes = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        return sum(process.memory_info().rss - process.memory_info().shared for process in processes)


# The clients


@dataclass
class Measured:
    """What the clients of one load saw, in seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


async def get_status(port: int, path: str) -> int:
    """The status of a GET request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def ask(port: int, body: dict[str, Any], measured: Measured, pieces: int | None = None) -> None:
    """Sends one streaming request and reads its pieces, or only the first few of them, and then leaves."""
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"  # fmt: skip # noqa: E501
    last = time.perf_counter()
    writer.write(head.encode() + content)
    status = int((await reader.readline()).split()[1])
    count = 0
    try:
        while line := await reader.readline():
            if status != 200:
                raise RuntimeError(f"status {status}: {(await reader.read()).decode()[-300:]}")
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            piece, now = json.loads(line[6:]), time.perf_counter()
            if "error" in piece:
                raise RuntimeError(piece["error"]["message"])
            if piece.get("choices"):
                (measured.between if count else measured.first).append(now - last)
                last, count = now, count + 1
            if piece.get("usage"):
                measured.tokens += piece["usage"]["completion_tokens"]
            if count == pieces:
                return
    finally:
        writer.close()


@cache
def words() -> list[str]:
    """The words of GPT-2's vocabulary that are one token each, after whatever text they stand."""
    from minigpt import Tokenizer

    return [word for word in Tokenizer.named("gpt2").token_strings if re.fullmatch("\u0120[a-z]+", word)]


def new_body(model: str, draw: random.Random, prompt: int = N_PROMPT, new: int = N_NEW) -> dict[str, Any]:
    """A request with a prompt of random words, a token each, that does not end by itself."""
    text = "".join(draw.choices(words(), k=prompt)).replace("\u0120", " ")
    return {"model": model, "prompt": text, "max_tokens": new, "temperature": 1.0, "seed": draw.randrange(2**31),
            "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"50256": -100}}  # fmt: skip


async def load(running: Running, clients: int, each: int) -> Measured:
    """Lets clients send `each` requests one after another, all at once."""
    measured = Measured()

    async def client(number: int) -> None:
        draw = random.Random(number)
        for _ in range(each):
            await ask(running.port, new_body(running.server.model, draw), measured)

    begin = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    measured.seconds = time.perf_counter() - begin
    if not measured.tokens:  # a server without usage in streams
        measured.tokens = len(measured.first) + len(measured.between)
    return measured


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies, interpolated linearly, in milliseconds; 0 without values."""
    return 1000 * float(np.quantile(values, share)) if values else 0.0


async def churn(running: Running, count: int) -> list[tuple[int, int]]:
    """Sends short requests eight at a time; every third is cut off: requests so far and bytes of memory."""
    draw, sizes, done = random.Random(0), [], 0
    numbers = iter(range(count))

    async def client() -> None:
        nonlocal done
        for number in numbers:
            pieces = number % 5 + 1 if number % 3 == 0 else None
            await ask(running.port, new_body(running.server.model, draw, 32, 16), Measured(), pieces)
            done += 1
            if done % max(1, count // 10) == 0:
                sizes.append((done, running.memory))
                print_progress(f"{done} requests: {running.memory / 1e6:,.0f} MB")

    await asyncio.gather(*(client() for _ in range(8)))
    return sizes


# The models


def write_models(folder: Path, kinds: Sequence[str]) -> tuple[Path, dict[str, Path]]:
    """Random weights as a checkpoint, and as GGUF files of these kinds if they can be written."""
    import torch

    from minigpt import GPT, GPTConfig, Tokenizer
    from minigpt.storage.checkpoint import save_checkpoint

    torch.manual_seed(0)
    checkpoint = save_checkpoint(folder / "small", GPT(GPTConfig(**SHAPE)), Tokenizer.named("gpt2"))
    files = {}
    for kind in kinds:
        file = folder / f"{kind}.gguf"
        command = [
            sys.executable,
            "-m",
            "minigpt",
            "export",
            str(checkpoint),
            "--to",
            "gguf",
            "--dtype",
            kind,
            "--output",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print_progress(f"llama.cpp {kind} is skipped: {done.stderr.strip().splitlines()[-1]}")
        else:
            files[kind] = file
    return checkpoint, files


def main() -> None:
    """Measures, then prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--requests", type=int, default=2, help="requests of each client [2]")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured [1]")
    parser.add_argument("--only", nargs="+", default=[], help="measure only servers whose names contain one of these")
    parser.add_argument("--memory", type=int, help="send this many short requests instead, a third of them cut off")
    parser.add_argument("--json", type=Path, help="write the raw numbers to this file")
    options = parser.parse_args()
    here, results = machine(cores()), []
    with tempfile.TemporaryDirectory() as name:
        wanted = [] if options.memory else ["f32", "q8_0"]
        checkpoint, files = write_models(Path(name), wanted)
        no_cache = ("--prefix-cache", "0")
        servers = [minigpt_server(checkpoint, quantize, *no_cache) for quantize in ("int8", "none")]
        if options.memory:
            with Running(minigpt_server(checkpoint, "int8", "--prefix-cache", "64")) as running:
                sizes = asyncio.run(churn(running, options.memory))
            print(table(("requests", "memory, MB"), [(f"{count:,}", f"{size / 1e6:,.0f}") for count, size in sizes]))
            return
        found = [llama_server(file, kind) for kind, file in files.items()] + [transformers_server(checkpoint)]
        servers += [server for server in found if server is not None]
        servers = [each for each in servers if not options.only or any(part in each.name for part in options.only)]
        for round_number in range(options.rounds):
            for server in servers:
                try:
                    with Running(server) as running:
                        asyncio.run(load(running, 1, 1))  # caches and kernels are warm from here on
                        for clients in options.clients:
                            measured = asyncio.run(load(running, clients, options.requests))
                            results.append(summary(server.name, clients, measured, round_number))
                            print_progress(" · ".join(f"{key} {value}" for key, value in results[-1].items()))
                            write_results(options.json, here, results)
                except RuntimeError as error:
                    print_progress(str(error))
    print(describe(here))
    header = ("server", "clients", "tokens/s", "first token p50, ms", "p95", "between tokens p50, ms", "p95")
    rows = [
        (each["server"], str(each["clients"]), f"{each['tokens_per_second']:.1f}",
         *(f"{each[key]:.0f}" for key in ("first_p50", "first_p95", "between_p50", "between_p95")))
        for each in results
    ]  # fmt: skip
    print(table(header, rows))


def summary(server: str, clients: int, measured: Measured, round_number: int) -> dict[str, Any]:
    """One row of the results; times in milliseconds."""
    return {
        "server": server,
        "clients": clients,
        "round": round_number,
        "tokens_per_second": round(measured.tokens / measured.seconds, 2),
        "first_p50": round(quantile(measured.first, 0.5), 1),
        "first_p95": round(quantile(measured.first, 0.95), 1),
        "between_p50": round(quantile(measured.between, 0.5), 2),
        "between_p95": round(quantile(measured.between, 0.95), 2),
    }


if __name__ == "__main__":
    main()
