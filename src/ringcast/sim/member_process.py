"""One member process of a `Cluster`, which speaks JSON lines with its launcher.

The first line on standard input is its place in the group, the second lets it join; it answers once
it is in. Then:

    {"op": "round", …}    send so many messages, read until everybody's have arrived; what it took
    {"op": "trade", …}    send orders at a pace for some seconds, or until told to stop, reading
                          everybody's; how many. The guarantees that are named are given to batches
                          in turn. With names: once these are the group
    {"op": "stop"}        send no more; the trade ends when everybody has delivered what was sent
    {"op": "totals", …}   once these names are the group: what was delivered of whom, and what is
                          still waited for
    {"op": "finish", …}   read on until so many of each sender's have arrived; how many that are
    {"op": "view", …}     wait for a view of just these names; when that was
    {"op": "stats"}       every table and counter

The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from ringcast.aio import offload
from ringcast.aio.group import Group
from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.read_queue import Message
from ringcast.aio.sources import DirectorySource
from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, StabilityConfig
from ringcast.model import Stream

Commands = AsyncIterator[dict[str, Any]]

SEND_BATCH = 512

STRIDE = 197
"""Odd, so that so many steps through a batch meet every size once."""

PRICES = {"apples": 349, "bread": 420, "coffee": 1190, "olive oil": 1499, "pasta": 215, "tea": 680}
"""In cents."""
CUSTOMERS = 5000


async def _commands() -> Commands:
    """What the launcher says, line by line."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield json.loads(line)


async def serve(member: Callable[[dict[str, Any], Commands], Awaitable[None]]) -> None:
    """The whole life of a member process: its place, then, when it is let in, its commands."""
    commands = _commands()
    place = await anext(commands, None)
    if place is not None and await anext(commands, None) is not None:
        await member(place, commands)


