"""Exported pages: size of the file, seconds until the page can write, tokens per second in Chromium and Firefox.

    python benchmarks/exported_page.py [--shapes nano micro mini gpt2] [--browsers chromium firefox] [--tokens 200]
    npm install --ignore-scripts onnxruntime-web @huggingface/transformers
    python benchmarks/exported_page.py --packages node_modules

The weights are random, which compresses a little less than trained ones. gpt2 has its own vocabulary, the others
`--vocabulary` tokens. The time until the page is ready counts from the start of its loading to the message that the
model is open. The speed is the one that the page shows, for greedy texts from an empty prompt, with probabilities and
alternatives of each token.

`--packages` runs the same weights in onnxruntime-web and in transformers.js, which is built on it: the ONNX export, its
matrices in int8 for each output by onnxruntime's quantize_dynamic, with a KV cache, on one thread of the WebAssembly
backend. The loop of `ort` takes the most likely token and does nothing else; `transformers` is its pipeline for text
generation, greedy. Both are served from this machine, because they cannot be opened as a file. Their size is that of
the graph, without the runtime.
"""

import argparse
import contextlib
import functools
import http.server
import importlib.util
import json
import logging
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "demo" / "sherlock_holmes.txt"
ROUNDS = 5
RUNTIME = (
    "ort.wasm.min.js",
    *(f"ort-wasm-simd-threaded{kind}.{ending}" for kind in ("", ".asyncify") for ending in ("mjs", "wasm")),
)
TRANSFORMERS_PAGE = """<!doctype html><title>transformers.js</title><script type="module">
import { env, pipeline } from "./transformers.min.js";
const { tokens, rounds } = SETTINGS;
globalThis.measured = (async () => {
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/", useBrowserCache: false });
  const name = "/ort-wasm-simd-threaded.asyncify";
  env.backends.onnx.wasm.wasmPaths = { mjs: `${name}.mjs`, wasm: `${name}.wasm` };
  env.backends.onnx.wasm.numThreads = 1;
  const generate = await pipeline("text-generation", "model", { dtype: "q8", device: "wasm" });
  const ready = performance.now() / 1000, speeds = [];
  for (let round = 0; round < rounds; round++) {
    const started = performance.now();
    await generate("The", { max_new_tokens: tokens, min_new_tokens: tokens, do_sample: false });
    speeds.push(tokens / (performance.now() - started) * 1000);
  }
  return [ready, speeds];
})();
</script>"""
RUNTIME_PAGE = """<!doctype html><title>onnxruntime-web</title><script src="ort.wasm.min.js"></script><script>
const { layers, heads, width, tokens, rounds } = SETTINGS;
const int64 = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
async function write(session) {
  const cache = {};
  for (let layer = 0; layer < layers; layer++) for (const kind of ["key", "value"])
    cache[`past_key_values.${layer}.${kind}`] = new ort.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
  let id = 0;
  const started = performance.now();
  for (let position = 0; position < tokens; position++) {
    const result = await session.run({ ...cache, input_ids: int64([id]), position_ids: int64([position]),
      attention_mask: int64(new Array(position + 1).fill(1)) });
    const logits = result.logits.data;
    id = 0;
    for (let other = 1; other < logits.length; other++) if (logits[other] > logits[id]) id = other;
    for (const name of Object.keys(cache)) cache[name] = result[name.replace("past_key_values", "present")];
  }
  return tokens / (performance.now() - started) * 1000;
}
globalThis.measured = (async () => {
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create("model.onnx", { executionProviders: ["wasm"] });
  const ready = performance.now() / 1000, speeds = [];
  for (let round = 0; round < rounds; round++) speeds.push(await write(session));
  return [ready, speeds];
})();
</script>"""


def random_model(shape: str, vocabulary: int) -> tuple[Any, Any]:
    """A random model of this shape, and a tokenizer."""
    import dataclasses

    import torch

    from minigpt.config import preset_config
    from minigpt.model.gpt import GPT
    from minigpt.tokenizer.tokenizer import Tokenizer

    tokenizer = (
        Tokenizer.named("gpt2")
        if shape == "gpt2"
        else Tokenizer.train([TEXT.read_text(encoding="utf-8")], f"bpe:{vocabulary}")
    )
    torch.manual_seed(0)
    return GPT(dataclasses.replace(preset_config(shape), vocab_size=tokenizer.vocab_size)).eval(), tokenizer


def measure_page(browser: Any, path: Path, tokens: int) -> dict[str, str]:
    """Opens a page, writes texts, and returns the page's figures."""
    browser.open(path)
    wait(browser, "document.body.dataset.ready")
    ready = float(browser.ask("document.body.dataset.ready")) / 1000
    arithmetic = browser.ask("document.getElementById('status').textContent")
    for name, value in {"count": tokens, "temperature": 0}.items():
        browser.ask(f"document.getElementById('setting-{name}').value = '{value}'")
    speeds = []
    for _ in range(ROUNDS):
        browser.ask("document.getElementById('continue').click()")
        wait(browser, "document.getElementById('stop').hidden")
        facts = browser.ask("document.querySelector('.facts').textContent")
        speeds.append(float(facts.split(" tokens/s")[0].split()[-1].replace(",", "")))
    return figures(ready, speeds) | {"by": arithmetic.removeprefix("Ready (").removesuffix(").")}


