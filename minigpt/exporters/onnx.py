"""Writes a model as an ONNX graph with a KV cache, with the input and output names of Optimum and transformers.js.

    input_ids (B, T), attention_mask (B, S), position_ids (B, T), past_key_values.N.key and .value (B, H, S - T, D)
    -> logits (B, T, V), present.N.key and .value (B, H, S, D)

The graph repeats GPT.features and GPT.logits, operator by operator. `attention_mask` is 0 where a row is padded;
`position_ids` do not count the padding.
Source: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minigpt.model.gpt import GPT

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, ValueInfoProto

ONNX_MODEL, ONNX_WEIGHTS = "model.onnx", "model.onnx_data"
_OPSET, _IR_VERSION = 20, 9  # the first opset with GELU's tanh form, and its IR version
_MAX_INLINE_SIZE = 1_500_000_000  # bytes; a protobuf message has at most 2 GB
_BOOL = 9  # onnx.TensorProto.BOOL
_ALIGNMENT = 4096  # a page, so that readers can memory-map the weights
_MASKED = float(np.finfo(np.float32).min)  # not -inf, which gives NaN at padded positions, where everything is masked


def write_onnx(folder: Path, model: GPT, *, max_inline_size: int = _MAX_INLINE_SIZE) -> None:
    """Writes model.onnx into a folder; weights of more than `max_inline_size` bytes go into model.onnx_data.

    Raises: OSError.
    """
    import onnx

    if 4 * model.config.n_parameters <= max_inline_size:
        graph = _GraphBuilder(model, None).build()
    else:
        with (folder / ONNX_WEIGHTS).open("wb") as weights:
            graph = _GraphBuilder(model, weights).build()
    opset = onnx.helper.make_opsetid("", _OPSET)
    proto = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="minigpt")
    (folder / ONNX_MODEL).write_bytes(proto.SerializeToString())


class _GraphBuilder:
    """Builds the graph one operator at a time; a value is a name, as in ONNX."""

    def __init__(self, model: GPT, weights: BinaryIO | None) -> None:
        self.config = model.config
        self.state = model.state_dict()
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.constants: set[str] = set()

    def build(self) -> Any:
        """The graph of the complete model."""
        from onnx import helper

        config = self.config
        cache: list[int | str] = ["batch", config.n_head, "past", config.head_width]
        inputs = [_value("input_ids", ["batch", "new"], integer=True)]
        inputs += [_value("attention_mask", ["batch", "seen"], integer=True)]
        inputs += [_value("position_ids", ["batch", "new"], integer=True)]
        inputs += [_value(name, cache) for name in self.cache_names("past_key_values")]
        cache[2] = "seen"
        outputs = [_value("logits", ["batch", "new", config.vocab_size])]
        outputs += [_value(name, cache) for name in self.cache_names("present")]

        tokens = self.op("Gather", self.weight("token_embedding.weight"), "input_ids")  # (B, T, C)
        positions = self.op("Gather", self.weight("position_embedding.weight"), "position_ids")  # (B, T, C)
        x, mask = self.op("Add", tokens, positions), self.mask()
        for layer in range(config.n_layer):
            block = f"blocks.{layer}"
            x = self.op("Add", x, self.attention(self.norm(x, f"{block}.attention_norm"), mask, layer))
            hidden = self.linear(self.norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up_proj")  # (B, T, 4C)
            hidden = self.op("Gelu", hidden, approximate="tanh" if config.activation_function == "gelu_new" else "none")
            x = self.op("Add", x, self.linear(hidden, f"{block}.mlp.down_proj"))  # (B, T, C)
        # The tied head multiplies by the transposed embedding without copying it. Only Gemm can, in two dimensions.
        rows = self.op("Reshape", self.norm(x, "final_norm"), self.constant([-1, config.n_embd]))  # (B T, C)
        rows = self.op("Gemm", rows, "token_embedding.weight", transB=1)  # (B T, V)
        shape = self.op("Concat", self.op("Shape", "input_ids"), self.constant([config.vocab_size]), axis=0)
        self.op("Reshape", rows, shape, output="logits")  # (B, T, V)
        return helper.make_graph(self.nodes, "gpt2", inputs, outputs, self.initializers)

    def mask(self) -> str:
        """The attention mask, (B, 1, T, S): true for keys that are neither padding nor after the query."""
        past = self.op("Gather", self.op("Shape", "past_key_values.0.key"), self.constant(2))
        seen = self.op("Gather", self.op("Shape", "attention_mask"), self.constant(1))
        one = self.constant(1)
        queries = self.op("Range", past, seen, one)  # (T,)
        keys = self.op("Range", self.constant(0), seen, one)  # (S,)
        causal = self.op("LessOrEqual", keys, self.op("Unsqueeze", queries, self.constant([1])))  # (T, S)
        real = self.op("Cast", "attention_mask", to=_BOOL)  # (B, S)
        return self.op("And", causal, self.op("Unsqueeze", real, self.constant([1, 2])))

    def attention(self, x: str, mask: str, layer: int) -> str:
        """softmax(Q K^T / sqrt(D)) V, where K and V begin with the cached keys and values: (B, T, C) -> (B, T, C)."""
        config, name = self.config, f"blocks.{layer}.attention"
        fused = self.linear(x, f"{name}.qkv_proj")  # (B, T, 3C)
        by_head = self.constant([0, 0, config.n_head, config.head_width])
        query, key, value = (
            self.op("Transpose", self.op("Reshape", part, by_head), perm=[0, 2, 1, 3])  # (B, H, T, D)
            for part in self.ops("Split", fused, outputs=[f"{name}.{part}" for part in "qkv"], axis=-1, num_outputs=3)
        )
        past_key, past_value = f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"
        key = self.op("Concat", past_key, key, axis=2, output=f"present.{layer}.key")  # (B, H, S, D)
        value = self.op("Concat", past_value, value, axis=2, output=f"present.{layer}.value")  # (B, H, S, D)
        query = self.op("Mul", query, self.constant(1 / math.sqrt(config.head_width)))
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))  # (B, H, T, S)
        scores = self.op("Where", mask, scores, self.constant(_MASKED))
        attended = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)  # (B, H, T, D)
        joined = self.op("Transpose", attended, perm=[0, 2, 1, 3])  # (B, T, H, D)
        joined = self.op("Reshape", joined, self.constant([0, 0, config.n_embd]))  # (B, T, C)
        return self.linear(joined, f"{name}.out_proj")

    def linear(self, x: str, name: str) -> str:
        """x W + b."""
        return self.op("Add", self.op("MatMul", x, self.weight(f"{name}.weight")), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        """The layer norm of that name."""
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, weight, bias, epsilon=self.config.layer_norm_epsilon)

    def cache_names(self, prefix: str) -> list[str]:
        """Optimum's names of every layer's cached keys and values."""
        return [f"{prefix}.{layer}.{part}" for layer in range(self.config.n_layer) for part in ("key", "value")]

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Adds one operator and returns the name of its result."""
        return self.ops(kind, *inputs, outputs=[output or f"{kind}_{len(self.nodes)}"], **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: list[str], **attributes: Any) -> list[str]:
        """Adds one operator with several results and returns their names."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))
        return outputs

    def constant(self, value: float | list[int]) -> str:
        """A small tensor: float32 for a float, int64 for integers."""
        name = f"constant_{value}"
        if name not in self.constants:
            dtype = np.float32 if isinstance(value, float) else np.int64
            self.constants.add(name)
            self.initializers.append(_tensor(name, np.array(value, dtype=dtype)))
        return name

    def weight(self, name: str) -> str:
        """One of the model's tensors; matrices are transposed, since the graph has x W and torch x W^T."""
        tensor = self.state[name].detach().float().cpu()
        array = (tensor.t() if name.endswith("_proj.weight") else tensor).contiguous().numpy()
        self.initializers.append(_tensor(name, array, self.weights))
        return name


def _tensor(name: str, array: npt.NDArray[Any], file: BinaryIO | None = None) -> TensorProto:
    """A tensor that contains its values or, if there is a file, refers to the values written there."""
    from onnx import TensorProto, helper

    proto = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    if file is None:
        proto.raw_data = array.tobytes()
        return proto
    file.write(bytes(-file.tell() % _ALIGNMENT))
    proto.data_location = TensorProto.EXTERNAL
    for key, value in {"location": ONNX_WEIGHTS, "offset": file.tell(), "length": array.nbytes}.items():
        proto.external_data.add(key=key, value=str(value))
    file.write(array.data)
    return proto


def _value(name: str, shape: list[int | str], *, integer: bool = False) -> ValueInfoProto:
    """The type of an input or an output; variable dimensions have names."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.INT64 if integer else TensorProto.FLOAT, shape)