def say(answer: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the launcher was interrupted: there is nobody to tell, or to stay for
        os._exit(1)


async def view_of(group: Group, names: list[str]) -> dict[str, Any]:
    await group.wait_for_view(lambda view: {member.name for member in view} == set(names))
    return _here(group)


async def _member(place: dict[str, Any], commands: Commands) -> None:
    generator = random.Random(place["seed"])
    loss = place["loss"]
    record = place["record"]
    offload.IS_WANTED = place.get("offload", True)
    buffer = {key: place[key] for key in ("receive_buffer_bytes",) if place.get(key)}
    async with join(
        config=GroupConfig(group=place["group"], **buffer),
        name=place["name"],
        listen=place.get("listen", "127.0.0.1:0"),
        discovery=DirectorySource(place["meet"]),
        transport=place.get("transport", "udp"),
        key=bytes.fromhex(place["key"]) if place.get("key") else None,
        insecure=place.get("insecure"),
        multicast=_multicast_config(**place["config"]),
        membership=MembershipConfig(**place["membership"]),
        record=Path(record) if record else None,
        record_level=place["record_level"] if record else None,
        run_id=place.get("run_id", ""),
        lose=(lambda: generator.random() < loss) if loss else None,
    ) as group:
        say(_here(group))
        batches = group.batches()
        trade = Trade(group, random.Random(-place["seed"] - 1))
        async for command in commands:
            match command["op"]:
                case "round":
                    say(await _round(group, batches, command))
                case "trade":
                    trade.start(command)
                case "stop":
                    trade.is_stopped = True
                case "totals":
                    await view_of(group, command["names"])
                    say({"waits": group.explain(), "totals": trade.ledger.rows()})
                case "finish":
                    trade.finish(command)
                case "view":
                    say(await view_of(group, command["names"]))
                case "stats":
                    say(group.stats())


def _multicast_config(stability: dict[str, Any] | None = None, **options: Any) -> MulticastConfig:
    reports = None if stability is None else StabilityConfig(**stability)
    return MulticastConfig(stability=reports, **options)


def _here(group: Group) -> dict[str, Any]:
    """Who this member is, and with whom, at this moment."""
    return {
        "at": time.monotonic_ns(),
        "listen": str(group.me.address),
        "incarnation": group.me.incarnation,
        "view": [member.name for member in group.view],
    }


class Reader:
    """Of each sender, by stream: how many messages were read, and a checksum of them all."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.known: dict[object, dict[str, tuple[int, int]]] = {stream: {} for stream in Stream}
        self._ledger = ledger
        self._progress = asyncio.Event()

    @property
    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for known in self.known.values():
            counts.update({name: count for name, (count, _) in known.items()})
        return counts

    async def read(self, group: Group) -> None:
        async for batch in group.batches():
            known, name = self.known[batch.run.stream], batch.sender.name
            count, checksum = known.get(name, (0, 0))
            checksum = zlib.crc32(b"".join(batch.run.payloads), checksum)
            known[name] = count + len(batch.run.payloads), checksum
            if self._ledger is not None:
                guarantee = "uniform" if batch.run.stream is Stream.UNIFORM else "fifo"
                self._ledger.add(name, guarantee, batch.run.payloads)
            self._progress.set()

    async def finish(self, group: Group, expect: dict[str, int]) -> None:
        """Return when so many of each sender's have come, and everybody has what we sent."""
        while any(self.counts[name] < count for name, count in expect.items()):
            self._progress.clear()
            await self._progress.wait()
        await group.flush()


class Ledger:
    """How many orders came from each sender by each guarantee, and for how many cents."""

    def __init__(self) -> None:
        self.orders: Counter[tuple[str, str]] = Counter()
        self.cents: Counter[tuple[str, str]] = Counter()

    def add(self, sender: str, guarantee: str, payloads: Sequence[bytes]) -> None:
        orders = json.loads(b"[%s]" % b",".join(payloads))
        self.orders[sender, guarantee] += len(orders)
        self.cents[sender, guarantee] += sum(order["cents"] for order in orders)

    def rows(self) -> list[tuple[str, str, int, int]]:
        """Sender, guarantee, orders, cents."""
        return [(*key, orders, self.cents[key]) for key, orders in sorted(self.orders.items())]


def make_orders(dice: random.Random, count: int) -> list[bytes]:
    """What customers might buy, as small JSON objects."""
    orders = [
        {"item": item, "cents": PRICES[item] * dice.randint(1, 4), "customer": customer}
        for item in dice.choices(list(PRICES), k=count)
        for customer in [dice.randrange(CUSTOMERS)]
    ]
    return [json.dumps(order).encode() for order in orders]


class Trade:
    """Orders out at a pace, everybody's orders in. Runs beside the launcher's other commands."""

    def __init__(self, group: Group, dice: random.Random) -> None:
        self.ledger = Ledger()
        self._group = group
        self._dice = dice
        self.is_stopped = False
        self._reader = Reader(self.ledger)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, command: dict[str, Any]) -> None:
        self._tasks.append(asyncio.create_task(self._reader.read(self._group)))
        self._tasks.append(asyncio.create_task(self._sending(command)))

    def finish(self, command: dict[str, Any]) -> None:
        self._tasks.append(asyncio.create_task(self._finishing(command["expect"])))

    async def _sending(self, command: dict[str, Any]) -> None:
        if "names" in command:
            await view_of(self._group, command["names"])
        loop = asyncio.get_running_loop()
        end = loop.time() + command.get("seconds", float("inf"))
        sent, batch = 0, command["batch"]
        guarantees = cycle(command.get("guarantees", ["fifo"]))
        while loop.time() < end and not self.is_stopped:
            orders = make_orders(self._dice, batch)
            await self._group.send_many(orders, guarantee=next(guarantees))
            sent += batch
            await asyncio.sleep(batch / command["rate"])
        if self.is_stopped:
            await self._group.flush()
        say({"sent": sent})

    async def _finishing(self, expect: dict[str, int]) -> None:
        await self._reader.finish(self._group, expect)
        uniform = self._reader.known[Stream.UNIFORM]
        say({**_here(self._group), "read": self._reader.counts, "uniform": uniform})


