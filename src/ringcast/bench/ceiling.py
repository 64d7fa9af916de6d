"""One process of the raw ceiling: plain sockets moving the same datagrams in the same pattern.

No group, no order, no repair: each sender keeps a few datagrams in flight towards each receiver,
which returns a one-byte credit for every few that arrive. What this moves is what the machine
can move; the rest is our own cost.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time

IN_FLIGHT = 32
CREDIT_EVERY = 8


def move(
    listen: tuple[str, int],
    peers: list[tuple[str, int]],
    is_sender: bool,
    size: int,
    seconds: float,
) -> float:
    """Payload bytes received per second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
        sock.bind(listen)
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return _pump(sock, peers, is_sender, size, seconds)


def _pump(
    sock: socket.socket,
    peers: list[tuple[str, int]],
    is_sender: bool,
    size: int,
    seconds: float,
) -> float:
    datagram = bytes(size)
    space = bytearray(1 << 16)
    credit = dict.fromkeys(peers, IN_FLIGHT)
    owed = dict.fromkeys(peers, 0)
    received = 0
    started = time.perf_counter()
    topped_up = started
    while (now := time.perf_counter()) - started < seconds:
        if now - topped_up > 0.05:  # credits are lost like everything else
            topped_up = now
            credit = dict.fromkeys(peers, IN_FLIGHT)
        did_something = False
        for peer in peers:
            if is_sender and credit[peer] > 0:
                credit[peer] -= 1
                did_something = True
                with contextlib.suppress(OSError):  # dropped, like what overflows at a receiver
                    sock.sendto(datagram, peer)
        for _ in range(16):
            try:
                length, source = sock.recvfrom_into(space)
            except OSError:
                break
            did_something = True
            if length == 1:
                credit[source] += CREDIT_EVERY
                continue
            received += length
            owed[source] += 1
            if owed[source] == CREDIT_EVERY:
                owed[source] = 0
                sock.sendto(b"+", source)
        if not did_something:
            select.select([sock], [], [], 0.01)
    return received / (time.perf_counter() - started)


if __name__ == "__main__":
    task = json.loads(sys.stdin.readline())
    rate = move(
        tuple(task["listen"]),
        [tuple(peer) for peer in task["peers"]],
        task["is_sender"],
        task["size"],
        task["seconds"],
    )
    sys.stdout.write(json.dumps({"bytes_per_s": rate}) + "\n")
