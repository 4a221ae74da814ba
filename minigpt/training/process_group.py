"""A world of several processes, over torch.distributed: NCCL carries what is on CUDA, gloo all else.

How the processes are started is not known here; who they are stands in the environment.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore
from torch.nn.parallel import DistributedDataParallel

from minigpt.config import TrainConfig
from minigpt.device import free_memory, resolve_device
from minigpt.errors import ConfigError, DeviceError, MinigptError
from minigpt.model.gpt import GPT
from minigpt.storage.run import LastState
from minigpt.training.distributed import ProcessLostError, World, full_tensor, is_sharded_tensor
from minigpt.training.memory import activation_bytes, state_bytes

# A process that ends closes its connections, and the others notice at once; this is for one that hangs. It has to
# outlast the main process's reading of a large text, for which the others wait.
_PATIENCE = timedelta(hours=6)
_ARRIVAL = timedelta(minutes=5)  # for all processes to come
_LIBUV = os.name != "nt"  # which torch has everywhere but on Windows
_GRACE = 3.0  # seconds in which an error that is every process's comes to all of them

_RENAMED = "forward_sync_buffers"  # as torch 2.13 calls what was `broadcast_buffers`
_DDP_HAS = signature(DistributedDataParallel).parameters
_BUFFERS: Any = {_RENAMED if _RENAMED in _DDP_HAS else "broadcast_buffers": False}  # the masks are alike everywhere


class ProcessGroup(World):
    """Several processes, this one of them. They meet in most methods, so all call them alike and in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = _number("RANK"), _number("WORLD_SIZE")
        self.local_rank, self.local_size = _number("LOCAL_RANK", self.rank), _number("LOCAL_WORLD_SIZE", self.size)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, available_cores() // self.local_size))
        nccl = torch.cuda.is_available() and dist.is_nccl_available()
        with self.translate_errors():
            self.store = _store(self.rank)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",  # so that agreeing on the clock, on the CPU, waits for no GPU
                store=PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=_PATIENCE,
            )
        self.announce(f"joined/{self.rank}")

    def close(self) -> None:
        dist.destroy_process_group()
        # Gloo's threads need Python's lock to let go of the last tensors; one that asks for it while Python ends aborts
        # the process. Here they get it.
        time.sleep(0.1)

    def device(self, name: str) -> torch.device:
        device = local_device(name, self.local_size, self.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return device

    def rows(self, batch_size: int) -> range:
        if batch_size < self.size:
            raise ConfigError(
                f"batch_size ({batch_size}) must be at least the number of processes ({self.size}), since each takes "
                "a sequence of every batch"
            )
        each, more = divmod(batch_size, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def accumulation_steps(self, own: int) -> int:
        # With the weights in parts all processes meet in every forward pass, so that all take as many.
        return int(self.all_reduce_max([own])[0]) if self.is_sharded else own

    # The model.

    def shard(self, model: GPT, config: TrainConfig, device: torch.device) -> None:
        wanted = config.sharding
        self.is_sharded = wanted == "on" or (wanted == "auto" and not self._fits(model, config, device))
        if not self.is_sharded:
            return
        from minigpt.training.fsdp import shard

        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
        shard(model, device, self.size)

    def _fits(self, model: GPT, config: TrainConfig, device: torch.device) -> bool:
        """Whether every process has room for the whole state and one sequence at a time."""
        weights, own = 4 * model.config.n_parameters, -(-config.sequences_per_step // self.size)
        needed = state_bytes(model.config, config.optimizer) - weights  # which are there already
        if config.micro_batch_size is not None and config.micro_batch_size < own:
            needed += weights  # gradients that accumulate lie beside those that meet
        on_cpu = device.type == "cpu"
        needed += activation_bytes(model.config, config.context_length or 1, 1, checkpointing=True, on_cpu=on_cpu)
        free = free_memory(device) // (self.local_size if on_cpu else 1)
        (missing,) = self.all_reduce_max([needed - free])
        return missing <= 0

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.is_sharded:
            return module
        device = next(module.parameters()).device
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_BUFFERS,
        )
        wrapped.register_comm_hook(None, _sum_gradients)
        return wrapped

    def no_sync(self, module: nn.Module) -> AbstractContextManager[object]:
        # Gradients in parts meet every time: each process would keep all of them otherwise.
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def unsharded(self, model: GPT) -> AbstractContextManager[object]:
        if not self.is_sharded:
            return nullcontext()
        from minigpt.training.fsdp import unsharded

        return unsharded(model)

    # What becomes one.

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, MinigptError) or not _is_of_a_connection(error):
                raise
            raise ProcessLostError(
                f"process {self.rank + 1} of {self.size} has lost another one, which has ended; what was saved before "
                "stands, go on from it with --resume"
            ) from error

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        total = figures.clone()
        dist.all_reduce(total)
        return total

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        figures = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(figures, op=dist.ReduceOp.MAX)
        return figures.tolist()

    def broadcast_object(self, value: Any) -> Any:
        text = json.dumps(value).encode() if self.is_main else b""
        (length,) = self.all_reduce_max([len(text)])
        data = torch.frombuffer(bytearray(text.ljust(int(length))), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def broadcast_state(self, state: LastState | None) -> LastState | None:
        kinds = state and {name: (str(t.dtype), list(t.shape)) for name, t in state.tensors.items()}
        facts = self.broadcast_object(state and {"progress": state.progress, "kinds": kinds})
        return LastState(_Broadcast(facts["kinds"], state), facts["progress"]) if facts else None

    def gather(self, tensor: Tensor) -> Tensor:
        if not is_sharded_tensor(tensor):
            return tensor
        tensor = full_tensor(tensor.detach())
        return tensor.cpu() if self.is_main else tensor.new_empty(0)

    def unsharded_model(self, model: GPT) -> GPT:
        if not self.is_sharded:
            return model
        tensors = {name: self.gather(tensor) for name, tensor in model.state_dict().items()}
        return GPT.from_tensors(model.config, tensors) if self.is_main else model

    # Ending: by way of the store, since a process that fails no longer meets the others.

    def announce(self, key: str, text: str = "") -> None:
        with suppress(RuntimeError):  # the store may have gone with who held it
            self.store.set(key, text)

    def main_failed(self) -> bool:
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            try:
                if self.store.check(["failed/0"]):
                    return True
            except RuntimeError:  # it held the store
                return True
            time.sleep(0.05)
        return False


def init_world() -> World:
    """The world that the environment names as torchrun does (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT); a world of one where it names none.

    Raises: ConfigError where it names half of one; ProcessLostError where the others do not come.
    """
    return World() if os.environ.get("WORLD_SIZE", "1") == "1" else ProcessGroup()


class _Broadcast(Mapping[str, Tensor]):
    """The main process's tensors, each sent when it is asked for: not every process has room for all of them whole."""

    def __init__(self, kinds: Mapping[str, tuple[str, list[int]]], state: LastState | None) -> None:
        self.kinds = kinds
        self.own = state.tensors if state is not None else None

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = self.kinds[name]
        if self.own is None:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        else:
            tensor = self.own[name].cpu().contiguous()
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), 0)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_device(name: str, processes: int, rank: int = 0) -> torch.device:
    """The device of that name for one of several processes on this machine: on CUDA each has its own.

    Raises: DeviceError where there are not so many; ConfigError where the name is of a single one.
    """
    device = resolve_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ConfigError(
            f"device ({name!r}) is a single one; give {device.type}, of which each of the {processes} processes takes "
            "its own"
        )
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if processes > count:
        raise DeviceError(
            f"devices ({processes}) must be at most {count}, the {device.type} devices of this machine; "
            "more processes go on --device cpu"
        )
    return torch.device(device.type, rank)


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError as error:
        raise ConfigError(
            f"{name} ({text or 'absent'}) in the environment must be a number, since WORLD_SIZE says that this is one "
            "of several processes; start them by --devices or torchrun"
        ) from error


def rendezvous(processes: int) -> tuple[Store, list[dict[str, str]]]:
    """A store on this machine through which so many processes find one another, and the environment of each."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=_LIBUV)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    own = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return PrefixStore("minigpt/0", store), own


def _store(rank: int) -> Store:
    """Where the processes find one another: with what started them where that says so, else with rank 0."""
    started = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        _number("MASTER_PORT"),
        is_master=rank == 0 and not started,
        wait_for_workers=False,
        timeout=_ARRIVAL,
        use_libuv=_LIBUV,
    )
    return PrefixStore(f"minigpt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _sum_gradients(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Adds up all processes' gradients. DDP itself would divide by their number, but each process's loss is its rows'
    share of the whole batch's mean already, whether the rows divide evenly or not."""
    met = dist.all_reduce(bucket.buffer(), async_op=True)
    return met.get_future().then(lambda done: done.value()[0])


def _is_of_a_connection(error: RuntimeError) -> bool:
    """Whether the error is of the connection to another process, which gloo tells of only in words."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
