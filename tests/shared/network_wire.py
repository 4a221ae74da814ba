"""A cable between two network interfaces that delays packets and loses some, for kernels without netem.

python network_wire.py INTERFACE INTERFACE --delay SECONDS --loss SHARE
"""

import argparse
import heapq
import random
import select
import socket
import time

_ALL_PROTOCOLS = 3
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23  # of linux/if_packet.h
_LARGEST = 70_000  # bytes: packets are larger than a frame where the kernel has joined several


def opened(interface: str) -> socket.socket:
    """A socket that reads every packet that arrives there, with what the kernel knows of its checksum and size."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    link.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    link.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    link.bind((interface, 0))
    link.setblocking(False)
    return link


def carry(interfaces: list[str], delay: float, loss: float) -> None:
    """Carries packets between the two interfaces until the process is killed."""
    ends = [opened(interface) for interface in interfaces]
    lost = random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []  # when to send it, its number, the end to send it from, itself
    number = 0
    while True:
        until = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], until)[0]:
            packet = end.recv(_LARGEST)
            number += 1
            if lost.random() >= loss:
                heapq.heappush(waiting, (time.monotonic() + delay, number, 1 - ends.index(end), packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            try:
                ends[to].send(packet)
            except (BlockingIOError, OSError):  # a full queue loses packets, and so does a link that is down
                continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interfaces", nargs=2)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--loss", type=float, default=0.0, help="share of the packets, 0 to 1")
    options = parser.parse_args()
    carry(options.interfaces, options.delay, options.loss)


if __name__ == "__main__":
    main()
