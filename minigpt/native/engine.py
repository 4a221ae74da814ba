"""The engine that runs the decode step in C (decode.c) on a model's own tensors, through ctypes."""

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minigpt.generation.engine import Engine
from minigpt.model.attention import check_length
from minigpt.model.gpt import GPT, Block
from minigpt.model.kv_cache import KVCache
from minigpt.native import compiled
from minigpt.shared_cores.load_monitor import watch_load

# As in decode.c: the forms of a matrix, the errors of minigpt_step, the outputs in one int8 panel, and rows.
_BY_ROWS, _BY_COLUMNS, _INT8 = range(3)
_OUT_OF_MEMORY, _OUT_OF_RANGE = 1, 2
_LANES = 16
_SHARED_ROWS = 32  # from which on threads take small parts of a product, so that none waits long for a slow one
# The longest float32 prompt, in ids, that decode.c reads faster than PyTorch, measured with GPT-2 small's shape: with
# weights by columns, as in a file, on Intel's and on AMD's processors, and with weights by rows.
_LONGEST_PROMPT = {"avx512-amx": 128, "avx512-vnni": 128, "avx2": 32, "neon-dotprod": 16, "plain": 16}
_LONGEST_PROMPT_ON_AMD = _LONGEST_PROMPT | {"avx512-amx": 2**31, "avx512-vnni": 2**31, "avx2": 512}
_LONGEST_PROMPT_BY_ROWS = 8


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p), ("scale", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        ("in", ctypes.c_int64), ("out", ctypes.c_int64), ("form", ctypes.c_int64),
    ]  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "attention_norm_weight", "attention_norm_bias", "mlp_norm_weight", "mlp_norm_bias")),
        *((name, _Matrix) for name in ("qkv_proj", "out_proj", "up_proj", "down_proj")),
        ("keys", ctypes.c_void_p), ("values", ctypes.c_void_p),
    ]  # fmt: skip


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")),
        ("epsilon", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (
            "token_embedding", "position_embedding", "final_norm_weight", "final_norm_bias")),
        ("head", _Matrix), ("layers", ctypes.POINTER(_Layer)),
    ]  # fmt: skip


class _RowsToRead(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "sequences")),
        ("count", ctypes.c_int64), ("logits_from", ctypes.c_int64),
    ]  # fmt: skip


