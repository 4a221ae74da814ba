"""The engines for CUDA: a decode step with fixed shapes and addresses, recorded once as a CUDA graph and replayed.

A decode step at batch size 1 consists of hundreds of small kernels. Launching them one by one takes the CPU longer than
the GPU needs to run them; a graph launches all of them at once. For one or two rows `GraphEngine` uses `TritonStep`.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from minigpt.errors import ConfigError, first_line_of
from minigpt.generation.engine import Engine
from minigpt.generation.engine_settings import Quantization
from minigpt.generation.resolve_engine import EngineProvider
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT, Block
from minigpt.model.kv_cache import KVCache

if TYPE_CHECKING:
    from minigpt.cuda.triton_step import TritonStep

_SHORTEST_SPAN = 128  # the fewest cached positions that a step attends to; longer spans are this times a power of two
_MOST_KERNEL_ROWS = 2  # for more, products on tensor cores are faster
_MOST_SHAPES = 10_000  # to compile the step for: numbers of rows x spans


def static_step(model: GPT, cache: KVCache, ids: Tensor, at: Tensor, padding: Tensor, span: int) -> Tensor:
    """Computes the logits after one more id in every row and writes its keys and values at position `at`.

    The position and the padding are tensors, so that a recorded step can be replayed for any of them. Attention always
    covers the first `span` positions; the mask hides padding and the positions after `at`, which must be less than
    `span`. The caller advances the cache's length.
    Shapes: ids (B, 1), at (1,), padding (B,), all int64 -> (B, 1, V).
    """
    positions = torch.arange(span, device=ids.device)
    mask = ((positions <= at) & (positions >= padding[:, None]))[:, None, None]  # (B, 1, 1, span)
    x = model.token_embedding(ids) + model.position_embedding(at - padding)[:, None]  # (B, 1, C)
    return decode_blocks(model, cache, x, mask, span, lambda buffer, new: buffer.index_copy_(2, at, new))


def decode_blocks(
    model: GPT, cache: KVCache, x: Tensor, mask: Tensor, span: int, write: Callable[[Tensor, Tensor], object]
) -> Tensor:
    """The logits from the embeddings of one id in every row, whose keys and values `write` puts into each buffer.

    Shapes: x (B, 1, C), mask (B, 1, 1, span) -> (B, 1, V).
    """
    for block, layer in zip(model.blocks, cache.layers, strict=True):
        assert isinstance(block, Block)
        query, key, value = block.attention.project(block.attention_norm(x))  # 3 x (B, H, 1, D)
        write(layer.keys, key)
        write(layer.values, value)
        keys, values = layer.keys[:, :, :span], layer.values[:, :, :span]  # 2 x (B, H, span, D)
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)  # (B, H, 1, D)
        x = x + block.attention.merge(y)  # (B, 1, C)
        x = x + block.mlp(block.mlp_norm(x))
    return model.logits(model.final_norm(x))


DecodeStep = Callable[[GPT, KVCache, Tensor, Tensor, Tensor, int], Tensor]  # `static_step`, or its compiled form


class _SeparateBias(TorchFunctionMode):
    """A mode in which a projection is a product and a sum: torch.compile leaves a product with a bias to cuBLAS."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and len(args) == 3 and args[2] is not None:
            return F.linear(args[0], args[1]) + args[2]
        return function(*args, **(kwargs or {}))


def compiled_step() -> DecodeStep:
    """`static_step` compiled with torch.compile, once for every number of rows and every span.

    For one row the tuning makes the products with the weights kernels that read them at almost the bandwidth of the
    memory, if the bias is added separately, and the formula of attention kernels for one query.
    """
    import torch._dynamo  # takes a second

    step: DecodeStep = torch.compile(
        static_step, dynamic=False, fullgraph=True, options={"coordinate_descent_tuning": True}
    )

    def run(model: GPT, cache: KVCache, ids: Tensor, at: Tensor, padding: Tensor, span: int) -> Tensor:
        # By default the ninth shape is an error.
        limits = torch._dynamo.config.patch(recompile_limit=_MOST_SHAPES, accumulated_recompile_limit=_MOST_SHAPES)
        with sdpa_kernel(SDPBackend.MATH), _SeparateBias(), limits:
            try:
                return step(model, cache, ids, at, padding, span)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # a compiler can raise anything
                failure = first_line_of(error)
                raise ConfigError(f"torch.compile failed ({failure}); generate without --compile") from error

    return run


