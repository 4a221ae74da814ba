"""A Slurm cluster on this machine: munged, slurmctld and one slurmd per host, from Debian's packages. Needs root."""

import contextlib
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from network_hosts import Hosts, joined_hosts
from network_hosts import missing as hosts_missing

HEAD = "head"  # the host of slurmctld
PROGRAMS = ("munged", "slurmctld", "slurmd")
_CONFIG = """
ClusterName=minigpt
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout={down_after}
InactiveLimit=0
KillWait=30
NodeName={nodes} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=normal Nodes={nodes} Default=YES PriorityTier=1
PartitionName=urgent Nodes={nodes} PriorityTier=2
"""


def missing() -> str | None:
    """What this machine lacks to run Slurm; None if nothing."""
    programs = [program for program in PROGRAMS if shutil.which(program) is None]
    if programs:
        return f"{' and '.join(programs)} are missing: apt-get install munge slurmctld slurmd slurm-client"
    return hosts_missing()


class Slurm:
    """A running cluster. Commands run on its head, as on the login node of a real one."""

    def __init__(
        self, hosts: Hosts, nodes: Sequence[str], folder: Path, environment: Mapping[str, str], down_after: int
    ) -> None:
        self.hosts, self.nodes, self.folder = hosts, list(nodes), folder
        for name in ("munge", "state"):
            (folder / name).mkdir(mode=0o755)
        config = folder / "slurm.conf"
        config.write_text(_CONFIG.format(folder=folder, nodes=",".join(nodes), down_after=down_after))
        self.environment = {**environment, "SLURM_CONF": str(config)}
        self.daemons = {"munged": self._start_munged(), HEAD: self._start(HEAD, "slurmctld", "-D")}
        for node in nodes:
            self.start_node(node)
        wait_until(self.is_idle, self.logs)

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node."""
        self.daemons[node] = self._start(node, "slurmd", "-D", "-N", node)

    def stop_node(self, node: str) -> None:
        """Kills the daemon of a node. The processes of jobs there stay."""
        self.daemons[node].kill()
        self.daemons[node].wait()

    def is_idle(self) -> bool:
        """Whether all nodes are up and have no job."""
        return self.run("sinfo", "-h", "-p", "normal", "-o", "%D %t").split() == [str(len(self.nodes)), "idle"]

    def _start_munged(self) -> "subprocess.Popen[bytes]":
        munge = self.folder / "munge"
        key = munge / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = (
            f"--key-file={key}",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--seed-file={munge}/seed",
        )
        return self._start(HEAD, "munged", "--foreground", "--force", *files)

    def _start(self, host: str, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{command[0]}-{host}.out").open("a") as log:
            return self.hosts.start(host, *command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)

    def run(self, *command: str, **options: Any) -> str:
        """Runs a command on the head; returns its output, empty if it fails."""
        done = subprocess.run(
            self.hosts.command(HEAD, *command),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            **options,
        )
        return done.stdout if done.returncode == 0 else ""

    def submit(self, *arguments: str) -> str:
        """Submits a batch job in the folder of the cluster, with the arguments of sbatch; returns its number."""
        command = self.hosts.command(HEAD, "sbatch", "--parsable", *arguments)
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job as Slurm names it, such as RUNNING or COMPLETED."""
        return self._field(job, "JobState")

    def seconds(self, job: str) -> int:
        """The seconds for which a job has run."""
        hours, minutes, seconds = self._field(job, "RunTime").split(":")
        return 3600 * int(hours) + 60 * int(minutes) + int(seconds)

    def _field(self, job: str, name: str) -> str:
        words = self.run("scontrol", "show", "job", job).split()
        return next((word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")), "")

    def wait(self, job: str, *states: str, seconds: float = 300) -> str:
        """Waits until the job is in one of the states; returns it."""
        wait_until(lambda: self.state(job) in states, self.logs, seconds)
        return self.state(job)

    def logs(self) -> str:
        """The state of the cluster, and the last lines of what its daemons have written."""
        paths = sorted(path for path in self.folder.iterdir() if path.suffix in (".log", ".out"))
        lines = [
            f"{path.name}: {line}" for path in paths for line in path.read_text(errors="replace").splitlines()[-6:]
        ]
        return "\n".join([self.run("squeue"), self.run("sinfo"), *lines])

    def close(self) -> None:
        """Ends the daemons; closing the hosts ends what they have started."""
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def cluster(nodes: Sequence[str], folder: Path, environment: Mapping[str, str], *, down_after: int) -> Iterator[Slurm]:
    """A cluster with these nodes. A node is down after so many seconds without its daemon."""
    with joined_hosts([HEAD, *nodes], folder) as hosts:
        slurm = Slurm(hosts, nodes, folder, environment, down_after)
        try:
            yield slurm
        finally:
            slurm.close()


def wait_until(reached: Callable[[], object], logs: Callable[[], str], seconds: float = 120) -> None:
    """Waits until `reached()` is true."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, logs()
        time.sleep(0.2)