def _allocate(size: int) -> Tensor:
    """Memory of `size` bytes, (size,) uint8, in huge pages if the system has them.

    GPT-2 small takes 60 huge pages instead of 30,000 pages.
    Raises: MemoryError if the system refuses it.
    """
    if sys.platform != "linux" or size == 0:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"out of memory for {size:,} bytes of int8 weights") from error
    with contextlib.suppress(OSError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _packed_size(weight: Tensor) -> int:
    """Bytes of an (out, in) matrix in int8 panels: `out` rounded up to _LANES, `in` to 4."""
    out, width = weight.shape
    return -(-out // _LANES) * _LANES * (-(-width // 4) * 4)


class NativeEngine(Engine):
    """An engine that runs decode.c.

    It uses float32 weights in place and packs int8 weights once. It shares the memory of a `KVCache`, so that PyTorch
    can read long float32 prompts where it is faster.
    """

    any_chunks = True  # of the ids after a prompt

    def __init__(self, model: GPT, quantization: str = "none") -> None:
        super().__init__(model)
        loaded = compiled.library()
        assert loaded is not None
        self.quantization, self._library = quantization, loaded
        self._referenced: list[object] = []  # what the structures point to
        matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.position_embedding.weight]
        packed_size = 0 if quantization == "none" else sum(map(_packed_size, matrices))
        self._free = _allocate(packed_size)  # what is left of the memory for int8 weights
        config = model.config
        self._layers = (_Layer * config.n_layer)(*(self._layer(block) for block in model.blocks))
        self._model = _Model(
            config.n_layer, config.n_head, config.n_embd, config.n_positions, config.vocab_size,
            config.layer_norm_epsilon,
            self._floats(model.token_embedding.weight), self._floats(model.position_embedding.weight),
            self._floats(model.final_norm.weight), self._floats(model.final_norm.bias),
            self._matrix(model.token_embedding.weight, None), self._layers,
        )  # fmt: skip
        self._lengths: list[int] = []
        self._load = watch_load(torch.get_num_threads())

    @property
    def description(self) -> str:
        weights = "float32" if self.quantization == "none" else self.quantization
        cores = " on one core" if compiled.uses_one_core() else ""
        return f"cpu, {weights}, compiled for {compiled.selected(self._library)}{cores}"

    @property
    def slow_because(self) -> str:
        reason = compiled.uses_one_core()
        if not reason:
            return ""
        return f"compiled code generates the text on one core, because its compiler has no OpenMP ({reason})"

    @property
    def length(self) -> int:
        return max(self._lengths, default=0)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.n_starts += 1
        for prompt in prompts:
            check_length(len(prompt), self.n_positions)
        self._lengths = []  # should there be no memory for the cache
        self._provide_rows(len(prompts))
        self._lengths = [len(prompt) for prompt in prompts]
        logits = self._empty_logits(len(prompts))
        # The choice depends on each prompt's own length, so that its logits do not depend on the other prompts.
        longest = self._longest_prompt()
        long = [row for row, prompt in enumerate(prompts) if len(prompt) > longest]
        short = [row for row in range(len(prompts)) if row not in long]
        for row in long:
            logits[row] = self._read_with_pytorch(row, prompts[row])
        if short:
            # The prompts' last ids come last, because `step` returns logits for the last ids only.
            rows = [(id, at, row) for row in short for at, id in enumerate(prompts[row][:-1])]
            rows += [(prompts[row][-1], self._lengths[row] - 1, row) for row in short]
            logits[short] = self.step(torch.tensor(rows, device="cpu"), len(short))
        return logits

    @torch.inference_mode()
    def read(self, ids: Tensor) -> Tensor:
        batch, new = ids.shape
        for length in self._lengths:
            check_length(length + new, self.n_positions)
        first = torch.tensor(self._lengths, device="cpu")[:, None]  # (B, 1)
        positions = first + torch.arange(new, device="cpu")  # (B, T)
        sequences = torch.arange(batch, device="cpu")[:, None].expand(batch, new)
        rows = torch.stack([ids, positions, sequences], dim=-1)  # (B, T, 3)
        self._lengths = [length + new for length in self._lengths]
        return self.step(rows.flatten(0, 1), batch * new).view(batch, new, -1)

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self.cache.length = self.length
        self.cache.keep(rows)
        self.use_cache(self.cache)  # its memory may be another
        self._lengths = [self._lengths[row] for row in rows]

    def rewind(self, count: int) -> None:
        self._lengths = [length - count for length in self._lengths]

    def step(self, rows: Tensor, n_logits: int) -> Tensor:
        """Reads N ids and returns the logits after the last `n_logits` of them.

        Shapes: rows (N, 3) int64, each an id, its position and its sequence -> (n_logits, V).
        """
        columns = rows.t().contiguous()  # (3, N)
        logits = self._empty_logits(n_logits)
        ids, positions, sequences = (column.data_ptr() for column in columns)
        count = columns.shape[1]
        arguments = _RowsToRead(ids, positions, sequences, count, count - n_logits)
        threads = torch.get_num_threads()
        if count < _SHARED_ROWS:
            threads = self._load.thread_count(threads)
        error = self._library.minigpt_step(
            ctypes.byref(self._model), ctypes.byref(arguments), logits.data_ptr(), threads
        )
        if error == _OUT_OF_MEMORY:
            raise MemoryError("out of memory for the buffers of a decode step")
        if error == _OUT_OF_RANGE:
            raise IndexError("an id is outside the vocabulary, or a position outside the context")
        return logits

    def _empty_logits(self, rows: int) -> Tensor:
        """Memory for logits, (rows, V), of the type that decode.c writes, whatever torch's default dtype and device."""
        return torch.empty(rows, self.model.config.vocab_size, dtype=torch.float32, device="cpu")

    def _longest_prompt(self) -> int:
        """The longest prompt, in ids, that decode.c reads and not PyTorch."""
        if self.quantization != "none":
            return self.n_positions
        if self._layers[0].qkv_proj.form == _BY_ROWS:
            return _LONGEST_PROMPT_BY_ROWS
        longest = _LONGEST_PROMPT_ON_AMD if self._library.minigpt_is_amd() else _LONGEST_PROMPT
        return longest[compiled.selected(self._library)]

    def _read_with_pytorch(self, row: int, prompt: Sequence[int]) -> Tensor:
        view = self.cache.row(row)
        ids = torch.tensor([list(prompt)], device="cpu")  # (1, T)
        return self.model.logits(self.model.last_features(ids, view))[0]

    def use_cache(self, cache: KVCache) -> None:
        super().use_cache(cache)
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            layer.keys, layer.values = cached.keys.data_ptr(), cached.values.data_ptr()

    # The model's weights as decode.c's structures.

    def _layer(self, block: nn.Module) -> _Layer:
        assert isinstance(block, Block)
        norms = (block.attention_norm, block.mlp_norm)
        linears = (block.attention.qkv_proj, block.attention.out_proj, block.mlp.up_proj, block.mlp.down_proj)
        return _Layer(
            *(self._floats(tensor) for norm in norms for tensor in (norm.weight, norm.bias)),
            *(self._matrix(linear.weight, linear.bias) for linear in linears),
        )

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> _Matrix:
        """A matrix (out, in): its memory, stored by rows or by columns, or a copy of it packed to int8."""
        out, width = weight.shape
        by_columns = not weight.is_contiguous() and weight.t().is_contiguous()
        pointer = self._floats(weight.t() if by_columns else weight)
        matrix = _Matrix(
            pointer,
            None,
            None if bias is None else self._floats(bias),
            width,
            out,
            _BY_COLUMNS if by_columns else _BY_ROWS,
        )
        if self.quantization == "none":
            return matrix
        packed, self._free = self._free.tensor_split([_packed_size(weight)])
        scale = torch.zeros(-(-out // _LANES) * _LANES, dtype=torch.float32, device="cpu")
        self._library.minigpt_pack(packed.data_ptr(), scale.data_ptr(), ctypes.byref(matrix), torch.get_num_threads())
        self._referenced += [packed, scale]
        return _Matrix(packed.data_ptr(), scale.data_ptr(), matrix.bias, width, out, _INT8)

    def _floats(self, tensor: Tensor) -> int:
        """The address of a float32 tensor's contiguous values; a reference keeps them allocated."""
        values = tensor.detach().contiguous()
        assert values.dtype == torch.float32
        assert values.device.type == "cpu"
        self._referenced.append(values)
        return values.data_ptr()
