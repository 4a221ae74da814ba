"""A pretended CUDA device: tensors that report cuda:0 and compute on the CPU, so that code for CUDA runs without a GPU.

`with pretended_cuda() as gpu:` gives code that asks for `cuda` real values. It raises where CUDA would: for tensors of
two devices in one operation, and in a graph capture for what CUDA forbids there. `gpu.waits` counts what makes the CPU
wait for the GPU, by the function of minigpt that did it; `gpu.launches` counts kernels by operation; `gpu.products`
counts matrix products by dtype. A captured graph is replayed on the same memory, so stale addresses give wrong values.
So does what is copied to pinned memory and read before the next wait.

It does not cover Triton, torch.compile, memory, speed, streams that overlap, and several processes.
"""

import contextlib
import ctypes
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import minigpt
from minigpt.cuda import graphs

aten = torch.ops.aten
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda:0")
_PACKAGE = str(Path(minigpt.__file__).parent) + "/"
_GUARDS, _CUDA_TYPE, _META_TYPE = "_ZN3c104impl26device_guard_impl_registryE", 1, 14  # c10/core/DeviceType.h

# The GPU computes how large their results are, or the CPU asks for their values.
_WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.unique_consecutive.default,
}  # fmt: skip
_INDEXING = {
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
}  # fmt: skip
_PRODUCTS = {aten.mm, aten.addmm, aten.addmm_}  # not those of attention, whose formula is computed in float32


class CudaTensor(Tensor):
    """A tensor on the pretended device; `cpu_tensor` has its values."""

    cpu_tensor: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "CudaTensor":
        strides, offset = values.stride(), values.storage_offset()
        found = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=strides, storage_offset=offset, dtype=values.dtype, device=_CUDA
        )
        found.cpu_tensor = values
        return found

    @classmethod
    def __torch_dispatch__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _current().run(function, args, kwargs or {})

    def tolist(self) -> Any:
        _current().wait()
        return self.cpu_tensor.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def new_tensor(self, data: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=_CUDA)  # C++ would ask the borrowed guard

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_with_tensors(index), value)

    def data_ptr(self) -> int:
        return self.cpu_tensor.data_ptr()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"CudaTensor({self.cpu_tensor!r})"


def _with_tensors(index: Any) -> Any:
    """An index whose lists are tensors on the CPU."""
    if isinstance(index, tuple):
        return tuple(map(_with_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index


class PretendedGPU:
    """What happened on the pretended device."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.products: Counter[torch.dtype] = Counter()
        self.n_launched = 0  # in all; `clear` leaves it
        self.tape: list[tuple[Any, Any, Any, Any]] | None = None  # of the graph that is being captured
        self.arriving: list[tuple[Tensor, Tensor]] = []  # pinned memory, and what the next wait brings there

    def clear(self) -> None:
        """Forgets the counts."""
        for counts in (self.waits, self.launches, self.products):
            counts.clear()

    def launch(self, name: str) -> None:
        """Counts a kernel, or a graph."""
        self.launches[name] += 1
        self.n_launched += 1

    def wait(self, kind: str = "") -> None:
        """Counts a wait of the CPU for the GPU. Raises: RuntimeError in a capture."""
        place = _place() + kind
        if self.tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {place} waits for the GPU")
        self.waits[place] += 1
        for host, values in self.arriving:
            host.copy_(values)
        self.arriving.clear()

    def run(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Computes an operation of tensors on the device, or one that makes a tensor there."""
        if function is aten._fused_sdp_choice.default:
            return 0  # attention by its formula; the fused kernels are CUDA's own
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        device = kwargs.get("device")
        if function in (aten._to_copy.default, aten.copy_.default):
            target = args[0].device if device is None else torch.device(device)
            source = args[1] if function is aten.copy_.default else args[0]
            arrives_later = self._copy(target, source, args, kwargs)
            on_device = target.type == "cuda"
        else:
            arrives_later = False
            self._check_devices(function, args, kwargs, tensors)
            on_device = device is None or torch.device(device).type == "cuda"
        if function in _WAITING:
            self.wait()
        name, schema = function.overloadpacket.__name__, function._schema
        is_view = not schema.is_mutable and all(each.alias_info is not None for each in schema.returns)
        if not is_view and "empty" not in name and name != "_unsafe_view" and function not in _WAITING:
            self.launch(name)
        if function.overloadpacket in _PRODUCTS:
            self.products[tensors[-1].dtype] += 1
        plain = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
        if device is not None:
            plain["device"] = _CPU
        plain_args, plain = tree_map_only(CudaTensor, lambda each: each.cpu_tensor, (args, plain))
        found = function(*plain_args, **plain)
        if arrives_later:
            self.arriving.append((found, found.clone()))
            found.zero_()
        if self.tape is not None:
            self.tape.append((function, plain_args, plain, found))
        given = {id(each.cpu_tensor if isinstance(each, CudaTensor) else each): each for each in tensors}

        def wrapped(values: Tensor) -> Tensor:
            if id(values) in given:  # an operation in place
                return given[id(values)]
            return CudaTensor(values) if on_device else values

        return tree_map_only(Tensor, wrapped, found)

    def _copy(self, target: torch.device, source: Tensor, args: Any, kwargs: dict[str, Any]) -> bool:
        """Counts a wait for a copy between the devices, unless it is a non-blocking one of pinned memory.

        Returns whether the values reach the CPU's memory only at the next wait. `source.to("cpu", non_blocking=True)`
        makes pinned memory for them.
        """
        if target.type == source.device.type:
            return False
        host = source if source.device.type == "cpu" else args[0]
        waits_not = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2])
        if waits_not and (host.device.type == "cuda" or getattr(host, "pinned", False)):
            if self.tape is not None:
                raise RuntimeError(f"a graph would read the CPU's memory again: {_place()}")
            return target.type == "cpu"
        self.wait()
        return False

    def _check_devices(self, function: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        here = [each for each in tensors if isinstance(each, CudaTensor)]
        there = [each for each in tensors if not isinstance(each, CudaTensor) and each.dim() > 0]
        if function in _INDEXING and isinstance(args[0], CudaTensor):
            indices = [each for each in args[1] if each is not None]
            if any(not isinstance(each, CudaTensor) or each.dtype == torch.bool for each in indices):
                self.wait()  # an index from the CPU is copied, a boolean one is counted
            there = [each for each in there if not any(each is index for index in indices)]
        if here and there:
            shapes = [tuple(each.shape) for each in there]
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found cuda:0 and cpu {shapes}: {function}"
            )
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != "cuda":
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu': {function}")


