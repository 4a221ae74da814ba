"""The store through which processes connect, and how they find each other in it, also after a restart.

Source of the idea: `torch.distributed.elastic`, whose restart count can differ between machines, so that it is not
used here.
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from minigpt.errors import ConfigError, MinigptError
from minigpt.training.distributed import ProcessLostError
from minigpt.training.launchers import Placement

_JOIN_MINUTES = 5  # for all processes to connect
_LOST_AFTER = 60  # seconds without an answer from another machine until the connection to it is lost
_PROBES = 6  # questions in that time to a machine from which nothing is expected
_LIBUV = os.name != "nt"  # torch has it everywhere but on Windows
_POLL = 0.05  # seconds


def rendezvous(processes: int) -> tuple[Store, list[dict[str, str]]]:
    """A store on this machine through which the processes connect, and the environment variables of each."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=_LIBUV)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    own = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return _group_store(store, 0), own


def connect(place: Placement) -> Store:
    """The store that the processes share.

    Raises: ConfigError if its host has no address or its port is taken; ProcessLostError if nobody answers there.
    """
    try:
        socket.getaddrinfo(place.host, place.port)
    except OSError as error:
        raise ConfigError(
            f"the host name of the first process ({place.host}) has no address on {socket.gethostname()} "
            f"({error.strerror}); add it to DNS or to /etc/hosts on every machine"
        ) from error
    starts = place.rank == 0 and not place.has_store
    try:
        return TCPStore(
            place.host,
            place.port,
            is_master=starts,
            wait_for_workers=False,
            timeout=timedelta(minutes=_JOIN_MINUTES),
            use_libuv=_LIBUV,
        )
    except (dist.DistError, RuntimeError) as error:
        if starts:
            raise ConfigError(
                f"port {place.port} of {place.host} cannot be opened, by which the other processes would connect; end "
                "the program that uses it, or start again"
            ) from error
        raise ProcessLostError(
            f"process {place.rank + 1} of {place.size} could not connect to the first one, port {place.port} of "
            f"{place.host}, in {_JOIN_MINUTES} minutes"
        ) from error


class MainFailedError(MinigptError):
    """The main process has refused this one and reports why."""


@dataclass(frozen=True)
class Joined:
    """The part of the store that belongs to these processes, and how many groups have used the store before.

    `address` is this machine's address in the network that leads to the other processes.
    """

    store: Store
    attempt: int
    address: str


def join(shared: Store, place: Placement, command: Mapping[str, Any]) -> Joined:
    """Waits until all processes are there; all of them call it. `command` says what this process was asked to do.

    The store of a launcher still has what earlier processes of the same ranks wrote. So each process has a random
    number, and the group of rank 0 lists those that belong together.
    Raises: ConfigError on rank 0 if another process has another command, and MainFailedError on the others;
    ProcessLostError if processes do not come in time.
    """
    base, own = PrefixStore("minigpt", shared), secrets.token_hex(8)
    if place.rank == 0:
        return _gather(base, shared, place, command)
    address = _address_towards(place.host)
    process = {"number": own, "host": socket.gethostname(), "address": address, "command": dict(command)}
    base.set(f"process/{place.rank}", json.dumps(process))
    for _ in _until_join_timeout():
        group = json.loads(base.get("group")) if base.check(["group"]) else {"numbers": {}}
        if group["numbers"].get(str(place.rank)) == own:
            break
    else:
        raise ProcessLostError(
            f"process {place.rank + 1} of {place.size} waited {_JOIN_MINUTES} minutes for the first one, on "
            f"{place.host}; start as many processes as each was told that there are"
        )
    store = _group_store(shared, group["attempt"])
    store.set(f"member/{place.rank}", own)
    if group["refused"]:
        raise MainFailedError("the first process has refused another one")
    return Joined(store, group["attempt"], address)


def _gather(base: Store, shared: Store, place: Placement, command: Mapping[str, Any]) -> Joined:
    """Rank 0's part of `join`: lists the processes, again when one is replaced, until all of the list have joined."""
    attempt = base.add("attempts", 1) - 1
    store = _group_store(shared, attempt)
    ranks, missing = range(1, place.size), [1]
    listed: dict[int, str] = {}
    difference: str | None = None
    for _ in _until_join_timeout():
        missing = [rank for rank in ranks if not base.check([f"process/{rank}"])]
        if missing:
            continue
        processes = {rank: json.loads(base.get(f"process/{rank}")) for rank in ranks}
        numbers = {rank: process["number"] for rank, process in processes.items()}
        if numbers != listed:
            difference = _difference(command, processes, place.size)
            group = {"attempt": attempt, "numbers": numbers, "refused": difference is not None}
            base.set("group", json.dumps(group))
            listed = numbers
        addresses = [process["address"] for process in processes.values()]
        missing = [rank for rank in ranks if not _has_joined(store, rank, numbers[rank])]
        if not missing:
            if difference is not None:
                raise ConfigError(difference)
            farthest = next((address for address in addresses if not address.startswith("127.")), place.host)
            return Joined(store, attempt, _address_towards(farthest))
    others = ", ".join(str(rank + 1) for rank in missing)
    raise ProcessLostError(
        f"after {_JOIN_MINUTES} minutes these of {place.size} processes had not connected: {others}; see what they "
        "have printed"
    )


def _has_joined(store: Store, rank: int, number: str) -> bool:
    return store.check([f"member/{rank}"]) and store.get(f"member/{rank}").decode() == number


def _group_store(shared: Store, attempt: int) -> Store:
    return PrefixStore(f"minigpt/{attempt}", shared)


def _until_join_timeout() -> Iterator[None]:
    until = time.monotonic() + 60 * _JOIN_MINUTES
    while time.monotonic() < until:
        yield
        time.sleep(_POLL)


def _difference(command: Mapping[str, Any], processes: Mapping[int, Mapping[str, Any]], size: int) -> str | None:
    """A sentence on the first process that was asked to do something else than this one; None if there is none."""
    for rank, process in processes.items():
        other, host = process["command"], process["host"]
        for name in sorted({*command, *other}):
            if other.get(name) != command.get(name):
                return (
                    f"process {rank + 1} of {size}, on {host}, has {_shown(name, other)}, and the first process has "
                    f"{_shown(name, command)}; start all of them with the same command and versions"
                )
    return None


def _shown(name: str, command: Mapping[str, Any]) -> str:
    return f"no {name}" if command.get(name) is None else f"{name} ({command[name]})"


# Connections.


def _address_towards(host: str) -> str:
    """This machine's address in the network that leads to a host. The host may be this machine."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return probe.getsockname()[0]


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address; None if none has."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def close_when_lost() -> None:
    """Makes the kernel close this process's connections to machines that have not answered for a minute.

    Otherwise a process waits for hours if the network fails, or a machine without ending its connections. A machine
    whose processes are busy, or stopped, still answers. Only Linux lists the connections of a process.
    """
    if sys.platform != "linux":
        return
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), _duplicate(int(entry.name)) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_AFTER // _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOST_AFTER // _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _LOST_AFTER)


def _duplicate(descriptor: int) -> socket.socket:
    """A socket object of an open socket. Closing it leaves the socket open.

    Raises: OSError if the descriptor is none of a socket.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
