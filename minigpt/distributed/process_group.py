"""A world of several processes over torch.distributed, with NCCL for CUDA tensors and gloo for others.

The environment variables of torchrun or of Slurm say which processes there are.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from minigpt.config import TrainConfig
from minigpt.device import free_memory, resolve_dtype
from minigpt.distributed.devices import local_device
from minigpt.distributed.gathering import Gathering
from minigpt.distributed.launchers import Placement, placement
from minigpt.distributed.rendezvous import ProcessLostError, close_when_lost, connect, find_interface, join, poll
from minigpt.distributed.settings import DistributedSettings
from minigpt.edges import provided
from minigpt.errors import ConfigError, MinigptError
from minigpt.model.gpt import GPT
from minigpt.runs.job import Job
from minigpt.storage.last_state import LastState
from minigpt.storage.tensors import TensorFile
from minigpt.threads import threads_per_process
from minigpt.training.world import Item, World, full_tensor, is_sharded_tensor, to_local

# A process that ends closes its connections, which the others notice at once, and `close_when_lost` closes those to a
# machine that is gone. The timeout is for a process that hangs. It must be longer than the main process takes to read a
# large text, for which the others wait.
_TIMEOUT = timedelta(hours=6)
_FAILURE_DELAY = 3.0  # seconds in which an error that all processes have reaches all of them

# torch 2.13 renamed `broadcast_buffers`. Buffers never change: masks, and the compressed weights of a frozen model.
_SYNC_BUFFERS = "forward_sync_buffers"
if _SYNC_BUFFERS not in signature(DistributedDataParallel).parameters:
    _SYNC_BUFFERS = "broadcast_buffers"
_DDP_OPTIONS: Any = {_SYNC_BUFFERS: False, "gradient_as_bucket_view": True}


class JoinedWorld(World):
    """The processes of `minigpt train`, which start and end together; here one."""

    def close(self) -> None:
        """Closes the connections to the other processes."""

    def check_same(self, command: Mapping[str, Any]) -> None:
        """All processes say what they are asked to do, by names with values that JSON can represent.

        Raises: ConfigError on the main process if another process is asked to do something else.
        """

    def failure(self) -> str | None:
        """The error of the main process, or on that process the one of another; None if there is none in some seconds.

        A wrong setting is wrong for all processes, and only the main one is to report it.
        """
        return None


class ProcessGroup(JoinedWorld):
    """Several processes, of which this is one. Most methods communicate: all must call them in the same order.

    `is_ours` says whether `close` closes torch's group, which a program may have initialized. `gathered` is the dtype
    in which sharded matrices are sent: that of the run on CUDA, float32 on a CPU, whose C code reads that.
    """

    gathered = torch.float32

    def __init__(self, place: Placement, store: Store, attempt: int = 1, *, is_ours: bool = True) -> None:
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.store, self.was_restarted, self.is_ours = store, attempt > 1, is_ours
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(place.threads or threads_per_process(self.local_size))

    @classmethod
    def connected(cls, place: Placement) -> "ProcessGroup":
        """Connects to the other processes; `init_world` describes the errors."""
        shared = connect(place)
        close_when_lost()
        with translated_errors(place.rank, place.size):
            store, attempt = join(shared, place)
            if (interface := find_interface(store, place)) is not None:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # not that of the address of the host's name
            nccl = torch.cuda.is_available() and dist.is_nccl_available()
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",  # reducing the clock on the CPU does not wait for the GPU
                store=PrefixStore("group", store),
                rank=place.rank,
                world_size=place.size,
                timeout=_TIMEOUT,
            )
        close_when_lost()
        return cls(place, store, attempt)

    def close(self) -> None:
        if not self.is_ours:
            return
        dist.destroy_process_group()
        # Gloo's threads need the GIL to free the last tensors. If they request it while the interpreter shuts down,
        # they abort the process, so this waits until they are done.
        time.sleep(0.1)

    def share(self, job: Job | None) -> None:
        if job is None:
            self.broadcast_object(None)
            return
        self.announce("run", str(job.run.directory))
        model, training = job.model.config.to_dict(), job.config.to_dict()
        corpus = {"tokens": str(job.corpus.path.absolute()), "suppressed": job.corpus.tokenizer.suppressed_ids}
        self.broadcast_object({"model": model, "training": training, "resume": job.resume, **corpus})

    def device(self, name: str) -> torch.device:
        device = local_device(name, self.local_size, self.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return device

    def rows(self, batch_size: int) -> range:
        DistributedSettings(batch_size=batch_size).check_processes(self.size)
        each, more = divmod(batch_size, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    # The model.

    def shard(self, model: GPT, config: TrainConfig, device: torch.device) -> None:
        wanted = "off" if config.unsharded_for else DistributedSettings.of(config).sharding
        self.is_sharded = wanted == "on" or (wanted == "auto" and not self._fits(model, config, device))
        if not self.is_sharded:
            return
        from minigpt.distributed.fsdp import shard

        if device.type == "cuda":
            self.gathered = resolve_dtype(config.dtype, device)
        shard(model, device, self.size, self.gathered)

    def _fits(self, model: GPT, config: TrainConfig, device: torch.device) -> bool:
        """Whether every process has memory for the full state and a micro-batch of one sequence, if that is known."""
        needed = [
            least(model.config, config, self.size, on_cpu=device.type == "cpu") for least in provided("training_memory")
        ]
        return not needed or self._is_free(needed[0], device)

    def _is_free(self, needed: int, device: torch.device) -> bool:
        """Whether every process has so many bytes of memory free."""
        free = free_memory(device) // (self.local_size if device.type == "cpu" else 1)
        (missing,) = self.all_reduce_max([needed - free])
        return missing <= 0

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.is_sharded:
            return module
        device = next(module.parameters()).device
        for buffer in module.buffers():
            if buffer.dtype != torch.bool:  # masks are equal on all processes
                dist.broadcast(buffer.view(torch.uint8), 0)
        device_ids = [device] if device.type == "cuda" else None
        wrapped = DistributedDataParallel(module, device_ids=device_ids, **_DDP_OPTIONS)
        wrapped.register_comm_hook(None, _sum_gradients)
        return wrapped

    def no_sync(self, module: nn.Module) -> AbstractContextManager[object]:
        # Sharded gradients are reduced every time, or each process would keep the full ones.
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def evaluating(self, model: GPT) -> AbstractContextManager[object]:
        if not self.is_sharded:
            return nullcontext()
        from minigpt.distributed.fsdp import evaluating

        return evaluating(model, self.gathered)

    def in_step(self, items: Iterator[Item]) -> Iterator[Item | None]:
        if not self.is_sharded:
            yield from items
            return
        item = next(items, None)
        while self.all_reduce_max([item is not None])[0]:
            yield item
            item = next(items, None)

    def can_unshard(self, model: GPT) -> bool:
        if not self.is_sharded:
            return True
        needed = sum(parameter.nbytes for parameter in model.parameters())
        return self._is_free(needed, to_local(next(model.parameters())).device)

    def unsharded(self, model: GPT) -> AbstractContextManager[object]:
        if not self.is_sharded:
            return nullcontext()
        from minigpt.distributed.fsdp import unsharded

        return unsharded(model)

    # Collective operations.

    def translate_errors(self) -> AbstractContextManager[object]:
        return translated_errors(self.rank, self.size)

    def all_reduce_sum(self, figures: Tensor) -> Tensor:
        total = figures.clone()
        dist.all_reduce(total)
        return total

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        figures = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(figures, op=dist.ReduceOp.MAX)
        return figures.tolist()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, all of one shape."""
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor)
        return gathered

    def all_to_all(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Sends `parts[r]` to process r; returns what each sends to this process, `sizes[r]` numbers. All are 1-D."""
        received = parts[0].new_empty(sum(sizes))
        dist.all_to_all_single(received, torch.cat(list(parts)), list(sizes), [len(part) for part in parts])
        return list(torch.split(received, list(sizes)))

    def broadcast_object(self, value: Any) -> Any:
        text = json.dumps(value).encode() if self.is_main else b""
        (length,) = self.all_reduce_max([len(text)])
        data = torch.frombuffer(bytearray(text.ljust(int(length))), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def broadcast_state(self, state: LastState | None) -> LastState | None:
        shapes = None
        if state is not None:
            own = state.tensors
            specs = own.specs if isinstance(own, TensorFile) else {n: (t.dtype, t.shape) for n, t in own.items()}
            shapes = {name: (str(dtype), list(shape)) for name, (dtype, shape) in specs.items()}
        received = self.broadcast_object(state and {"progress": state.progress, "shapes": shapes})
        return LastState(BroadcastTensors(received["shapes"], state), received["progress"]) if received else None

    @contextmanager
    def gathering(self, tensors: Mapping[str, Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:
        gathering = Gathering(tensors, self._gather)
        yield gathering.read
        gathering.finish()

    def distribute_like(self, value: Tensor, other: Tensor) -> Tensor:
        value = value.to(other.device)
        if not is_sharded_tensor(other) or value.shape != other.shape:
            return value
        from torch.distributed.tensor import distribute_tensor

        placements = other.placements  # type: ignore[attr-defined]
        return distribute_tensor(value, other.device_mesh, placements, src_data_rank=None)  # type: ignore[attr-defined]

    def _gather(self, tensor: Tensor) -> Tensor:
        if not is_sharded_tensor(tensor):
            return tensor
        tensor = full_tensor(tensor.detach())
        return tensor if self.is_main else tensor.new_empty(0)

    # Failures: through the store, since a process that fails no longer takes part in collective operations.

    def announce(self, key: str, text: str = "") -> bool:
        try:
            self.store.set(key, text)
        except RuntimeError:  # the process that has the store may have ended
            return False
        return True

    def failure(self) -> str | None:
        for _ in poll(_FAILURE_DELAY):
            try:
                for rank in range(1, self.size) if self.is_main else range(1):
                    if self.store.check([f"failed/{rank}"]):
                        return self.store.get(f"failed/{rank}").decode()
            except RuntimeError:  # the main process had the store and has ended
                return None if self.is_main else ""
        return None

    def check_same(self, command: Mapping[str, Any]) -> None:
        self.store.set(f"command/{self.rank}", json.dumps([socket.gethostname(), dict(command)]))
        for rank in range(1, self.size) if self.is_main else ():
            host, other = json.loads(self.store.get(f"command/{rank}"))
            for name in sorted({*command, *other}):
                if other.get(name) != command.get(name):
                    raise ConfigError(
                        f"process {rank + 1} of {self.size}, on {host}, has {_shown(name, other)}, and the first "
                        f"process has {_shown(name, command)}; start all of them with the same command and versions"
                    )


class BroadcastTensors(Mapping[str, Tensor]):
    """The main process's tensors, each sent when it is read: not every process has memory for all of them."""

    def __init__(self, shapes: Mapping[str, tuple[str, list[int]]], state: LastState | None) -> None:
        self.shapes = shapes
        self.own = state.tensors if state is not None else None

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = self.shapes[name]
        if self.own is None:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        else:
            tensor = self.own[name].cpu().contiguous()
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), 0)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def init_world() -> JoinedWorld:
    """The world that the environment variables of torchrun or srun describe; without them, a world of one process.

    torchrun's are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. If the program has
    initialized torch.distributed already, as Ray Train does, its default group is used.

    Raises: ConfigError if variables are missing, or if that group cannot send tensors of the CPU; ProcessLostError if
    other processes do not connect.
    """
    place = placement()
    if place is None:
        return JoinedWorld()
    if not dist.is_initialized():
        return ProcessGroup.connected(place)
    if "gloo" not in (backend := dist.get_backend_config()):
        raise ConfigError(
            f"the backend of torch.distributed ({backend}) must include gloo, for tensors on the CPU: initialize it "
            'with "cpu:gloo,cuda:nccl"'
        )
    close_when_lost()
    return ProcessGroup(place, PrefixStore("minigpt", dist.distributed_c10d._get_default_store()), is_ours=False)


def _shown(name: str, command: Mapping[str, Any]) -> str:
    return f"no {name}" if command.get(name) is None else f"{name} ({command[name]})"


def _sum_gradients(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sums the gradients of all processes.

    DDP would divide the sum by their number, but each process's loss is already its share of the batch's mean, even if
    the processes have different numbers of rows.
    """
    reduced = dist.all_reduce(bucket.buffer(), async_op=True)
    return reduced.get_future().then(lambda done: done.value()[0])


@contextmanager
def translated_errors(rank: int, size: int) -> Iterator[None]:
    """A context in which a lost connection to another process becomes a ProcessLostError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, MinigptError) or not _is_connection_error(error):
            raise
        raise ProcessLostError(
            f"process {rank + 1} of {size} lost the connection to another one, which has ended; continue with --resume"
        ) from error


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether the connection to another process failed. Gloo raises a RuntimeError that only its message identifies."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
