"""Writes a model as one HTML file that continues texts in any browser, and reads such a file back."""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters.html.build_wasm import MODULES
from minigpt.model.gpt import GPT
from minigpt.pages.document import document, joined_styles, policy_source, read_asset, read_body, scripts_of, styles_of
from minigpt.storage.names import encodable
from minigpt.tokenizer.tokenizer import Tokenizer

_MODULES = resources.files("minigpt.exporters.html")
# The scripts of the page, with their styles, and those that it hands to its worker as text.
_SHARED = ("page", "reading", "branches", "text", "prompt_form")
_OWN = ("attending", "writing")
_STYLES = ("page", "reading", "inspection", "text")
_ENGINE = (
    "payload.js", "tokenizer.js", "constraint.js", "sampler.js", "plain_model.js", "wasm_model.js", "generation.js",
)  # fmt: skip
_SCRIPTS = 94_000  # bytes of a page without its model, about
_LARGE = 60_000_000  # bytes; a larger page takes seconds to open, and much memory on a phone
_LARGEST = 500_000_000  # bytes; a browser's strings and the memory of WebAssembly end not far above
_ALIGNMENT = 64  # of an array: typed arrays of JavaScript need that of their numbers
# Browsers read many short elements faster than a few long ones. Bytes of one, of which base64 makes 64 KiB, and of what
# the page decodes at once, while the browser reads on.
_ELEMENT, _PART = 3 * 2**14, 3 * 2**18
_TAKE = "writing.take()"  # after each part
_ATTENTION = 150_000_000  # parameters; a larger model takes over a second for one token's attention weights
_BLOCK = re.compile(rb'<script type="text/plain" class="weights">([A-Za-z0-9+/=]*)</script>')
_DATA = re.compile(rb'<script type="application/json" id="data">([^<]*)</script>')


@dataclass(frozen=True, kw_only=True)
class PageText:
    """What the user says on the page: `title` is its heading, `note` stands below it, `prompt` is the first text."""

    title: str
    note: str = ""
    prompt: str = ""


def _expected_size(config: GPTConfig, tokenizer: Tokenizer) -> int:
    """About the size of the file in bytes; weights are a twentieth smaller when compressed."""
    rows = 9 * config.n_layer * config.n_embd  # outputs of the linear layers
    vectors = 3 * (config.n_positions * config.n_embd + rows)  # positions and biases are in float32
    scales = 4 * (rows + config.vocab_size)
    beside = [json.dumps(_tokenizer(tokenizer)).encode(), *((_MODULES / name).read_bytes() for name in MODULES)]
    packed = (config.n_parameters + vectors + scales) * 0.95 + len(zlib.compress(b"".join(beside)))
    return int(packed * 4 / 3) + _SCRIPTS


def check_page(config: GPTConfig, tokenizer: Tokenizer, *, large: bool) -> int:
    """About the size of a model's page in bytes, before it is written; above 60 MB only with `large`.

    Raises: ConfigError if the page cannot compute the model, or would be too large; TokenizerError if it cannot use the
    tokenizer.
    """
    size = _expected_size(config, tokenizer)
    if config.activation_function != "gelu_new":
        raise ConfigError(
            f"the page computes GELU in GPT-2's form (gelu_new), but the model has {config.activation_function}"
        )
    if size > _LARGEST:
        raise ConfigError(
            f"the page would have about {_megabytes(size)}, and must have at most {_megabytes(_LARGEST)}; export"
            " to gguf instead"
        )
    if size > _LARGE and not large:
        raise ConfigError(
            f"the page would have about {_megabytes(size)}, which phones and slow computers do not open well; write it"
            " with --yes"
        )
    return size


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def write_page(file: BinaryIO, model: GPT, tokenizer: Tokenizer, text: PageText) -> None:
    """Writes the page into an open file.

    Raises: OSError.
    """
    packed, length = _compress(model, tokenizer)
    scripts = scripts_of("minigpt.pages", *_SHARED) + scripts_of("minigpt.exporters.html", *_OWN)
    styles = styles_of("minigpt.pages", *_STYLES) + styles_of("minigpt.exporters.html", *_OWN)
    hashes = " ".join(map(policy_source, [*scripts, _TAKE]))
    policy = (
        f"default-src 'none'; script-src {hashes} 'wasm-unsafe-eval' blob:; worker-src blob:;"
        f" style-src {policy_source(joined_styles(styles))}"
    )
    title = encodable(text.title)
    data = {
        "length": length, "title": title, "note": text.note, "prompt": text.prompt,
        "parameters": model.config.n_parameters, "context": model.config.n_positions,
        "vocabulary": tokenizer.vocab_size, "heads": model.config.n_head,
        "showsAttention": model.config.n_parameters <= _ATTENTION,
    }  # fmt: skip
    body = "\n".join(
        [
            read_body("minigpt.exporters.html", "writing.html"),
            _inert("engine", map(_asset, _ENGINE)),
            _inert("worker", [_asset("worker.js")]),
        ]
    )
    page = document(title, "model", scripts, styles, data, policy=policy, body=body)
    before, end, after = page.rpartition("</body>")
    file.write(before.encode())
    for start in range(0, len(packed), _PART):
        part = memoryview(packed)[start : start + _PART]
        for at in range(0, len(part), _ELEMENT):
            encoded = base64.b64encode(part[at : at + _ELEMENT])
            file.write(b'<script type="text/plain" class="weights">' + encoded + b"</script>\n")
        file.write(f"<script>{_TAKE}</script>\n".encode())
    file.write((end + after).encode())