async def _round(group: Group, batches: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Send and read one round's messages; how long that took and at what cost, or why it is
    stuck."""
    came: dict[str, int] = {}
    started, cpu = time.perf_counter(), time.process_time()
    try:
        async with asyncio.timeout(command.get("deadline_s")):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_send(group, command))
                source = group if command.get("singly") else batches
                await _read(source, command["expect"], came)
                seconds = time.perf_counter() - started
            await group.flush()
    except TimeoutError:
        reasons = "; ".join(group.explain()) or "nothing is known to be in the way"
        return {
            "stuck": f"has {sum(came.values())} of {command['expect']} messages after "
            f"{command['deadline_s']:g} s: {reasons}"
        }
    return {
        "seconds": seconds,
        "delivered": sum(came.values()),
        "lost": lost(came, command["expect"], command.get("senders", len(group.view))),
        "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **_counters(group, command),
    }


async def _send(group: Group, command: dict[str, Any]) -> None:
    count, guarantee = command["send"], command.get("guarantee", "fifo")
    to = group.view[command["to"]] if "to" in command else None
    payloads = payloads_of(command["size"], is_mixed=command.get("mixed", False))
    if command.get("singly"):
        for at in range(count):
            await group.send(payloads[at % SEND_BATCH], to=to, guarantee=guarantee)
        return
    while count > 0:
        await group.send_many(payloads[: min(count, SEND_BATCH)], to=to, guarantee=guarantee)
        count -= SEND_BATCH


async def _read(source: Any, expected: int, came: dict[str, int]) -> None:
    """Until so many have come, in batches or one at a time; how many of each sender."""
    if not expected:
        return
    total = 0
    async for each in source:
        name = each.sender.name
        count = 1 if isinstance(each, Message) else len(each.run.payloads)
        came[name] = came.get(name, 0) + count
        total += count
        if total >= expected:
            return


def lost(came: dict[str, int], expected: int, senders: int) -> int:
    """How many did not come, if each sender has sent its share: copies of others replace none."""
    share = expected // senders
    return expected - sum(min(share, count) for count in came.values())


def payloads_of(size: int, *, is_mixed: bool) -> list[bytes]:
    """A batch of them. Mixed sizes are spread from 0 to twice `size`, neighbours far apart."""
    if not is_mixed:
        return [bytes(size)] * SEND_BATCH
    return [bytes(2 * size * (at * STRIDE % SEND_BATCH) // SEND_BATCH) for at in range(SEND_BATCH)]


def _counters(group: Group, command: dict[str, Any]) -> dict[str, int]:
    """What was retransmitted, and how often this member has told another what it, or everybody,
    has of such messages."""
    stats: Any = group.stats()
    if "to" in command:
        sent = stats["ReliableUnicast"]["to"].values()
        return {"retransmitted": sum(int(entry["retransmitted"]) for entry in sent), "reports": 0}
    guarantee = command.get("guarantee", "fifo")
    multicast = stats["ViewStreams"]
    windows = multicast["received"].items()
    reports = sum(int(box["acks_sent"]) for name, box in windows if name.endswith(f"/{guarantee}"))
    rounds = multicast["rounds"]
    if rounds and guarantee == "fifo":
        reports += rounds["reports_sent"]
        if group.view.coordinator == group.me:
            reports += rounds["round"] * (len(group.view) - 1)
    window = multicast["sent"].get(guarantee)  # total messages travel in that of the sequencer
    retransmitted = 0 if window is None else window["retransmitted"]
    return {"retransmitted": retransmitted, "reports": reports}


if __name__ == "__main__":
    run(serve(_member))