class Recording:
    """A function of tensors at fixed addresses, recorded as a CUDA graph at the first call and replayed at each call.

    On a CPU each call runs the function without recording, so that tests need no GPU.
    """

    def __init__(self, run: Callable[[], Tensor], device: torch.device) -> None:
        self._run, self._device = run, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.empty(0)

    def __call__(self) -> Tensor:
        """What the function returns for what its tensors hold now."""
        if self._device.type != "cuda":
            return self._run()
        if self._graph is None:
            self._record()
        assert self._graph is not None
        self._graph.replay()
        return self._result.clone()  # the next replay overwrites the graph's own memory

    def _record(self) -> None:
        with torch.cuda.device(self._device):
            # The first call lets libraries choose kernels and allocate workspaces, which must not be recorded.
            # These warm-up runs write the same keys and values as the replay.
            # By default torch records on a stream of the first GPU that it ever recorded on.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._run()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a server's inspections, may allocate memory meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = self._run()
            self._graph, self._result = graph, result  # only now: a recording that failed is made again


class Replay:
    """A `Recording` of a step for one cache, and of `static_step` for one span."""

    def __init__(self, step: DecodeStep, model: GPT, cache: KVCache, span: int) -> None:
        rows, device = cache.batch_size, cache.layers[0].keys.device
        self._ids = ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._at = at = torch.zeros(rows, dtype=torch.int64, device=device)
        self._padding = padding = torch.zeros(rows, dtype=torch.int64, device=device)
        self._given_padding: Tensor | None = None  # that `_padding` is a copy of
        kernels = kernel_step(model, cache) if step is static_step else None
        # Without `self`: a reference cycle would keep the cache's memory until the next garbage collection.
        if kernels is not None:
            self._step = Recording(lambda: kernels(ids[:, 0], at, padding)[:, None], device)
        else:
            self._step = Recording(lambda: step(model, cache, ids, at[:1], padding, span), device)

    def __call__(self, ids: Tensor, at: int, padding: Tensor | None) -> Tensor:
        """Reads one id per row, (B, 1), at position `at`: -> (B, 1, V)."""
        self._ids.copy_(ids)
        self._at.fill_(at)
        if padding is not self._given_padding:  # a cache never changes its padding in place
            if padding is None:
                self._padding.zero_()
            else:
                self._padding.copy_(padding)
            self._given_padding = padding
        return self._step()


def kernel_step(model: GPT, cache: KVCache) -> "TritonStep | None":
    """The step in Triton kernels, for a few rows of a plain GPT on NVIDIA GPUs from Ampere on; None if it does not fit.

    PyTorch for CUDA brings Triton on Linux.
    """
    device = model.token_embedding.weight.device
    if device.type != "cuda" or torch.version.hip or importlib.util.find_spec("triton") is None:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0) or cache.batch_size > _MOST_KERNEL_ROWS:
        return None
    with torch.device("meta"):
        plain = GPT(model.config.replace(n_layer=1))
    if not {type(module) for module in model.modules()} <= {type(module) for module in plain.modules()}:
        return None  # an adapter, or a changed model
    if not all(weight.is_contiguous() for weight in model.parameters()):
        return None
    from minigpt.cuda.triton_step import TritonStep

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return TritonStep(model, cache, overlaps=capability >= (9, 0), processors=processors)


class GraphEngine(Engine):
    """An engine that replays a recorded step to read one id per row; it reads prompts and several ids as usual.

    `compiled` compiles the step with torch.compile first, which takes about a minute and pays off for long generations.
    """

    def __init__(self, model: GPT, *, compiled: bool = False) -> None:
        super().__init__(model)
        self.implementation = "compiled, CUDA graphs" if compiled else "CUDA graphs"
        self._step: DecodeStep = compiled_step() if compiled else static_step
        self._replays: dict[int, Replay] = {}  # by span
        self._recorded: list[Tensor] = []  # the buffers they use, referenced here so that they stay allocated

    def use_cache(self, cache: KVCache) -> None:
        self._replays.clear()
        self._recorded = []
        super().use_cache(cache)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.cache.zero()
        return super().start(prompts)

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        if ids.shape[1] != 1:
            return super().read(ids)
        at = self.cache.length
        check_length(at + 1, self.n_positions)
        logits = self._replay(self._span(at))(ids, at, self.cache.padding)
        self.cache.length += 1
        return logits

    def _span(self, at: int) -> int:
        span = _SHORTEST_SPAN
        while span <= at:
            span *= 2
        return min(span, self.n_positions)

    def _replay(self, span: int) -> Replay:
        buffers = [buffer for layer in self.cache.layers for buffer in (layer.keys, layer.values)]
        if not (self._recorded and _same_memory(self._recorded[0], buffers[0])):
            self._replays.clear()
            self._recorded = buffers
        if span not in self._replays:
            self._replays[span] = Replay(self._step, self.model, self.cache, span)
        return self._replays[span]


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


class CudaEngines(EngineProvider):
    """The engines of every model on CUDA."""

    def engine(self, model: GPT, quantization: Quantization, *, compiled: bool) -> Engine | None:  # noqa: ARG002
        return GraphEngine(model, compiled=compiled) if is_on_cuda(model) else None


ENGINES = CudaEngines()


def is_on_cuda(model: GPT) -> bool:
    """Whether a model's weights are on a GPU of CUDA."""
    return model.token_embedding.weight.device.type == "cuda"