def _inert(name: str, scripts: Iterable[str]) -> str:
    """Scripts that the browser keeps as text, under this name."""
    return f'<script type="text/plain" id="{name}">{chr(10).join(scripts)}</script>'


def read_page(path: Path) -> tuple[GPT, dict[str, Any]]:
    """The model that a page holds, in float32, and the page's header.

    Raises: CheckpointError if the page is damaged; OSError.
    """
    content = path.read_bytes()
    found = _DATA.search(content)
    try:
        packed = b"".join(base64.b64decode(block, validate=True) for block in _BLOCK.findall(content))
        raw = zlib.decompress(packed)
        header = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])
        if found is None or len(raw) != json.loads(found[1])["length"]:
            raise ValueError("its length differs")
        arrays = {name: raw[at : at + size] for name, at, size in header["tensors"]}
        return _from_arrays(GPTConfig(**header["config"]), arrays), header
    except (ValueError, KeyError, zlib.error) as error:
        raise CheckpointError(f"{path} is not a page that minigpt wrote ({error})") from error


def _compress(model: GPT, tokenizer: Tokenizer) -> tuple[bytes, int]:
    """A JSON header and the arrays, compressed, and the length of the original in bytes.

    The original is the header's length in 4 bytes, the header, padding, and the arrays, each aligned.
    """
    arrays = [(name, array.tobytes()) for name, array in _to_arrays(model)]
    arrays += [(name, (_MODULES / name).read_bytes()) for name in MODULES]
    names = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "layer_norm_epsilon")
    config = {name: getattr(model.config, name) for name in names}
    header: dict[str, Any] = {"config": config, "tokenizer": _tokenizer(tokenizer), "tensors": []}
    # Offsets depend on the length of the header, in which they are: they count from a place with room for all digits.
    room = sum(len(json.dumps(name)) + 32 for name, _ in arrays)
    at = first = _aligned(4 + len(json.dumps(header)) + room)
    for name, array in arrays:
        header["tensors"].append([name, at, len(array)])
        at = _aligned(at + len(array))
    text = json.dumps(header).encode()
    text += b" " * (first - 4 - len(text))
    compressor = zlib.compressobj(9)
    pieces = [compressor.compress(len(text).to_bytes(4, "little") + text)]
    for _, array in arrays:
        pieces.append(compressor.compress(array + bytes(_aligned(len(array)) - len(array))))
    return b"".join([*pieces, compressor.flush()]), at


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokenizer.js needs; `ranks` are ids in the order of their merges, the bytes first."""
    vocabulary = tokenizer.byte_level("the page")
    return {
        "tokens": tokenizer.token_strings,
        "ranks": list(vocabulary.reachable_tokens.values()),
        "named": {**vocabulary.special, **vocabulary.added},
        "added": list(vocabulary.added),
        "endOfText": tokenizer.end_of_text,
        "ends": list(tokenizer.end_ids),
        "prefix": list(tokenizer.prefix_ids),
        "byCharacter": vocabulary.by_character,
        "special": list(vocabulary.special.values()),
        "hasMerges": bool(tokenizer.merges),
        "suppressed": list(tokenizer.suppressed_ids),
    }


def _asset(name: str) -> str:
    return read_asset("minigpt.exporters.html", name)


# Weights in int8
#
# The matrices and scales are those of `minigpt generate --quantize int8` (decode.c), which looks up a token's embedding
# in the same int8 matrix that computes the logits.

_LANES, _GROUP = 16, 4  # outputs and inputs of an int8 panel, as in decode.c
Array = npt.NDArray[Any]


def _to_arrays(model: GPT) -> Iterator[tuple[str, Array]]:
    """The arrays of a page by name, one after the other."""
    for name, module in _parts(model):
        if isinstance(module, nn.LayerNorm):
            yield f"{name}.weight", _float32(module.weight)
        else:
            values, scale = _rounded(_float32(module.weight))
            yield name, _to_panels(values)
            yield f"{name}.scale", np.pad(scale, (0, -len(scale) % _LANES))
        if not isinstance(module, nn.Embedding):
            yield f"{name}.bias", _float32(module.bias)
    yield "position_embedding", _float32(model.position_embedding.weight)


@torch.no_grad()
def _from_arrays(config: GPTConfig, arrays: Mapping[str, bytes]) -> GPT:
    """The model in float32 that the arrays of a page stand for."""
    model = GPT(config)

    def floats(name: str) -> Tensor:
        return torch.from_numpy(np.frombuffer(arrays[name], np.float32).copy())

    for name, module in _parts(model):
        if isinstance(module, nn.LayerNorm):
            module.weight.copy_(floats(f"{name}.weight"))
        else:
            out, width = module.weight.shape
            values = _from_panels(np.frombuffer(arrays[name], np.int8), out, width).astype(np.float32)
            module.weight.copy_(torch.from_numpy(values) * floats(f"{name}.scale")[:out, None])
        if not isinstance(module, nn.Embedding):
            module.bias.copy_(floats(f"{name}.bias"))
    model.position_embedding.weight.copy_(floats("position_embedding").view(-1, config.n_embd))
    return model.eval()


def _parts(model: GPT) -> Iterator[tuple[str, nn.LayerNorm | nn.Linear | nn.Embedding]]:
    """The modules of a model by their names in a page, but the position embedding, which is in float32."""
    block: Any
    for index, block in enumerate(model.blocks):
        yield f"layers.{index}.attention_norm", block.attention_norm
        yield f"layers.{index}.qkv_proj", block.attention.qkv_proj
        yield f"layers.{index}.out_proj", block.attention.out_proj
        yield f"layers.{index}.mlp_norm", block.mlp_norm
        yield f"layers.{index}.up_proj", block.mlp.up_proj
        yield f"layers.{index}.down_proj", block.mlp.down_proj
    yield "final_norm", model.final_norm
    yield "head", model.token_embedding


def _float32(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _rounded(rows: npt.NDArray[np.float32]) -> tuple[Array, Array]:
    """Rows as integers whose largest is 127, in the arithmetic of decode.c: (values, scales)."""
    largest = np.abs(rows).max(axis=1)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 1e-35, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    return np.rint(rows * inverse[:, None]), (largest / np.float32(127)).astype(np.float32)


def _to_panels(values: Array) -> Array:
    """int8 values (out, in) in panels of 16 outputs: (out / 16, in / 4, 16, 4), padded with 0."""
    out, width = values.shape
    padded = np.pad(values, ((0, -out % _LANES), (0, -width % _GROUP))).astype(np.int8)
    panels = padded.reshape(-1, _LANES, padded.shape[1] // _GROUP, _GROUP)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def _from_panels(values: Array, out: int, width: int) -> Array:
    """The inverse of `_to_panels`: -> (out, in)."""
    groups = -(-width // _GROUP)
    panels = values.reshape(-1, groups, _LANES, _GROUP).transpose(0, 2, 1, 3)
    return panels.reshape(-1, groups * _GROUP)[:out, :width]