def _place() -> str:
    """The innermost function of minigpt that is running: "generation/decoding.py describe"."""
    frame = sys._getframe(1)
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith(_PACKAGE) and not name.startswith("<"):
            return f"{path.removeprefix(_PACKAGE)} {name}"
        frame = frame.f_back
    return "outside minigpt"


class _Mode(TorchDispatchMode):
    """Sends operations that make or read tensors on the pretended device there."""

    def __init__(self, gpu: PretendedGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if (device is not None and torch.device(device).type == "cuda") or any(
            isinstance(leaf, CudaTensor) for leaf in tree_leaves((args, kwargs))
        ):
            return self.gpu.run(function, args, kwargs)
        pinned = kwargs.pop("pin_memory", False) if "pin_memory" in kwargs else False
        found = function(*args, **kwargs)
        return _pinned(found) if pinned else found


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    """The tensor, from now on taken for one in pinned memory."""
    if isinstance(tensor, CudaTensor):
        raise RuntimeError("cannot pin 'torch.cuda.Tensor': only CPU tensors can be pinned")
    tensor.pinned = True  # type: ignore[attr-defined]
    return tensor


class _Event:
    n_launched = -1

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None:
        self.n_launched = _current().n_launched

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        is_last = self.n_launched == _current().n_launched
        _current().wait(", with nothing left to compute" if is_last else "")


class _Stream(_Event):
    def wait_stream(self, other: Any) -> None: ...


class _Graph:
    """A graph whose replay runs the captured operations again and writes their results into the same memory."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tape: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        _current().launch("graph")
        for function, args, kwargs, results in self.tape:
            given = {_memory(leaf) for leaf in tree_leaves((args, kwargs))}
            found = function(*args, **kwargs)
            for new, old in zip(tree_leaves(found), tree_leaves(results), strict=True):
                if isinstance(old, Tensor) and _memory(old) not in given:
                    old.copy_(new)


def _memory(value: object) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


@contextlib.contextmanager
def _capture(graph: _Graph, *_: Any, **__: Any) -> Iterator[None]:
    gpu = _current()
    gpu.tape = graph.tape
    try:
        yield
    finally:
        gpu.tape = None


_CURRENT: list[PretendedGPU] = []


def _current() -> PretendedGPU:
    if not _CURRENT:
        raise RuntimeError("a tensor of the pretended CUDA device is used after the device has gone")
    return _CURRENT[-1]


def reason_to_skip() -> str | None:
    """Why this torch cannot pretend to have CUDA; None if it can."""
    if torch.cuda.is_available():
        return "there is a GPU: the tests marked gpu use it"
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    needed = [(Tensor, "_make_wrapper_subclass"), (torch.cuda, "_lazy_init"), (node, "_input_metadata")]
    missing = [name for owner, name in needed if not hasattr(owner, name)]
    try:
        _guards()
    except (OSError, ValueError):
        missing.append("libc10's device guards")
    return f"torch {torch.__version__} has no {', '.join(missing)}" if missing else None


def _guards() -> Any:
    """torch's table of device guards, by type of device."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (ctypes.c_void_p * (_META_TYPE + 1)).in_dll(library, _GUARDS)


def _borrow_guard() -> None:
    """Gives CUDA the device guard of meta tensors, which does nothing; autograd asks for it.

    It stays: without it, a gradient of a tensor that outlives the pretended device would abort Python.
    """
    guards = _guards()
    guards[_CUDA_TYPE] = guards[_META_TYPE]


def _with_index(device: Any) -> Any:
    """cuda:0 for cuda; C++ would ask the borrowed guard, which says meta."""
    return _CUDA if isinstance(device, str | torch.device) and str(device) == "cuda" else device


def _to(to: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def moved(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        options = {name: _with_index(value) for name, value in options.items()}
        return to(self, *map(_with_index, arguments), **options)

    return moved


def _built_on_cpu(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor and torch.as_tensor, which make CUDA tensors in C++, in two steps: on the CPU, then a copy."""

    def made(data: Any, *, dtype: Any = None, device: Any = None, pin_memory: bool = False, **options: Any) -> Tensor:
        if isinstance(data, CudaTensor):
            return data.to(device=device, dtype=dtype)
        found = build(data, dtype=dtype, **options)
        if pin_memory:
            return _pinned(found)
        return found if device is None else found.to(device)

    return made


def _backward(loss: Tensor, gradient: Tensor | None = None, **_: Any) -> None:
    """`loss.backward()`; torch's own engine asks for the accelerator that the build was made for."""
    with torch.no_grad():
        root = loss.grad_fn
        nodes, waiting = [root], Counter[Any]()  # by node: the gradients that have not arrived
        for node in nodes:
            for following, _index in node.next_functions:
                if following is not None:
                    if following not in waiting:
                        nodes.append(following)
                    waiting[following] += 1
        gradients: dict[Any, dict[int, Tensor]] = {root: {0: torch.ones_like(loss) if gradient is None else gradient}}
        ready = [root]
        while ready:
            node = ready.pop()
            results = _input_gradients(node, gradients.pop(node, {}))
            for (following, index), result in zip(node.next_functions, results, strict=False):
                if following is None:
                    continue
                if result is not None:
                    sums = gradients.setdefault(following, {})
                    sums[index] = sums[index] + result if index in sums else result
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)


def _input_gradients(node: Any, found: dict[int, Tensor]) -> Sequence[Tensor | None]:
    """What a node of the autograd graph makes of the gradients of its outputs."""
    if not found:
        return [None] * len(node.next_functions)
    outputs: list[Tensor | None] = [None] * (max(found) + 1)
    for index, gradient in found.items():
        like = node._input_metadata[index]
        outputs[index] = gradient.sum_to_size(like.shape).to(like.dtype)
    results = node(*outputs) if callable(node) else node.apply(*outputs)
    return results if isinstance(results, tuple | list) else [results]


@contextlib.contextmanager
def pretended_cuda() -> Iterator[PretendedGPU]:
    """A context in which this process has one CUDA device; see the module."""
    gpu = PretendedGPU()
    properties = types.SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132
    )
    cuda = {
        "_lazy_init": lambda: None, "is_initialized": lambda: True, "is_available": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda *_: None,
        "device": lambda *_: contextlib.nullcontext(), "is_bf16_supported": lambda *_, **__: True,
        "get_device_capability": lambda *_: (9, 0), "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties, "synchronize": lambda *_: gpu.wait(),
        "mem_get_info": lambda *_: (70 << 30, 80 << 30), "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None, "empty_cache": lambda: None, "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None, "Event": _Event, "Stream": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda *_: _Stream(), "is_current_stream_capturing": lambda: gpu.tape is not None,
        "CUDAGraph": _Graph, "graph": _capture,
    }  # fmt: skip
    _borrow_guard()
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        for name, value in cuda.items():
            enter(patch.object(torch.cuda, name, value))
        enter(patch.object(torch, "tensor", _built_on_cpu(torch.tensor)))
        enter(patch.object(torch, "as_tensor", _built_on_cpu(torch.as_tensor)))
        enter(patch.object(Tensor, "to", _to(Tensor.to)))
        enter(patch.object(Tensor, "pin_memory", _pinned))
        # A wrapper cannot hold an inference tensor.
        for name in ("__enter__", "__exit__"):
            enter(patch.object(torch.inference_mode, name, getattr(torch.no_grad, name)))
        enter(patch.object(Tensor, "backward", _backward))
        enter(patch.object(graphs, "kernel_step", lambda *_: None))  # Triton compiles for a driver
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        _CURRENT.append(gpu)
        stack.callback(_CURRENT.pop)
        enter(_Mode(gpu))
        yield gpu
