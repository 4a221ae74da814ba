"""Several hosts on this machine: network namespaces with own host names, joined by virtual links. Needs root and Linux.

Hosts share the files of this machine, and no network but the links: 127.0.0.1 is another one on each. A link can be
cut, and have a speed for the packets that its host sends.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOOLS = ("ip", "tc", "nsenter", "unshare")
_ENTER = 'hostname "$1" && mount --bind "$2/$1" /etc/hosts && shift 2 && exec "$@"'


def missing() -> str | None:
    """What this machine lacks to have such hosts; None if nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    if tools:
        return f"{' and '.join(tools)} are missing: apt-get install iproute2 util-linux"
    name = f"minigpt-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "this machine does not allow network namespaces"
    made = subprocess.run(["ip", "-n", name, "link", "add", "type", "veth"], capture_output=True).returncode
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return "this machine does not allow virtual links" if made else None


class Hosts:
    """Hosts by name, which `close` removes together with every process on them."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.names = list(names)
        self.tables = folder / "hosts"
        self.tables.mkdir(exist_ok=True)
        addresses = [f"10.77.0.{number} {name}\n" for number, name in enumerate(names, 1)]
        for name in names:
            (self.tables / name).write_text("127.0.0.1 localhost\n" + "".join(addresses))
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        _run("ip", "netns", "add", self._namespace("switch"))
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names, 1):
            _run("ip", "netns", "add", self._namespace(name))
            self._ip(name, "link", "set", "lo", "up")
            peer = ("type", "veth", "peer", "name", name, "netns", self._namespace("switch"))
            self._ip(name, "link", "add", "eth0", *peer)
            self._ip("switch", "link", "set", name, "master", "bridge", "up")
            self._ip(name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            self._ip(name, "link", "set", "eth0", "up")

    def command(self, host: str, *command: str) -> list[str]:
        """The command line that runs a command on a host."""
        network = f"--net=/run/netns/{self._namespace(host)}"
        return [
            "nsenter",
            network,
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            _ENTER,
            "sh",
            host,
            str(self.tables),
            *command,
        ]

    def start(self, host: str, *command: str, **options: Any) -> "subprocess.Popen[Any]":
        """Starts a command on a host. `options` are those of `subprocess.Popen`."""
        return subprocess.Popen(self.command(host, *command), **options)

    def run(self, host: str, *command: str, **options: Any) -> str:
        """Runs a command on a host; returns its output."""
        return _run(*self.command(host, *command), **options)

    def pids(self, host: str) -> list[int]:
        """The process ids of the processes on a host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self._namespace(host)).split()]

    def sent(self, host: str) -> int:
        """The bytes that a host has sent over its link."""
        shown = _run("ip", "-n", self._namespace(host), "-json", "-statistics", "link", "show", "eth0")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    def name_by_loopback(self) -> None:
        """Gives the name of every host, on the host itself, the address that Debian's installer gives it."""
        for name in self.names:
            table = self.tables / name
            table.write_text(re.sub(rf"^\S+ {name}$", f"127.0.1.1 {name}", table.read_text(), flags=re.MULTILINE))

    # Links.

    def cut(self, host: str) -> None:
        """Cuts the link of a host: its packets are lost, in both directions, without a message."""
        self._ip("switch", "link", "set", host, "down")

    def mend(self, host: str) -> None:
        """Ends what `cut` began."""
        self._ip("switch", "link", "set", host, "up")

    def limit(self, host: str, mbit: float) -> None:
        """Gives the link of a host a speed in Mbit/s."""
        burst = max(16_000, int(mbit * 1e6 / 8 / 250))  # bytes in a tick of a kernel with 250 of them per second
        speed = ("tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "400ms")
        _run("tc", "-n", self._namespace(host), "qdisc", "replace", "dev", "eth0", "root", *speed)

    def _namespace(self, host: str) -> str:
        return f"minigpt-{os.getpid()}-{host}"

    def _ip(self, host: str, *arguments: str) -> None:
        _run("ip", "-n", self._namespace(host), *arguments)

    def close(self) -> None:
        """Ends every process on the hosts and removes them."""
        for host in [*self.names, "switch"]:
            with contextlib.suppress(subprocess.CalledProcessError):  # it was not created
                for pid in self.pids(host):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                _run("ip", "netns", "delete", self._namespace(host))


@contextlib.contextmanager
def joined_hosts(names: Sequence[str], folder: Path) -> Iterator[Hosts]:
    """Hosts, and their end."""
    hosts = Hosts(names, folder)
    try:
        yield hosts
    finally:
        hosts.close()


def _run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout
