"""One process of a peer's group: `python -m benchmarks.peers.worker PEER`. It obeys those commands
of a member process (ringcast/sim/member_process.py) that `bench peers` needs, and answers alike:

    place, join     as there; `servers` says where the peer is reached
    view            wait until all hear each other
    round           send so many to the group or, with `to`, to one; wait for everybody else's
    reply, ask      send back so many; send to another and wait for the reply, so many times

What a member sends itself counts as delivered at once: peers do not have to bring it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from ringcast.sim.member_process import SEND_BATCH, payloads_of, say

BATCH_BYTES = 60_000
TIMEOUT_S = 60.0


class Zmq:
    """XPUB and SUB for the group, which drop nothing; PUSH and PULL for one member. As all peers:
    one thread sends, another receives; `receive` says how many came, or raises TimeoutError."""

    def __init__(self, place: dict[str, Any]) -> None:
        zmq = self._zmq = import_module("zmq")
        self._context = context = zmq.Context()
        self._name, self._servers = place["name"], place["servers"]
        self._pull, self._group, self._heard = map(context.socket, (zmq.PULL, zmq.XPUB, zmq.SUB))
        self._group.set(zmq.XPUB_NODROP, 1)
        self._group.set(zmq.XPUB_VERBOSE, 1)  # tell of every subscriber
        self._group.bind(self._at(self._name, 0))
        self._pull.bind(self._at(self._name, 1))
        self._heard.subscribe(b"")
        self._push: dict[str, Any] = {}
        self._others = [name for name in self._servers if name != self._name]
        for name in self._others:
            self._heard.connect(self._at(name, 0))
            self._push[name] = context.socket(zmq.PUSH)
            self._push[name].connect(self._at(name, 1))
        self._poller = zmq.Poller()
        for socket in (self._heard, self._pull):
            self._poller.register(socket, zmq.POLLIN)

    def _at(self, name: str, which: int) -> str:
        return f"tcp://127.0.0.1:{self._servers[name][which]}"

    def await_all(self) -> None:
        for _ in self._others:
            self._group.recv()  # a subscription

    def send(self, payloads: Sequence[bytes], to: str | None, *, singly: bool) -> None:
        socket = self._group if to is None else self._push[to]
        if singly:
            for payload in payloads:
                socket.send(payload)
        else:
            socket.send_multipart(payloads)

    def receive(self) -> int:
        ready = dict(self._poller.poll(TIMEOUT_S * 1000))
        if not ready:
            raise TimeoutError
        count = 0
        for socket in ready:
            try:
                for _ in range(SEND_BATCH):
                    count += len(socket.recv_multipart(self._zmq.NOBLOCK, copy=True))
            except self._zmq.Again:
                pass
        return count


class Redis:
    """Publish and subscribe; a batch is a pipeline."""

    def __init__(self, place: dict[str, Any]) -> None:
        client = self._client = import_module("redis").Redis("127.0.0.1", place["servers"])
        self._name = place["name"]
        others = [name for name in place["names"] if name != self._name]
        self._subscribed = client.pubsub(ignore_subscribe_messages=True)
        self._subscribed.subscribe(self._name, *(f"from/{name}" for name in others))
        self._subscribed.get_message(timeout=0.1)
        client.ping()

    def send(self, payloads: Sequence[bytes], to: str | None, *, singly: bool) -> None:
        channel = to or f"from/{self._name}"
        if singly:
            for payload in payloads:
                self._client.publish(channel, payload)
        else:
            with self._client.pipeline(transaction=False) as pipeline:
                for payload in payloads:
                    pipeline.publish(channel, payload)
                pipeline.execute()

    def receive(self) -> int:
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            if self._subscribed.get_message(timeout=TIMEOUT_S) is not None:
                return 1
        raise TimeoutError


class Nats:
    """Subjects; its event loop has a thread of its own. It has no batches."""

    def __init__(self, place: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._name = place["name"]
        self._came = threading.Semaphore(0)
        self._do(self._connect(place))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self, place: dict[str, Any]) -> None:
        nats = import_module("nats")
        self._client = await nats.connect(f"nats://127.0.0.1:{place['servers']}")
        others = [name for name in place["names"] if name != self._name]
        for subject in (self._name, *(f"from.{name}" for name in others)):
            limits = {"pending_msgs_limit": -1, "pending_bytes_limit": -1}
            await self._client.subscribe(subject, cb=self._on_message, **limits)
        await self._client.flush()

    async def _on_message(self, _: Any) -> None:
        self._came.release()

    def send(self, payloads: Sequence[bytes], to: str | None, *, singly: bool) -> None:
        self._do(self._publish(payloads, to or f"from.{self._name}"))

    async def _publish(self, payloads: Sequence[bytes], subject: str) -> None:
        for payload in payloads:
            await self._client.publish(subject, payload)
        await self._client.flush()

    def receive(self) -> int:
        if not self._came.acquire(timeout=TIMEOUT_S):
            raise TimeoutError
        return 1


Peer: TypeAlias = Zmq | Redis | Nats


def _round(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    count, to = command["send"], command.get("to")
    expected = command["expect"] - (0 if to else count)
    started, cpu = time.perf_counter(), time.process_time()
    sender = threading.Thread(target=_send, args=(peer, count, to, command))
    sender.start()
    came = 0
    try:
        while came < expected:
            came += peer.receive()
    except TimeoutError:
        return {"stuck": f"has {came} of {expected} messages, and no more come"}
    seconds = time.perf_counter() - started
    sender.join()
    return {
        "seconds": max(seconds, time.perf_counter() - started) if not expected else seconds,
        "delivered": came + count if expected else 0,
        "lost": expected - came,
        "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "retransmitted": 0,
        "reports": 0,
    }


def _send(peer: Peer, count: int, to: str | None, command: dict[str, Any]) -> None:
    size = max(1, command["size"])
    payloads = payloads_of(size, is_mixed=False)[: max(1, BATCH_BYTES // size)]
    while count > 0:
        some = payloads[:count]
        peer.send(some, to, singly=command["singly"])
        count -= len(some)


def _ask(peer: Peer, command: dict[str, Any]) -> list[int]:
    payload, times = [bytes(command["size"])], []
    for _ in range(command["count"]):
        started = time.perf_counter_ns()
        peer.send(payload, command["to"], singly=True)
        peer.receive()
        times.append(time.perf_counter_ns() - started)
    return times


def _reply(peer: Peer, command: dict[str, Any]) -> None:
    payload = [bytes(command["size"])]
    for _ in range(command["count"]):
        peer.receive()
        peer.send(payload, command["to"], singly=True)


PEERS: dict[str, type[Peer]] = {"pyzmq": Zmq, "nats": Nats, "redis": Redis}


def main(kind: str) -> None:
    lines = map(json.loads, sys.stdin)
    place = next(lines)
    if next(lines, None) is None:
        return
    peer = PEERS[kind](place)
    say({})
    for command in lines:
        match command["op"]:
            case "view":
                if isinstance(peer, Zmq):  # the others know who has joined
                    peer.await_all()
                say({})
            case "round":
                say(_round(peer, command))
            case "ask":
                say({"times_ns": _ask(peer, command)})
            case "reply":
                _reply(peer, command)
    os._exit(0)  # whatever threads and sockets the peer has


if __name__ == "__main__":
    main(sys.argv[1])
