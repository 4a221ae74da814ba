"""The store through which processes connect, and how they find each other in it, also after a restart.

`torch.distributed.elastic` tells earlier processes in the store apart by a restart count, which can differ between
machines, so that it is not used here.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from minigpt.distributed.launchers import Placement
from minigpt.errors import ConfigError, TrainingError

_JOIN_MINUTES = 5  # for all processes to connect
_LOST_AFTER = 60  # seconds without an answer from another machine until the connection to it is lost
_PROBES = 6  # questions in that time to a machine from which nothing is expected
_LIBUV = os.name != "nt"  # torch has it everywhere but on Windows
_POLL = 0.05  # seconds
_ATTEMPTS = "minigpt/attempts"  # the key of the number of groups that have begun


class ProcessLostError(TrainingError):
    """Another process of the run has ended, so this one cannot continue."""


def connect(place: Placement) -> Store:
    """The store that the processes share.

    Raises: ConfigError if its host has no address or its port is taken; ProcessLostError if nobody answers there.
    """
    if place.file is not None:
        return FileStore(place.file)
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


def group_store(shared: Store, attempt: int) -> Store:
    """The part of the store that belongs to one group of processes; a launcher's first group has number 1."""
    return PrefixStore(f"minigpt/{attempt}", shared)


def join(shared: Store, place: Placement) -> tuple[Store, int]:
    """Waits until all processes are there; all of them call it. Returns the store of their group, and its number.

    The store of a launcher still has what earlier processes of the same ranks wrote. So rank 0 begins a new group, and
    the others enter the newest group that no earlier process of their rank has entered.
    Raises: ProcessLostError if processes do not come in time.
    """
    if place.rank == 0:
        return _gather(shared, place)
    newest, is_mine = 0, False
    for _ in poll(60 * _JOIN_MINUTES):
        if (attempt := shared.add(_ATTEMPTS, 0)) > newest:
            newest, store = attempt, group_store(shared, attempt)
            is_mine = store.add(f"entered/{place.rank}", 1) == 1
        if is_mine and store.check(["complete"]):
            return store, newest
    raise ProcessLostError(
        f"process {place.rank + 1} of {place.size} waited {_JOIN_MINUTES} minutes for the first one, on "
        f"{place.host}; start as many processes as each was told that there are"
    )


def _gather(shared: Store, place: Placement) -> tuple[Store, int]:
    """Rank 0's part of `join`."""
    attempt, missing = shared.add(_ATTEMPTS, 1), list(range(1, place.size))
    store = group_store(shared, attempt)
    for _ in poll(60 * _JOIN_MINUTES):
        missing = [rank for rank in missing if not store.check([f"entered/{rank}"])]
        if not missing:
            store.set("complete", "")
            return store, attempt
    others = ", ".join(str(rank + 1) for rank in missing)
    raise ProcessLostError(
        f"after {_JOIN_MINUTES} minutes these of {place.size} processes had not connected: {others}; see what they "
        "have printed"
    )


def poll(seconds: float) -> Iterator[None]:
    """Yields every twentieth of a second, for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(_POLL)


# Connections.


def find_interface(store: Store, place: Placement) -> str | None:
    """The network interface that leads to the other machines; None if there are none, or it is not found.

    All processes call it.
    """
    if place.local_size == place.size:
        return None
    import psutil

    own = _address_towards(place.host)
    store.set(f"address/{place.rank}", own)
    if own.startswith("127."):  # this is the first machine, whose name often has an address that only it knows
        addresses = (store.get(f"address/{rank}").decode() for rank in range(place.size))
        own = _address_towards(next((each for each in addresses if not each.startswith("127.")), place.host))
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == own for entry in entries):
            return name
    return None


def _address_towards(host: str) -> str:
    """This machine's address in the network that leads to a host. The host may be this machine."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def close_when_lost() -> None:
    """Makes the kernel close this process's connections to machines that have not answered for a minute.

    Otherwise a process waits for hours if the network fails, or a machine without ending its connections. A machine
    whose processes are busy, or stopped, still answers. Only Linux lists the connections of a process.
    """
    if sys.platform != "linux":
        return
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # it has been closed, or is no connection
            if not entry.readlink().name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:  # a copy, since it is closed here
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_AFTER // _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOST_AFTER // _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _LOST_AFTER)
