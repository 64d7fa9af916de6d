"""A process that sends back what it gets, over a plain blocking socket: the raw round trip."""

from __future__ import annotations

import json
import socket
import sys

SPACE = 1 << 16


def open_socket(transport: str) -> socket.socket:
    """Bound to a free port of loopback. Requests never travel by multicast: that is UDP here."""
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", 0))
    return sock


def exchange(sock: socket.socket, payload: bytes) -> None:
    """Send this, and wait until as much has come back."""
    sock.send(payload)
    missing = len(payload)
    while missing > 0:
        missing -= len(sock.recv(SPACE))


def _echo(transport: str) -> None:
    sock = open_socket(transport)
    if transport == "tcp":
        sock.listen()
    sys.stdout.write(json.dumps({"listen": sock.getsockname()}) + "\n")
    sys.stdout.flush()
    if transport == "tcp":
        link, _ = sock.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := link.recv(SPACE):
            link.send(data)
        return
    while True:
        data, source = sock.recvfrom(SPACE)
        if not data:  # whoever asked is done
            return
        sock.sendto(data, source)


if __name__ == "__main__":
    _echo(json.loads(sys.stdin.readline())["transport"])
