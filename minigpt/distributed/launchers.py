"""Which of several processes this one is: read from the environment variables of torchrun or of Slurm's srun."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from minigpt.errors import ConfigError

_STORE = "MINIGPT_STORE"  # environment variable of the processes of `minigpt train --devices`: the file of their store
_FIRST_PORT, _PORTS = 20_000, 10_000  # below the ports that Linux gives to outgoing connections


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One of the processes that train together, and the host and port, or the file, of the store that connects them.

    `local_size` of the `size` processes are on this machine. `has_store` says whether the launcher has started the
    store; otherwise rank 0 does. `threads` is the number of CPU threads that the launcher gives this process, if known.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str = ""
    port: int = 0
    file: str | None = None
    has_store: bool = False
    threads: int | None = None


def environment_of(rank: int, size: int, store: Path) -> dict[str, str]:
    """The environment variables of one of `size` processes of this machine, which connect through a file."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, _STORE: store}
    return {name: str(value) for name, value in own.items()}


def is_child() -> bool:
    """Whether `minigpt train --devices` has started this process."""
    return _STORE in os.environ


def is_launched() -> bool:
    """Whether torchrun, srun or `minigpt train --devices` has started this process as one of several."""
    return "WORLD_SIZE" in os.environ or _slurm_tasks() > 1


def is_restarted() -> bool:
    """Whether torchrun or Slurm has started this process again, after a failure or for a requeued job."""
    counts = (os.environ.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdecimal() and int(count) > 0 for count in counts)


def placement() -> Placement | None:
    """This process's place among those that its launcher started; None if there is only one.

    Raises: ConfigError if a variable is missing or is not a number.
    """
    if "WORLD_SIZE" in os.environ:
        return None if os.environ["WORLD_SIZE"] == "1" else _from_torchrun()
    return _from_slurm() if _slurm_tasks() > 1 else None


def _from_torchrun() -> Placement:
    rank, size, file = _number("RANK"), _number("WORLD_SIZE"), os.environ.get(_STORE)
    return Placement(
        launcher="torchrun",
        rank=rank,
        size=size,
        local_rank=_number("LOCAL_RANK", rank),
        local_size=_number("LOCAL_WORLD_SIZE", size),
        host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=_number("MASTER_PORT", None if file is None else 0),
        file=file,
        has_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _from_slurm() -> Placement:
    return Placement(
        launcher="srun",
        rank=_number("SLURM_PROCID"),
        size=_slurm_tasks(),
        local_rank=_number("SLURM_LOCALID"),
        local_size=os.environ.get("SLURM_GTIDS", "").count(",") + 1,  # the ranks of the tasks on this machine
        host=first_host(os.environ.get("SLURM_STEP_NODELIST", "")),
        port=slurm_port(_number("SLURM_JOB_ID"), _number("SLURM_STEP_ID")),
        threads=_number("SLURM_CPUS_PER_TASK") if "SLURM_CPUS_PER_TASK" in os.environ else None,
    )


def _slurm_tasks() -> int:
    """The number of processes of this job step. A batch script, which is no step of srun, does not have it."""
    count = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    return int(count) if count.isdecimal() else 1


def slurm_port(job: int, step: int) -> int:
    """The port of a job step's store: different for steps that are likely to share a machine."""
    return _FIRST_PORT + (101 * job + step) % _PORTS


def first_host(hosts: str) -> str:
    """The first host of a list as Slurm writes it, such as `gpu[07-09,12],login` or `a1,a2`.

    Raises: ConfigError if the list is empty.
    """
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    if first is None:
        raise ConfigError(
            f"the environment variable SLURM_STEP_NODELIST ({hosts or 'absent'}) must name the hosts of this job step; "
            "start minigpt with srun"
        )
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError as error:
        cause = "since this is one of several tasks of srun; start them with srun minigpt train"
        if not name.startswith("SLURM_"):
            cause = "since WORLD_SIZE is set; start several processes with --devices or torchrun"
        raise ConfigError(f"the environment variable {name} ({text or 'absent'}) must be a number, {cause}") from error