def figures(ready: float, speeds: list[float]) -> dict[str, str]:
    """Seconds until ready; the median, lowest and highest speed."""
    median = statistics.median(speeds)
    return {"ready, s": f"{ready:.2f}", "tokens/s": f"{median:,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f})"}


def wait(browser: Any, condition: str) -> None:
    """Waits until a condition holds in the page, at most five minutes."""
    end = time.monotonic() + 300
    while not browser.ask(f"Boolean({condition})"):
        if time.monotonic() > end:
            raise SystemExit("the page does not answer: " + browser.ask("document.body.innerText"))
        time.sleep(0.1)


def write_quantized_onnx(folder: Path, model: Any) -> int:
    """Writes model.onnx in int8 into a folder; returns its size."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from minigpt.exporters.onnx import write_onnx

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as exact:
        write_onnx(Path(exact), model)
        source = Path(exact) / "model.onnx"
        proto = onnx.load(source)
        untie_head(proto.graph)
        onnx.save(proto, source)
        quantize_dynamic(source, folder / "model.onnx", weight_type=QuantType.QInt8, per_channel=True)
    return (folder / "model.onnx").stat().st_size


def untie_head(graph: Any) -> None:
    """Gives the output matrix a copy of the embedding: quantize_dynamic transposes the one that both share."""
    import numpy as np
    from onnx import numpy_helper

    (head,) = [node for node in graph.node if node.op_type == "Gemm"]
    weight = next(tensor for tensor in graph.initializer if tensor.name == head.input[1])
    transposed = np.ascontiguousarray(numpy_helper.to_array(weight).T)
    graph.initializer.append(numpy_helper.from_array(transposed, "head.weight"))
    head.op_type, head.input[1] = "MatMul", "head.weight"
    del head.attribute[:]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


def measure_runtime(browser: Any, folder: Path, page: str, settings: dict[str, int]) -> dict[str, str]:
    """Serves the folder with this page, which measures itself."""
    (folder / "index.html").write_text(page.replace("SETTINGS", json.dumps(settings)), encoding="utf-8")
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.visit(f"http://127.0.0.1:{server.server_port}/index.html")
        ready, speeds = browser.ask("globalThis.measured")
        server.shutdown()
    return figures(ready, speeds)


def prepare_runtimes(folder: Path, packages: Path, model: Any, tokenizer: Any) -> int:
    """Fills a folder with what the two runtimes load; returns the size of the graph."""
    from minigpt.storage.checkpoint import save_checkpoint

    for name in RUNTIME:
        shutil.copy(packages / "onnxruntime-web" / "dist" / name, folder)
    shutil.copy(packages / "@huggingface" / "transformers" / "dist" / "transformers.min.js", folder)
    save_checkpoint(folder / "model", model, tokenizer)
    (folder / "model" / "onnx").mkdir()
    size = write_quantized_onnx(folder, model)
    (folder / "model" / "onnx" / "model_quantized.onnx").hardlink_to(folder / "model.onnx")
    return size


def load(path: Path) -> Any:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chromium(folder: Path) -> Any:
    """The browser that the tests use."""
    module = load(ROOT / "tests" / "browser" / "conftest.py")
    program = next(filter(None, map(shutil.which, module.NAMES)), None)
    if program is None:
        raise SystemExit(f"no browser: none of {', '.join(module.NAMES)} is on the PATH")
    return module.Browser(program, folder / "chromium")


def firefox(folder: Path) -> Any:
    """The other one."""
    module = load(ROOT / "tests" / "shared" / "firefox.py")
    program = module.find_firefox()
    if program is None:
        raise SystemExit(f"no browser: none of {', '.join(module.NAMES)} is on the PATH")
    return module.Firefox(program, folder / "firefox")


BROWSERS: dict[str, Callable[[Path], Any]] = {"chromium": chromium, "firefox": firefox}


def main() -> None:
    """Prints one line of JSON for each shape and browser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["nano", "micro", "mini", "gpt2"])
    parser.add_argument("--browsers", nargs="+", default=list(BROWSERS), choices=list(BROWSERS))
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--packages", type=Path, help="the folder node_modules with the two runtimes")
    arguments = parser.parse_args()
    from minigpt.exporters.html.page import PageText, write_page

    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            model, tokenizer = random_model(shape, arguments.vocabulary)
            path = folder / f"{shape}.html"
            with path.open("wb") as file:
                write_page(file, model, tokenizer, PageText(title=shape))
            size = path.stat().st_size
            served = folder / "served"
            if arguments.packages:
                served.mkdir()
                graph_size = prepare_runtimes(served, arguments.packages, model, tokenizer)
            config = model.config
            settings = {
                "layers": config.n_layer, "heads": config.n_head, "width": config.head_width, "rounds": ROUNDS,
                "tokens": min(arguments.tokens, config.n_positions - 8),
            }  # fmt: skip
            for name in arguments.browsers:
                row = {"shape": shape, "browser": name}
                with contextlib.closing(BROWSERS[name](folder)) as browser:
                    found = measure_page(browser, path, arguments.tokens)
                    print(json.dumps(row | {"program": "page", "MB": f"{size / 1e6:.2f}"} | found), flush=True)
                    for program, page in {"ort": RUNTIME_PAGE, "transformers": TRANSFORMERS_PAGE}.items():
                        if arguments.packages:
                            found = measure_runtime(browser, served, page, settings)
                            own = {"program": program, "MB": f"{graph_size / 1e6:.2f}"}
                            print(json.dumps(row | own | found), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
