"""Who joins gets the state of the application, and then all that is not in it, once."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import DEADLINE_S, FIRST, PATIENT, exclude, until, vanish, waits

from ringcast import Delivered, StateInterrupted, StateLost, UsageError, join
from ringcast.aio.driver import Driver
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.aio.state import CHUNK_BYTES
from ringcast.protocols.views.providing import WINDOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from ringcast import Group

LARGE = 4 * WINDOW


class App:
    """An application whose state is what it has read, with some ballast to make it large."""

    def __init__(self, name: str, ballast: int = 0) -> None:
        self.name = name
        self.log: list[str] = []
        self.given = 0
        self.calls: list[int] = []
        """Bytes that each call of take_state got."""
        self.interrupted = 0
        self.may_take = asyncio.Event()
        """Whether it takes more than the first chunk."""
        self.may_take.set()
        self._ballast = bytes(ballast)

    def give(self) -> Iterator[bytes]:
        self.given += 1
        snapshot = list(self.log)
        yield b"%d\n" % len(self._ballast)
        yield self._ballast
        for text in snapshot:
            yield text.encode() + b"\n"

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        state = bytearray()
        self.calls.append(0)
        try:
            async for chunk in chunks:
                state += chunk
                self.calls[-1] += len(chunk)
                await self.may_take.wait()
        except StateInterrupted:
            self.interrupted += 1
            raise
        size, rest = bytes(state).split(b"\n", 1)
        self._ballast = rest[: int(size)]
        self.log = rest[int(size) :].decode().split()

    async def read(self, group: Group, until: int = 1 << 60) -> None:
        """Read until so many are known."""
        if len(self.log) < until:
            async for message in group:
                self.log.append(message.payload.decode())
                if len(self.log) == until:
                    break

    @asynccontextmanager
    async def reading(self, group: Group) -> AsyncIterator[None]:
        """Read meanwhile."""
        task = asyncio.create_task(self.read(group))
        try:
            yield
        finally:
            task.cancel()

    def by_sender(self) -> dict[str, list[str]]:
        logs = defaultdict(list)
        for text in self.log:
            logs[text[0]].append(text)
        return logs


def joining(app: App, group: Group | None = None, **options: Any) -> Any:
    """Join the group that this one is in, or start one."""
    options.setdefault("give_state", app.give)
    options.setdefault("take_state", app.take)
    options.setdefault("membership", PATIENT if group is not None else FIRST)
    found = [] if group is None else [member.address for member in group.view]
    return join("test", name=app.name, discovery=ListSource(found), **options)


def with_apps(
    names: str, ballast: int = 0, **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a coroutine function on groups and their applications, which nobody reads."""

    def start(test: Callable[..., Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
                apps = [App(name, ballast) for name in names]
                groups: list[Group] = []
                for app in apps:
                    async with AsyncExitStack() as readers:
                        for known, group in zip(apps, groups, strict=False):
                            await readers.enter_async_context(known.reading(group))
                        first = groups[0] if groups else None
                        joins = joining(app, first, **options)
                        groups.append(await stack.enter_async_context(joins))
                await test(*groups, *apps)

        run(main())

    return start


def texts(name: str, count: int, first: int = 0) -> list[str]:
    return [f"{name}{number}" for number in range(first, first + count)]


def encoded(name: str, count: int, first: int = 0) -> list[bytes]:
    return [text.encode() for text in texts(name, count, first)]


# Arguments


@pytest.mark.parametrize("hook", ["give_state", "take_state"])
def test_one_hook_without_the_other_is_a_mistake(hook: str) -> None:
    async def main() -> None:
        async with join("test", **{hook: App("A").give}):  # type: ignore[arg-type]
            raise AssertionError("it must not begin")

    with pytest.raises(UsageError, match="give_state= and take_state= go together"):
        run(main())


def test_who_starts_the_group_takes_no_state() -> None:
    async def exchange(a: Group, app: App) -> None:
        await a.send(b"A0")
        await app.read(a, 1)
        assert (app.calls, app.given, a.state_lost) == ([], 0, None)

    with_apps("A")(exchange)


# Where the state is cut


async def one_by_one(group: Group) -> AsyncIterator[str]:
    async for message in group:
        yield message.payload.decode()


async def by_batches(group: Group) -> AsyncIterator[str]:
    async for batch in group.batches():
        for payload in batch.run.payloads:
            yield payload.decode()


async def by_events(group: Group) -> AsyncIterator[str]:
    async for event in group.events():
        if isinstance(event, Delivered):
            for payload in event.run.payloads:
                yield payload.decode()


@pytest.mark.parametrize("way", [one_by_one, by_batches, by_events])
def test_the_state_is_asked_for_when_all_before_the_cut_is_consumed(
    way: Callable[[Group], AsyncIterator[str]],
) -> None:
    async def exchange(a: Group, app: App) -> None:
        await a.send_many(encoded("A", 6))
        reader = way(a)
        app.log.append(await anext(reader))  # all six have been taken from the node
        newcomer = App("B")
        async with AsyncExitStack() as stack:
            entering = asyncio.create_task(stack.enter_async_context(joining(newcomer, a)))
            await until(lambda: any("has read up to where" in why for why in a.explain()))
            await a.send_many(encoded("A", 3, first=6))
            for _ in range(5):
                app.log.append(await anext(reader))
            assert app.given == 0  # the sixth may not be in its log yet
            assert app.log == texts("A", 6)
            app.log.append(await anext(reader))
            assert app.given == 1
            b = await entering
            assert newcomer.log == texts("A", 6)
            await newcomer.read(b, 9)
            assert newcomer.log == texts("A", 9)
            assert (len(newcomer.calls), b.state_lost, waits(b)) == (1, None, [])

    with_apps("A")(exchange)


def test_the_state_and_what_follows_are_all_there_is_under_traffic() -> None:
    async def exchange(a: Group, b: Group, *apps: App) -> None:
        stop = asyncio.Event()

        async def sending(group: Group, name: str) -> int:
            sent = 0
            while not stop.is_set():
                await group.send_many(encoded(name, 7, first=sent))
                sent += 7
                await asyncio.sleep(0)
            return sent

        readers = [asyncio.create_task(app.read(g)) for app, g in zip(apps, (a, b), strict=True)]
        senders = [
            asyncio.create_task(sending(group, name)) for group, name in ((a, "A"), (b, "B"))
        ]
        newcomers = [App("C"), App("D")]
        async with joining(newcomers[0], a) as c, joining(newcomers[1], b) as d:
            stop.set()
            count = sum(await asyncio.gather(*senders))
            for app, group in zip(newcomers, (c, d), strict=True):
                assert app.calls
                await app.read(group, count)
            await until(lambda: all(len(app.log) == count for app in apps))
            for app in newcomers:
                assert app.by_sender() == apps[0].by_sender()
        for task in readers:
            task.cancel()

    with_apps("AB", ballast=LARGE)(exchange)


def test_who_reads_nothing_gives_its_state_at_once() -> None:
    async def main() -> None:
        app, newcomer = App("A"), App("B")
        async with joining(app, receive=False) as a:
            await a.send(b"A0")  # taken and dropped
            app.log = ["known", "otherwise"]
            async with joining(newcomer, a):
                assert newcomer.log == ["known", "otherwise"]

    run(main())


def test_a_reader_that_gives_up_at_the_cut_may_go_on_later() -> None:
    async def main() -> None:
        may_give = asyncio.Event()
        app, newcomer = App("A"), App("B")

        async def give() -> AsyncIterator[bytes]:
            app.given += 1
            snapshot = app.log[:]
            await may_give.wait()
            yield b"0\n" + " ".join(snapshot).encode()

        async with (
            asyncio.timeout(DEADLINE_S),
            joining(app, give_state=give) as a,
            AsyncExitStack() as stack,
        ):
            await a.send_many(encoded("A", 3))
            async with app.reading(a):
                await until(lambda: len(app.log) == 3)
                entering = asyncio.create_task(stack.enter_async_context(joining(newcomer, a)))
                await until(lambda: app.given == 1)
                await a.send_many(encoded("A", 3, first=3))
            async with app.reading(a):
                for _ in range(10):
                    await asyncio.sleep(0)
                assert app.log == texts("A", 3)
                may_give.set()
                await until(lambda: len(app.log) == 6)
            b = await entering
            assert (newcomer.log, app.given) == (texts("A", 3), 1)
            await newcomer.read(b, 6)
            assert newcomer.log == texts("A", 6)

    run(main())


# What may be given


async def _async_chunks() -> AsyncIterator[bytes]:
    yield b"0\n"
    await asyncio.sleep(0)
    yield b"x" * 10


@pytest.mark.parametrize(
    ("give", "sizes"),
    [
        (lambda: [b"0\n"], [2]),
        (lambda: [b"", b"0", b"", b"\n", b""], [2]),
        (lambda: [b"0\n", *[b"word" * 16] * 20_000], [CHUNK_BYTES] * 2 + [231_426]),
        (lambda: [b"0\n" + bytes(3 * CHUNK_BYTES)], [CHUNK_BYTES] * 3 + [2]),
        (lambda: [b"0\n" + bytes(CHUNK_BYTES - 2)], [CHUNK_BYTES]),
        (lambda: [bytearray(b"0\n"), memoryview(b"word")], [6]),
        (_async_chunks, [12]),
    ],
    ids=["small", "empty", "many", "large", "exact", "buffers", "async"],
)
def test_chunks_are_bundled_and_cut(give: Any, sizes: list[int]) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def take(chunks: AsyncIterator[bytes]) -> None:
            got.extend([chunk async for chunk in chunks])

        app = App("A")
        async with (
            joining(app, give_state=give) as a,
            app.reading(a),
            joining(App("B"), a, take_state=take),
        ):
            assert [len(chunk) for chunk in got] == sizes
            assert b"".join(got).startswith(b"0\n")

    run(main())


def test_a_state_may_be_empty() -> None:
    async def main() -> None:
        calls: list[int] = []

        async def take(chunks: AsyncIterator[bytes]) -> None:
            calls.append(len([chunk async for chunk in chunks]))

        app = App("A")
        async with (
            joining(app, give_state=list) as a,
            app.reading(a),
            joining(App("B"), a, take_state=take),
        ):
            assert calls == [0]

    run(main())


def test_who_takes_only_the_beginning_is_in_all_the_same() -> None:
    async def exchange(a: Group, app: App) -> None:
        got: list[bytes] = []

        async def take(chunks: AsyncIterator[bytes]) -> None:
            got.append(await anext(chunks))

        async with app.reading(a), joining(App("B"), a, take_state=take) as b:
            assert len(got) == 1
            await a.send(b"A0")
            assert [message.payload async for message in _first(b)] == [b"A0"]

    with_apps("A", ballast=LARGE)(exchange)


async def _first(group: Group) -> AsyncIterator[Any]:
    async for message in group:
        yield message
        break


def test_a_state_is_pulled_as_the_joiner_takes_it() -> None:
    pulled = 0

    def give() -> Iterator[bytes]:
        nonlocal pulled
        yield b"0\n"
        for _ in range(64):
            pulled += 1
            yield b" " * CHUNK_BYTES

    async def main() -> None:
        app, newcomer = App("A"), App("B")
        newcomer.may_take.clear()
        async with (
            asyncio.timeout(DEADLINE_S),
            joining(app, give_state=give) as a,
            app.reading(a),
            AsyncExitStack() as stack,
        ):
            entering = asyncio.create_task(stack.enter_async_context(joining(newcomer, a)))
            await until(lambda: any("its application has yet to take" in w for w in a.explain()))
            await until(lambda: newcomer.calls == [CHUNK_BYTES])
            state: Any = a.stats()["StateTransfer"]
            (transfer,) = state["giving"]["transfers"].values()
            assert transfer["to"] == "B"
            # One was taken, a window is full, and one more is in hand; whatever was told of that.
            assert 0 < transfer["bytes"] <= WINDOW + CHUNK_BYTES
            assert pulled <= WINDOW // CHUNK_BYTES + 2
            # The application goes on meanwhile.
            await a.send(b"A0")
            await until(lambda: app.log == ["A0"])
            newcomer.may_take.set()
            b = await entering
            assert (newcomer.calls, pulled) == ([2 + 64 * CHUNK_BYTES], 64)
            await newcomer.read(b, 1)
            assert newcomer.log == ["A0"]

    run(main())


def test_who_waits_for_a_chunk_does_not_look_for_it_in_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes: list[int] = []
    take = Driver.take

    def counted(driver: Driver, limit: int) -> None:
        takes.append(limit)
        take(driver, limit)

    monkeypatch.setattr(Driver, "take", counted)

    async def give() -> AsyncIterator[bytes]:
        yield b"0\n" + b" " * CHUNK_BYTES
        for _ in range(1000):  # turns of the loop in which nothing comes
            await asyncio.sleep(0)
        yield b" "

    async def main() -> None:
        app, newcomer = App("A"), App("B")
        async with (
            asyncio.timeout(DEADLINE_S),
            joining(app, give_state=give) as a,
            app.reading(a),
            joining(newcomer, a),
        ):
            assert newcomer.calls == [3 + CHUNK_BYTES]

    run(main())
    assert len(takes) < 100


# When it goes wrong


def _raise() -> Iterator[bytes]:
    raise OSError("no such state")


def _raise_later() -> Iterator[bytes]:
    yield bytes(2 * WINDOW)
    raise OSError("no more of it")


@pytest.mark.parametrize("give", [_raise, _raise_later])
def test_if_one_cannot_give_it_another_does(give: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        apps = [App("A"), App("B"), App("C")]
        async with (
            asyncio.timeout(DEADLINE_S),
            joining(apps[0], give_state=App("A").give) as a,
            apps[0].reading(a),
            joining(apps[1], a) as b,
            apps[1].reading(b),
        ):
            assert a._reading.state is not None
            a._reading.state._give = give
            await b.send_many(encoded("B", 5))
            await until(lambda: len(apps[0].log) == len(apps[1].log) == 5)
            async with joining(apps[2], a) as c:
                assert apps[2].log == texts("B", 5)
                assert (apps[1].given, c.state_lost) == (1, None)
                assert apps[2].interrupted == len(apps[2].calls) - 1

    with caplog.at_level(logging.WARNING, "ringcast"):
        run(main())
    assert set(caplog.messages) == {"A cannot give its state to C, which asks another"}
    assert all(record.exc_info is not None for record in caplog.records)


def test_if_nobody_can_give_it_the_application_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        app, newcomer = App("A"), App("B")
        async with (
            asyncio.timeout(DEADLINE_S),
            joining(app, give_state=_raise) as a,
            app.reading(a),
            joining(newcomer, a) as b,
        ):
            assert (newcomer.interrupted, newcomer.log) == (len(newcomer.calls), [])
            assert b.state_lost is not None
            assert b.state_lost.startswith("nobody has the state: A ")
            await a.send(b"A0")
            await newcomer.read(b, 1)
            assert newcomer.log == ["A0"]

    with caplog.at_level(logging.WARNING, "ringcast"):
        run(main())
    text = caplog.messages[-1]
    assert text.startswith("B is in its group without the state: nobody has the state: A ")


def test_that_the_state_is_lost_stands_among_the_events() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            join("test", name="A", membership=FIRST) as a,
            joining(App("B"), a) as b,
        ):
            kinds = []
            async for event in b.events():
                kinds.append(type(event).__name__)
                if isinstance(event, StateLost):
                    break
            assert kinds == ["ViewInstalled", "StateLost"]

    run(main())


def test_a_group_with_a_state_lets_in_who_wants_none() -> None:
    async def exchange(a: Group, app: App) -> None:
        async with app.reading(a), join("test", name="B", members=[str(a.me.address)]) as b:
            await a.send(b"A0")
            assert [message.payload async for message in _first(b)] == [b"A0"]

    with_apps("A", ballast=LARGE)(exchange)


def test_if_the_provider_dies_the_state_comes_from_another_from_the_start() -> None:
    async def exchange(a: Group, b: Group, app: App, other: App) -> None:
        newcomer = App("C")
        newcomer.may_take.clear()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(other.reading(b))
            async with app.reading(a):
                await a.send_many(encoded("A", 5))
                await b.send_many(encoded("B", 5))
                await until(lambda: len(app.log) == len(other.log) == 10)
                entering = asyncio.create_task(stack.enter_async_context(joining(newcomer, b)))
                await until(lambda: newcomer.calls != [])
                await b.send_many(encoded("B", 5, first=5))
                await until(lambda: len(other.log) == 15)
                vanish(a)
            newcomer.may_take.set()
            c = await entering
            assert (newcomer.interrupted, len(newcomer.calls)) == (1, 2)
            assert newcomer.calls[0] < newcomer.calls[1]
            assert other.given == 1
            await newcomer.read(c, 15)
            assert newcomer.by_sender() == other.by_sender()
            assert [member.name for member in c.view] == ["B", "C"]

    with_apps("AB", ballast=LARGE)(exchange)


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_a_trace_tells_what_was_put_aside_and_what_the_application_gets(
    tmp_path: Path, level: str
) -> None:
    """What is in the state is delivered, and not handed on. The audit blames nobody."""
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    from ringcast.spark.audit import audit
    from ringcast.trace.rows import ASIDE
    from ringcast.trace.segments import Segment, segment_paths

    recording = {"record": tmp_path, "record_level": level, "run_id": "taken"}

    async def exchange(a: Group, b: Group, app: App, other: App) -> None:
        newcomer = App("C")
        newcomer.may_take.clear()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(other.reading(b))
            async with app.reading(a):
                await b.send_many(encoded("B", 5))
                await until(lambda: len(app.log) == len(other.log) == 5)
                joins = joining(newcomer, b, **recording)
                entering = asyncio.create_task(stack.enter_async_context(joins))
                await until(lambda: newcomer.calls != [])
                await b.send_many(encoded("B", 5, first=5))
                await until(lambda: len(other.log) == 10)
                vanish(a)
            await until(lambda: len(b.view) == 2)
            await b.send_many(encoded("B", 5, first=10))
            await until(lambda: len(other.log) == 15)
            newcomer.may_take.set()
            c = await entering
            await newcomer.read(c, 15)
            assert newcomer.log == other.log == texts("B", 15)

    with_apps("AB", ballast=LARGE, **recording)(exchange)
    rows = []
    for path in segment_paths(tmp_path):
        with Segment(path) as segment:
            rows += [row for row in segment.rows() if (row.node, row.peer) == ("C", "B")]
    rows = [row for row in rows if row.stream == 0]
    assert [row.seqno for row in rows if row.event == "open"] == [5]
    delivered = [row for row in rows if row.event == "deliver"]
    assert [seqno for row in delivered for seqno in range(row.seqno, row.seqno2 + 1)] == [
        *range(6, 16)
    ]
    assert {row.detail for row in delivered if row.seqno <= 10} == {ASIDE}
    handed = [row for row in rows if row.event == "handed" or (row in delivered and not row.detail)]
    assert [seqno for row in handed for seqno in range(row.seqno, row.seqno2 + 1)] == [
        *range(11, 16)
    ]
    report = audit(None, tmp_path)
    violated = {each.id: each.violations for each in report.verdicts if each.violation_count}
    assert violated == {}


def test_what_take_state_raises_join_raises() -> None:
    async def exchange(a: Group, app: App) -> None:
        async def take(chunks: AsyncIterator[bytes]) -> None:
            await anext(chunks)
            raise OSError("disk full")

        async with app.reading(a):
            with pytest.raises(OSError, match="disk full"):
                async with joining(App("B"), a, take_state=take):
                    raise AssertionError("it must not begin")
            await a.wait_for_view(lambda view: len(view) == 1)
            async with joining(App("C"), a):
                assert app.given == 2

    with_apps("A", ballast=LARGE)(exchange)


def test_a_join_that_is_cancelled_ends_the_giving() -> None:
    async def main() -> None:
        closed = asyncio.Event()

        def give() -> Iterator[bytes]:
            try:
                while True:
                    yield bytes(CHUNK_BYTES)
            finally:
                closed.set()

        app, newcomer = App("A"), App("B")
        newcomer.may_take.clear()

        async def enter(a: Group) -> None:
            async with joining(newcomer, a):
                raise AssertionError("it must not begin")

        async with (
            asyncio.timeout(DEADLINE_S),
            joining(app, give_state=give) as a,
            app.reading(a),
        ):
            entering = asyncio.create_task(enter(a))
            await until(lambda: newcomer.calls != [])
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
            await closed.wait()
            assert waits(a) == []
            await a.send(b"A0")
            await until(lambda: app.log == ["A0"])

    run(main())


# Parts that come together


async def part(gone: Group, *others: Group) -> None:
    """The others take it for dead, and it is back in a while: a part of its own until then."""
    exclude(gone.me, by=others[0])
    await until(lambda: len(gone.view) == 1)


def test_who_comes_back_takes_the_state_of_the_others() -> None:
    async def exchange(a: Group, b: Group, c: Group, *apps: App) -> None:
        app, third, other = apps[0], apps[1], apps[2]
        async with app.reading(a), third.reading(b):
            await c.send(b"C0")
            await other.read(c, 1)
            await until(lambda: app.log == ["C0"])
            await part(c, a, b)
            await a.send(b"A0")
            await c.send(b"C1")  # which is for nobody but itself
            await other.read(c, 2)
            assert other.log == ["C0", "C1"]
            await until(lambda: len(c.view) == 3)
            await a.send(b"A1")
            assert len(other.calls) == 1  # nothing is taken before it has read what it has
            await other.read(c, 3)
            assert len(other.calls) == 2
        assert other.log == ["C0", "A0", "A1"]

    with_apps("ABC", ballast=LARGE)(exchange)


def test_what_take_state_raises_later_is_raised_to_who_reads() -> None:
    async def exchange(a: Group, b: Group, c: Group, *apps: App) -> None:
        assert c._reading.state is not None

        async def take(chunks: AsyncIterator[bytes]) -> None:
            raise OSError("disk full")

        c._reading.state._take = take
        async with apps[0].reading(a), apps[1].reading(b):
            await part(c, a, b)
            for _ in range(2):
                with pytest.raises(OSError, match="disk full"):
                    await apps[2].read(c)

    with_apps("ABC")(exchange)


def test_who_is_left_out_before_it_has_the_state_gets_it_later() -> None:
    async def exchange(a: Group, b: Group, *apps: App) -> None:
        newcomer = App("C")
        newcomer.may_take.clear()
        await a.send_many(encoded("A", 5))
        async with AsyncExitStack() as stack:
            for app, group in zip(apps, (a, b), strict=True):
                await stack.enter_async_context(app.reading(group))
            entering = asyncio.create_task(stack.enter_async_context(joining(newcomer, a)))
            await until(lambda: newcomer.calls != [])
            given = sum(app.given for app in apps)
            exclude(a.view["C"], by=a)
            await until(lambda: sum(app.given for app in apps) > given)
            newcomer.may_take.set()
            c = await entering
            assert newcomer.interrupted >= 1
            assert newcomer.log == texts("A", 5)
            await a.send(b"A5")
            await newcomer.read(c, 6)
            assert newcomer.log == texts("A", 6)

    with_apps("AB", ballast=LARGE)(exchange)


def test_who_leaves_before_it_has_the_state_again_is_read_to_the_end() -> None:
    async def exchange(a: Group, b: Group, c: Group, *apps: App) -> None:
        for group in (a, b):
            assert group._reading.state is not None
            group._reading.state._give = _hang
        app, other = apps[0], apps[2]
        async with app.reading(a), apps[1].reading(b):
            reading = asyncio.create_task(other.read(c))
            await part(c, a, b)
            await until(lambda: other.calls[1:] == [CHUNK_BYTES])
            await c.send(b"C0")
            await c.leave()
            await reading
            await until(lambda: app.log == texts("C", 1))
        assert other.interrupted == 1
        assert other.log == []  # without the state its own message is worth nothing to it

    with_apps("ABC")(exchange)


async def _hang() -> AsyncIterator[bytes]:
    yield bytes(CHUNK_BYTES)
    await asyncio.Event().wait()


def test_who_reads_nothing_takes_the_state_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group, b: Group, *apps: App) -> None:
        other = App("C")
        for app in apps:
            app.log = ["known"]
        async with joining(other, a, receive=False) as c:
            assert len(other.calls) == 1
            for app in apps:
                app.log = ["known", "better"]
            await part(c, a, b)
            await until(lambda: other.log == ["known", "better"])
            assert c._reading.state is not None

            async def fail(chunks: AsyncIterator[bytes]) -> None:
                raise OSError("disk full")

            c._reading.state._take = fail
            await part(c, a, b)
            await until(lambda: "C cannot take its state" in caplog.messages)

    async def read_all(a: Group, b: Group, *apps: App) -> None:
        async with apps[0].reading(a), apps[1].reading(b):
            await exchange(a, b, *apps)

    with_apps("AB")(read_all)
