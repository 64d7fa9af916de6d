"""Headers in real groups: all ways to send take them, and all ways to read have them."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from blocking_groups import members
from loopback_groups import with_members
from opentelemetry import baggage, context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from ringcast import Headers, UsageError
from ringcast.model import Headed
from ringcast.opentelemetry import attached, extract, inject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ringcast import Delivered, Group, Message

LARGE = b"x" * 200_000
TRACE = {"trace": "ä1"}


async def next_of(group: Group, count: int) -> list[Message]:
    found: list[Message] = []
    async for message in group:
        found.append(message)
        if len(found) == count:
            break
    return found


def said(messages: list[Message]) -> list[tuple[bytes, dict[str, str], str]]:
    return [(each.payload, dict(each.headers), each.channel) for each in messages]


def test_all_ways_to_send_take_headers() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"plain")
        await a.send(b"one", headers=TRACE)
        await a.send(b"two", headers=TRACE, channel="locks")
        await a.send_many([b"three", LARGE, b""], headers={"n": "3"})
        await a.send_many([b"four", bytearray(b"five")])
        assert a.try_send(b"six", channel="c")
        receipt = await a.send(memoryview(b"seven"), headers={"k": ""}, receipt=True)
        expected: list[tuple[bytes, dict[str, str], str]] = [
            (b"plain", {}, ""),
            (b"one", TRACE, ""),
            (b"two", TRACE, "locks"),
            (b"three", {"n": "3"}, ""),
            (LARGE, {"n": "3"}, ""),
            (b"", {"n": "3"}, ""),
            (b"four", {}, ""),
            (b"five", {}, ""),
            (b"six", {}, "c"),
            (b"seven", {"k": ""}, ""),
        ]
        got = await next_of(b, 10)
        assert said(got) == expected
        assert {type(message.payload) for message in got} == {bytes}
        assert {message.sent_at for message in got} == {None}
        await a.flush()
        assert receipt.is_delivered()
        assert said(await next_of(a, 10)) == expected  # one's own, too
        for how in ({"to": b.me}, {"guarantee": "uniform"}):
            await a.send_many([b"x", LARGE], headers=TRACE, channel="c", **how)
            await a.send(b"y", **how)
            assert said(await next_of(b, 3)) == [
                (b"x", TRACE, "c"),
                (LARGE, TRACE, "c"),
                (b"y", {}, ""),
            ]
        await a.send(b"me", to=a.me, headers=TRACE)
        await a.send(b"me", to=a.me)
        got = [message for message in await next_of(a, 5) if message.to_me]
        assert said(got) == [(b"me", TRACE, ""), (b"me", {}, "")]

    with_members(2)(exchange)


def test_runs_are_headed_throughout_or_not_at_all() -> None:
    async def batches(group: Group, count: int) -> AsyncIterator[Delivered]:
        async for delivered in group.batches():
            yield delivered
            count -= len(delivered.run.payloads)
            if not count:
                break

    async def exchange(a: Group, b: Group) -> None:
        for number in range(9):
            await a.send(b"%d" % number, headers={"n": str(number)} if number % 3 else None)
        found: list[tuple[int, bytes, str | None]] = []
        async for delivered in batches(b, 9):
            run = delivered.run
            headers: Any = run.headers or [{"n": None}] * len(run.payloads)
            assert all(run.headers is None or isinstance(each, Headers) for each in headers)
            found += [
                (seqno, payload, each["n"])
                for seqno, payload, each in zip(
                    range(run.first, run.last + 1), run.payloads, headers, strict=True
                )
            ]
        assert found == [
            (number + 1, b"%d" % number, str(number) if number % 3 else None) for number in range(9)
        ]

    with_members(2)(exchange)


def test_reading_one_by_one_goes_on_as_runs() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many([b"1", b"2", b"3"], headers=TRACE)
        await next_of(b, 1)
        async for delivered in b.batches():
            assert (delivered.run.first, delivered.run.payloads) == (2, [b"2", b"3"])
            assert delivered.run.headers == [TRACE, TRACE]
            break

    with_members(2)(exchange)


def test_the_time_of_sending_is_told_where_it_was_asked_for() -> None:
    before = time.time()

    async def exchange(a: Group, b: Group) -> None:
        await a.send(b"one")
        await a.send(b"two", headers=TRACE)
        await a.send_many([b"three", b"four"], channel="c")
        await b.send(b"five")
        times = [message.sent_at for message in await next_of(b, 5) if message.sender == a.me]
        assert times == sorted(times)  # type: ignore[type-var]
        assert all(at is not None and before <= at <= time.time() for at in times)
        assert times[2] == times[3]
        five = next(each for each in await next_of(a, 5) if each.payload == b"five")
        assert (five.sent_at, five.headers) == (None, {})

    with_members(2, per_member=[{"send_time": True}, {}])(exchange)


def test_mistakes_send_nothing() -> None:
    async def exchange(a: Group, b: Group) -> None:
        with pytest.raises(UsageError, match="headers of 1105 bytes: 1024 at most"):
            await a.send(b"x", headers={"long": "x" * 1098})
        with pytest.raises(UsageError, match="not 'k': 1"):
            await a.send_many([b"x"], headers={"k": 1})  # type: ignore[dict-item]
        with pytest.raises(UsageError, match="send with channel="):
            a.try_send(b"x", headers={"channel": "c"})
        with pytest.raises(UsageError, match="a message of"):
            await a.send(b"x" * (64 << 20), headers=TRACE)  # its headers count
        await a.send(b"y")
        assert said(await next_of(b, 1)) == [(b"y", {}, "")]

    with_members(2)(exchange)


def test_what_a_peer_calls_headers_is_delivered_as_it_came() -> None:
    async def exchange(a: Group, b: Group) -> None:
        a._driver.send(
            [Headed(b"\x05no"), Headed(b"\x00hi")], a._driver.node.multicast.streams[0], None
        )
        assert said(await next_of(b, 2)) == [(b"\x05no", {}, ""), (b"hi", {}, "")]
        queue = b.stats()["read_queue"]
        assert isinstance(queue, dict)
        assert queue["unread_headers"] == 1

    with_members(2)(exchange)


def test_threads_send_and_read_them() -> None:
    with members(2, per_member=[{}, {"send_time": True}]) as (a, b):
        a.send(b"one", headers=TRACE)
        a.send(b"two")
        a.send_many([b"three", LARGE], headers=TRACE, channel="c")
        receipt = a.send(b"four", channel="c", receipt=True)
        while not a.try_send(b"five", headers=TRACE):
            time.sleep(0.001)
        a.send(b"six", to=b.me, headers=TRACE)
        got = list(islice(b, 7))
        receipt.delivered()
        assert said([message for message in got if message.to_me]) == [(b"six", TRACE, "")]
        assert sorted(said([message for message in got if not message.to_me])) == sorted(
            [
                (b"one", TRACE, ""),
                (b"two", {}, ""),
                (b"three", TRACE, "c"),
                (LARGE, TRACE, "c"),
                (b"four", {}, "c"),
                (b"five", TRACE, ""),
            ]
        )
        with pytest.raises(UsageError, match="send with channel="):
            a.send(b"x", headers={"channel": "c"})


# OpenTelemetry

SPAN = SpanContext(2**127 + 1, 2**63 + 1, is_remote=False, trace_flags=TraceFlags(1))


def test_a_trace_goes_on_where_a_message_is_read() -> None:
    async def exchange(a: Group, b: Group) -> None:
        here = set_span_in_context(NonRecordingSpan(SPAN))
        token = context.attach(baggage.set_baggage("tenant", "t 1", here))
        headers = inject(TRACE)
        context.detach(token)
        assert headers.keys() == {"trace", "traceparent", "baggage"}
        await a.send(b"one", headers=headers)
        (message,) = await next_of(b, 1)
        assert not get_current_span().get_span_context().is_valid
        with attached(message.headers) as found:
            there = get_current_span().get_span_context()
            assert (there.trace_id, there.span_id) == (SPAN.trace_id, SPAN.span_id)
            assert there.is_remote
            assert baggage.get_baggage("tenant") == "t 1"
            assert context.get_current() is found
        linked = get_current_span(extract(message.headers)).get_span_context()
        assert linked.trace_id == SPAN.trace_id
        assert not get_current_span().get_span_context().is_valid

    assert inject() == {}
    with_members(2)(exchange)
