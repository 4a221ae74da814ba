"""The environment variables of torchrun and srun, and how processes find each other, in this process."""

import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import HashStore

from minigpt.distributed import rendezvous
from minigpt.distributed.launchers import Placement, first_host, is_launched, is_restarted, placement, slurm_port
from minigpt.distributed.process_group import ProcessGroup, init_world
from minigpt.distributed.rendezvous import close_when_lost, connect, find_interface, join
from minigpt.errors import ConfigError, MinigptError

# As Slurm 22.05 sets them for the third of three tasks, the second on the second node.
OF_SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "1",
    "SLURM_GTIDS": "1,2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_CPUS_PER_TASK": "4",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", *OF_SRUN):
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# Variables.


def test_a_task_of_srun_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, OF_SRUN)
    assert is_launched()
    assert placement() == Placement(
        launcher="srun", rank=2, size=3, local_rank=1, local_size=2, host="node07", port=slurm_port(4711, 0), threads=4
    )


def test_torchrun_inside_srun_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, OF_SRUN | {"WORLD_SIZE": "8", "RANK": "5", "MASTER_PORT": "29500", "MASTER_ADDR": "node07"})
    place = placement()
    assert place is not None
    assert (place.launcher, place.rank, place.size, place.port) == ("torchrun", 5, 8, 29500)


def test_a_batch_script_without_srun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {name: value for name, value in OF_SRUN.items() if "STEP" not in name})
    assert not is_launched()
    assert placement() is None


def test_a_missing_variable_of_srun_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, OF_SRUN)
    monkeypatch.delenv("SLURM_LOCALID")
    with pytest.raises(ConfigError, match=r"SLURM_LOCALID \(absent\) must be a number, since this is one of several"):
        placement()


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("gpu[07-09,12],login", "gpu07"),
        ("rack[3]n[010-020]", "rack3n010"),
        ("gpu[12,07].cluster.example,b", "gpu12.cluster.example"),
    ],
)
def test_the_first_of_slurms_hosts(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_no_hosts_of_slurm_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_STEP_NODELIST \(absent\) must name the hosts"):
        first_host("")


def test_ports_of_job_steps_differ_and_are_below_those_of_outgoing_connections() -> None:
    ports = {slurm_port(job, step) for job in range(4000, 4090) for step in range(5)}
    assert len(ports) == 90 * 5
    assert all(20_000 <= slurm_port(job, 3) < 32_768 for job in (0, 1, 99_999_999))


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restart_is_recognized(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0")
    assert not is_restarted()
    monkeypatch.setenv(name, "1")
    assert is_restarted()


# The store.


def place_of(rank: int, size: int = 3, host: str = "127.0.0.1") -> Placement:
    return Placement(
        launcher="torchrun", rank=rank, size=size, local_rank=rank, local_size=size, host=host, port=29_500
    )


def test_restarted_processes_join_each_other_in_the_store_of_the_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_JOIN_MINUTES", 0.2)
    shared, found = HashStore(), {}

    def one(rank: int, size: int) -> None:
        found[rank] = join(shared, place_of(rank, size))

    for attempt, size in ((1, 3), (2, 3), (3, 2)):
        threads = [threading.Thread(target=one, args=(rank, size)) for rank in reversed(range(size))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {found[rank][1] for rank in range(size)} == {attempt}
        assert not found[0][0].check(["failed/1"])
        found[1][0].set("failed/1", "")
        assert found[0][0].check(["failed/1"])


def test_processes_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_JOIN_MINUTES", 0.001)
    with pytest.raises(MinigptError, match="of 3 processes had not connected: 2, 3"):
        join(HashStore(), place_of(0))
    with pytest.raises(MinigptError, match=r"process 2 of 3 waited .* for the first one"):
        join(HashStore(), place_of(1))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"steps": 20, "minigpt": "1"}, "has steps (20), and the first process has steps (10)"),
        ({"minigpt": "1"}, "has no steps, and the first process has steps (10)"),
    ],
)
def test_another_command_is_refused_by_the_main_process(
    monkeypatch: pytest.MonkeyPatch, other: Mapping[str, object], message: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    store, command = HashStore(), {"steps": 10, "minigpt": "1"}
    main, second, third = (ProcessGroup(place_of(rank), store) for rank in range(3))
    second.check_same(command)
    third.check_same(other)
    with pytest.raises(ConfigError, match=rf"^process 3 of 3, on .*, {re.escape(message)}"):
        main.check_same(command)
    third.check_same(command)
    main.check_same(command)


def test_what_another_process_announced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("minigpt.distributed.process_group._FAILURE_DELAY", 0.1)
    store = HashStore()
    main, other = ProcessGroup(place_of(0), store), ProcessGroup(place_of(1), store)
    assert (main.failure(), other.failure()) == (None, None)
    assert other.announce("failed/1", "no text")
    assert (main.failure(), other.failure()) == ("no text", None)
    main.announce("failed/0", "no memory")
    assert (main.failure(), other.failure()) == ("no text", "no memory")


def test_a_host_that_does_not_resolve_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the host name of the first process \(no such host\) has no address on "):
        connect(place_of(0, host="no such host"))


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = replace(place_of(0), port=server.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"port {place.port} of 127.0.0.1 cannot be opened"):
            connect(place)


# Connections, and groups of other programs.


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux closes connections that are lost")
def test_connections_are_lost_after_a_minute_without_an_answer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        close_when_lost()
        for end in (here, there):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            idle, every, times = (
                end.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + every * times <= 70
        here.sendall(b"still open")
        assert there.recv(10) == b"still open"


def test_an_interface_leads_to_the_other_machines() -> None:
    place, store = place_of(0), HashStore()
    store.set_timeout(timedelta(seconds=5))
    assert find_interface(store, place) is None  # all processes are on this machine
    store.set("address/1", "127.0.0.1")
    store.set("address/2", "127.0.0.1")
    loopback = find_interface(store, replace(place, local_size=1))
    assert loopback is not None
    assert loopback.startswith(("lo", "Loopback"))
    assert store.get("address/0") == b"127.0.0.1"


def test_the_group_of_another_program_is_used_and_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"})
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        world = init_world()
        assert isinstance(world, ProcessGroup)
        assert world.all_reduce_max([3.0]) == [3.0]
        assert world.announce("run", "here")
        world.close()
        assert dist.is_initialized()
        monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
        with pytest.raises(ConfigError, match=r"the backend of torch.distributed \(cuda:nccl\) must include gloo"):
            init_world()
    finally:
        dist.destroy_process_group()
