"""The blocking API on real sockets: threads that send, read, wait, are interrupted and leave."""

from __future__ import annotations

import inspect
import logging
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from blocking_groups import LARGE, engines, layer, members, read, threads, until
from loopback_groups import DEADLINE_S, PATIENT, numbered, vanish

import ringcast
from ringcast import (
    Closed,
    ConfigError,
    Delivered,
    GroupClosed,
    JoinTimeout,
    MulticastConfig,
    RequestFailed,
    StabilityConfig,
    TimedOut,
    TooFewMembers,
    Undeliverable,
    UnicastConfig,
    UsageError,
    ViewInstalled,
    blocking,
)
from ringcast.aio.member_host import STREAMS
from ringcast.aio.send_queue import RING_CAPACITY
from ringcast.aio.sources import ListSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ringcast.aio.read_queue import Guarantee

# Sending


def test_small_and_large_sends_of_a_thread_keep_their_order() -> None:
    with threads(1) as pool, members(2) as (a, b):
        sent: list[bytes] = []
        reading = pool.submit(read, b, 3 * 40)
        for number in range(40):
            batch = [b"%d" % number * (number * 40), b"%d" % number]
            a.send_many(batch)
            a.send(b"one")
            sent += [*batch, b"one"]
        assert [payload for _, payload in reading.result()] == sent
        assert [payload for _, payload in read(a, len(sent))] == sent


def test_a_call_to_send_many_is_not_torn_apart() -> None:
    with threads() as pool, members(2, per_member=[{}, {"receive": False}]) as (a, _):
        batches = [numbered(f"{name}:", 200) for name in "abcdefgh"]
        list(pool.map(a.send_many, batches))
        got = [payload for _, payload in read(a, 1600)]
        assert sorted(got[at : at + 200] for at in range(0, 1600, 200)) == batches


def test_both_guarantees_and_one_member() -> None:
    with members(2) as (a, b):
        a.send(b"plain")
        a.send(b"uniform", guarantee="uniform")
        a.send(b"to one", to=b.me)
        assert a.try_send(b"tried")
        found = {(m.payload, m.guarantee, m.to_me) for m in islice(b, 4)}
        assert found == {
            (b"plain", "fifo", False),
            (b"uniform", "uniform", False),
            (b"to one", "fifo", True),
            (b"tried", "fifo", False),
        }
        read(a, 3)


def test_the_callers_list_may_change_after_the_call() -> None:
    with members(1) as (a,):
        payloads = [b"as it was"]
        a.send_many(payloads)
        payloads[0] = b"changed"
        a.send_many([])
        assert read(a, 1) == [("A", b"as it was")]


# No room


def fill(group: blocking.Group) -> int:
    """Send until the window and the ring are full; how many messages that took."""
    sent = 0
    while True:
        try:
            group.send(b"%d" % sent, timeout=0.0)
            sent += 1
        except TimedOut:
            queues: Any = group.stats()["queues"]
            is_full = queues["fifo"]["waiting"] == RING_CAPACITY
            if is_full and any("limited by" in reason for reason in group.explain()):
                return sent


def test_a_full_ring_holds_senders_back_and_those_who_give_up_leave_no_hole() -> None:
    with threads(8) as pool, members(2, multicast=MulticastConfig(capacity=8)) as (a, b):
        sent = fill(a)
        assert RING_CAPACITY <= sent <= RING_CAPACITY + 8
        assert any("limited by" in reason for reason in a.explain())
        assert not a.try_send(b"no room")
        waiting = [pool.submit(a.send, b"waits%d" % number) for number in range(4)]
        with pytest.raises(TimedOut, match=r"^no room to send within 0.01 s: 1024 sends wait$"):
            a.send(b"gives up", timeout=0.01)
        with pytest.raises(TimedOut) as caught:
            a.send_many(LARGE, timeout=0.01)
        assert caught.value.sent == 0
        reading = [pool.submit(read, group, sent + 5) for group in (a, b)]
        for sender in waiting:
            sender.result()
        a.send(b"end")
        for reader in reading:
            got = [payload for _, payload in reader.result()]
            assert got[:sent] == [b"%d" % number for number in range(sent)]
            assert sorted(got[sent:-1]) == [b"waits%d" % number for number in range(4)]
            assert got[-1] == b"end"
        assert a.stats()["queues"] == {
            "fifo": {"waiting": 0, "given_up": 0},
            "uniform": {"waiting": 0, "given_up": 0},
            "total": {"waiting": 0, "given_up": 0},
        }


def test_who_gives_up_in_the_middle_of_many_is_told_how_many_were_sent() -> None:
    with threads(2) as pool, members(2, multicast=MulticastConfig(capacity=8)) as (a, b):
        payloads = [payload.ljust(100) for payload in numbered("A", 100)]
        with pytest.raises(TimedOut, match=r"8 of 100 messages were sent within 0.05 s") as caught:
            a.send_many(payloads, timeout=0.05)
        assert caught.value.sent == 8
        reading = [pool.submit(read, group, 9) for group in (a, b)]
        a.send(b"more")
        for reader in reading:
            assert [p for _, p in reader.result()] == [*payloads[:8], b"more"]


def test_who_gives_up_behind_another_sends_nothing() -> None:
    with threads(3) as pool, members(2, multicast=MulticastConfig(capacity=8)) as (a, b):
        first = pool.submit(a.send_many, [payload.ljust(100) for payload in numbered("A", 100)])
        until(lambda: any("limited by" in reason for reason in a.explain()))
        with pytest.raises(TimedOut) as caught:
            a.send_many(LARGE, timeout=0.01)
        assert caught.value.sent == 0
        with pytest.raises(TimedOut, match=r"not everybody has delivered all within 0.01 s"):
            a.flush(timeout=0.01)
        reading = [pool.submit(read, group, 101) for group in (a, b)]
        first.result()
        a.send(b"end")
        for reader in reading:
            assert reader.result()[-1] == ("A", b"end")


def test_a_member_that_does_not_read_blocks_only_what_is_sent_to_it() -> None:
    with members(2, unicast=UnicastConfig(capacity=8)) as (a, b):
        what = "8 of 20 messages to B were sent within 0.05 s"
        with pytest.raises(TimedOut, match=what) as caught:
            a.send_many(numbered("B", 20), to=b.me, timeout=0.05)
        assert caught.value.sent == 8
        assert not a.try_send(b"no room", to=b.me)
        a.send(b"to all")
        assert read(a, 1) == [("A", b"to all")]
        got = {payload for _, payload in read(b, 9)}
        assert got == {*numbered("B", 8), b"to all"}


def test_flush_waits_for_what_is_in_the_ring_too() -> None:
    with threads(3) as pool, members(2, multicast=MulticastConfig(capacity=8)) as (a, b):
        for payload in numbered("A", 500):
            a.send(payload)
        flushing = pool.submit(a.flush)
        reading = [pool.submit(read, group, 500) for group in (a, b)]
        flushing.result()
        for reader in reading:
            assert [p for _, p in reader.result()] == numbered("A", 500)


# Errors


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda g: g.send("text"), "not str: encode it first"),
        (lambda g: g.send(b"x", guarantee="maybe"), "guarantee is 'fifo', 'uniform' or 'total'"),
        (
            lambda g: g.try_send(b"x", guarantee="maybe"),
            "guarantee is 'fifo', 'uniform' or 'total'",
        ),
        (lambda g: g.send(b"x", to="B"), "a member is meant, not 'B'"),
        (lambda g: g.send(b"x", to=g.me, guarantee="uniform"), "leave out to="),
        (lambda g: g.send(b"x" * 2000), "a message of 2000 bytes: max_message_bytes is 1000"),
        (lambda g: g.send(b"x", timeout=-1.0), "timeout = -1.0: must be from 0"),
        (lambda g: g.flush(timeout="soon"), "timeout = 'soon'"),
        (lambda g: g.stabilize(), "has acks and no stability rounds"),
        (lambda g: g.request(g.me, "text"), "not str: encode it first"),
        (lambda g: g.wait_for_view(lambda _: g.explain()), "cannot wait for itself"),
        (lambda g: g.wait_for_view(lambda _: g.send(b"x")), "cannot wait for itself"),
        (lambda g: g.wait_for_view(lambda _: g.leave()), "cannot wait for itself"),
    ],
)
def test_mistakes_are_raised_where_they_are_made(call: Any, error: str) -> None:
    with members(1, multicast=MulticastConfig(max_message_bytes=1000)) as (a,):
        with pytest.raises(UsageError, match=error):
            call(a)
        a.send(b"fine")
        assert read(a, 1) == [("A", b"fine")]


def test_options_are_those_of_asyncio() -> None:
    theirs, ours = (inspect.signature(join).parameters for join in (ringcast.join, blocking.join))
    assert ours == theirs


def test_help_names_each_option() -> None:
    named = inspect.signature(blocking.join)
    assert ringcast.JoinOptions.__annotations__.keys() <= named.parameters.keys()
    said = pydoc.plain(pydoc.render_doc(ringcast.join))
    for option in ("name: str = ''", "members: collections.abc.Sequence[str] = ()", "-> 'Join'"):
        assert option in said
    assert "join_timeout_s: float = 30.0" in said
    assert "options" not in named.parameters


def test_names_are_those_of_asyncio() -> None:
    theirs = {name for name in dir(ringcast.Group) if not name.startswith(("_", "on_"))}
    ours = {name for name in dir(blocking.Group) if not name.startswith("_")}
    assert ours == theirs


def test_what_join_raises_is_raised_here() -> None:
    with (
        pytest.raises(JoinTimeout, match="nobody answered"),
        blocking.join("test", discovery=ListSource([]), must_exist=True, join_timeout_s=0.05),
    ):
        pass
    with pytest.raises(ConfigError, match="when_few"), blocking.join("test", when_few="flee"):  # type: ignore[arg-type]
        pass
    assert engines() == []


def test_a_group_that_is_too_small() -> None:
    with members(1, min_members=2) as (a,):
        with pytest.raises(TooFewMembers) as caught:
            a.send(b"alone")
        assert (caught.value.have, caught.value.need, caught.value.sent) == (1, 2, 0)
        with pytest.raises(TooFewMembers):
            a.try_send(b"alone")


def test_what_was_taken_when_there_were_enough_is_sent_when_there_are() -> None:
    config = MulticastConfig(capacity=8)
    with threads(2) as pool, members(2, multicast=config, min_members=2) as (a, b):
        for payload in numbered("A", 50):
            a.send(payload)
        large = pool.submit(a.send_many, [payload.ljust(100) for payload in numbered("L", 60)])
        until(lambda: any("limited by" in reason for reason in a.explain()))
        b.leave()
        a.wait_for_view(lambda view: len(view) == 1)
        with pytest.raises(TooFewMembers):
            a.send(b"too late")
        reading = pool.submit(read, a, 50)
        until(lambda: any("sends are refused" in reason for reason in a.explain()))
        with blocking.join(
            "test", discovery=ListSource([a.me.address]), membership=PATIENT, receive=False
        ):
            assert [p for _, p in reading.result()] == numbered("A", 50)
            assert len(read(a, 60)) == 60
            large.result()


# Reading


def test_reading_may_stop_and_go_on() -> None:
    with members(1) as (a,):
        a.send_many(numbered("A", 10))
        assert [p for _, p in read(a, 1)] == numbered("A", 10)[:1]
        assert [p for _, p in read(a, 2)] == numbered("A", 10)[1:3]
        batch = next(a.batches())
        assert (batch.run.first, batch.run.payloads) == (4, numbered("A", 10)[3:])


def test_several_threads_may_read() -> None:
    with threads(4) as pool, members(1) as (a,):
        readers = [pool.submit(read, a, 250) for _ in range(4)]
        a.send_many(numbered("A", 1000))
        got = [payload for reader in readers for _, payload in reader.result()]
        assert sorted(got) == sorted(numbered("A", 1000))


def test_everything_comes_in_one_order() -> None:
    with threads(1) as pool, members(2) as (a, b):
        reading = pool.submit(lambda: list(a.events()))
        b.send_many(numbered("B", 3))
        b.flush()
        b.leave()
        a.wait_for_view(lambda view: len(view) == 1)
        a.leave()
        events = reading.result()
        assert [type(event) for event in events] == [
            *(ViewInstalled, ViewInstalled, Delivered, ViewInstalled, Closed)
        ]
        assert events[2].run.payloads == numbered("B", 3)


def test_events_may_be_left_and_gone_on_with() -> None:
    with members(2) as (a, b):
        first = next(iter(a.events()))
        assert isinstance(first, ViewInstalled)
        b.send(b"hello")
        second, third = islice(a.events(), 2)
        assert isinstance(second, ViewInstalled)
        assert isinstance(third, Delivered)
        read(b, 1)


@pytest.mark.parametrize("reader", ["reads it", "leaves before", "never comes"])
def test_no_loss_is_silent(caplog: pytest.LogCaptureFixture, reader: str) -> None:
    with caplog.at_level(logging.WARNING, "ringcast"), members(2) as (a, b):
        gone = b.me
        a.send(b"never taken", to=gone)
        events = a.events()
        if reader != "never comes":
            assert [type(event) for event in islice(events, 2)] == [ViewInstalled] * 2
        b._do(lambda: vanish(b._group))
        a.wait_for_view(lambda view: len(view) == 1)
        found = ListSource([a.me.address])
        again = blocking.join(
            "test", name="B", listen=str(gone.address), discovery=found, membership=PATIENT
        )
        with again as new:
            a.wait_for_view(lambda view: new.me in view)
            if reader == "reads it":
                assert Undeliverable in [type(event) for event in islice(events, 3)]
            events.close()
    told = "A: messages 1..1 to B were given up and may not have arrived: B has been restarted"
    assert caplog.messages.count(told) == (reader != "reads it")


def test_who_only_sends_cannot_read() -> None:
    with members(1, receive=False) as (a,), pytest.raises(UsageError, match="receive=False"):
        iter(a)


# Requests


def test_threads_ask_and_answer() -> None:
    with threads(9) as pool, members(2) as (a, b):

        def answer() -> int:
            count = 0
            for request in b.requests():
                if request.payload == b"":
                    request.refuse("nothing is asked")
                else:
                    request.reply(2 * request.payload)
                count += 1
            return count

        answering = pool.submit(answer)
        asks = [b"%d" % number for number in range(100)]
        assert list(pool.map(lambda what: a.request(b.me, what), asks)) == [2 * w for w in asks]
        with pytest.raises(RequestFailed, match="B refuses: nothing is asked"):
            a.request(b.me, b"")
        b.leave()
        assert answering.result() == 101


def test_a_request_that_nobody_answers() -> None:
    with threads(1) as pool, members(2) as (a, b):
        with pytest.raises(TimedOut, match=r"^B has not answered within 0.05 s$"):
            a.request(b.me, b"?", timeout=0.05)
        asking = pool.submit(a.request, b.me, b"?", timeout=600.0)
        until(lambda: layer(b, "requests")["unread"] == 2)
        b.leave()
        with pytest.raises(RequestFailed, match="B departed"):
            asking.result()


# The rest


def test_what_there_is_to_see() -> None:
    with members(2) as (a, b):
        assert a.view == b.view
        assert str(a.me) == "A"
        assert a.state_lost is None
        b.send(b"hello", to=a.me)
        assert read(a, 1) == [("B", b"hello")]
        a.sync(b.me)
        with pytest.raises(TimedOut, match=r"not as wanted within 0.01 s: View 2: A, B"):
            a.wait_for_view(lambda view: len(view) == 3, timeout=0.01)
        assert a.wait_for_view(lambda view: len(view) == 2) == a.view
    assert isinstance(a.explain(), list)
    assert a.stats()["queues"]
    assert engines() == []


def test_a_group_that_votes() -> None:
    with members(1, multicast=MulticastConfig(stability=StabilityConfig())) as (a,):
        a.send(b"x")
        read(a, 1)
        a.stabilize()
        a.flush()


def test_the_state_is_given_and_taken_by_threads() -> None:
    gives: list[str] = []
    chunk = b"x" * 300_000

    def give() -> Iterator[bytes]:
        gives.append(threading.current_thread().name)
        yield b"begin"
        yield from [chunk] * 9

    def refuse(chunks: Iterator[bytes]) -> None:
        raise AssertionError("who starts the group takes no state")

    taken: list[bytes] = []
    hooks = [
        {"give_state": give, "take_state": refuse},
        {"give_state": give, "take_state": taken.extend},
    ]
    with threads(1) as pool, ExitStack() as stack:
        first = stack.enter_context(members(1, per_member=hooks[:1]))[0]
        reading = pool.submit(read, first, 1)
        options: Any = hooks[1]
        b = stack.enter_context(
            blocking.join(
                "test", discovery=ListSource([first.me.address]), membership=PATIENT, **options
            )
        )
        assert b"".join(taken) == b"begin" + 9 * chunk
        assert gives
        assert not gives[0].startswith("ringcast")
        b.send(b"after")
        assert reading.result() == read(b, 1) == [("", b"after")]


# Leaving


def test_leaving_sends_what_is_in_the_ring_and_wakes_those_who_wait() -> None:
    config = MulticastConfig(capacity=8)
    with threads(12) as pool, members(2, multicast=config) as (a, b):
        sent = fill(a)
        waiting = [pool.submit(a.send, b"no") for _ in range(3)]
        waiting += [pool.submit(a.send_many, LARGE) for _ in range(3)]
        waiting += [pool.submit(a.wait_for_view, lambda view: len(view) == 9)]
        waiting += [pool.submit(a.request, a.me, b"?", timeout=600.0)]
        until(lambda: layer(a, "requests")["unread"] == 1)
        asked = pool.submit(lambda: list(a.requests()))
        own = pool.submit(lambda: [message.payload for message in a])
        reading = pool.submit(lambda: [message.payload for message in islice(b, sent)])
        a.leave()
        outcomes = Counter(type(waiter.exception()) for waiter in waiting)
        assert outcomes[GroupClosed] + outcomes[type(None)] == len(waiting)
        assert reading.result() == [b"%d" % number for number in range(sent)]
        assert own.result()[:sent] == reading.result()
        assert len(asked.result()) == 1
        with pytest.raises(GroupClosed):
            a.send(b"more")
        with pytest.raises(GroupClosed):
            a.request(b.me, b"more")
        with pytest.raises(GroupClosed):
            a.flush()
        assert not list(a)
        a.leave()


def test_ones_own_messages_can_be_read_after_leaving() -> None:
    with threads(1) as pool, members(2) as (a, b):
        reading = pool.submit(read, b, 3)
        a.send(b"A0")
        assert read(a, 1) == [("A", b"A0")]
        a.send_many([b"A1", b"A2"])
        a.leave()
        assert read(a, 3) == [("A", b"A1"), ("A", b"A2")]
        assert list(a) == []
        assert len(reading.result()) == 3


def test_what_could_not_be_sent_in_time_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = MulticastConfig(capacity=8)
    membership = replace(PATIENT, leave_timeout_s=0.05)
    with caplog.at_level(logging.WARNING, "ringcast"):
        with threads(1) as pool, members(2, multicast=config, membership=membership) as (a, _):
            sent = fill(a)
            large = pool.submit(a.send_many, LARGE)
            a.leave()
            with pytest.raises(GroupClosed):
                large.result()
        (said,) = [text for text in caplog.messages if "A leaves before everybody" in text]
    # Whether B has told in time that it has the first eight depends on the machine.
    assert re.search(rf" [19]\.\.{sent}, the last {sent - 8} of these were not sent", said)
    assert engines() == []


@pytest.mark.parametrize("guarantee", ["fifo", "uniform"])
def test_all_that_was_accepted_and_dropped_is_counted(guarantee: Guarantee) -> None:
    config = MulticastConfig(capacity=8)
    membership = replace(PATIENT, leave_timeout_s=0.5)
    with members(2, multicast=config, membership=membership) as (a, _):
        sent = 0
        with suppress(TimedOut):
            while True:
                a.send_many([b"x"] * (1 + sent % 3), guarantee=guarantee, timeout=0.2)
                sent += 1 + sent % 3
        a.leave()
        *_, closed = a.events()
    assert isinstance(closed, Closed)
    assert closed.unacked == ((STREAMS[guarantee], 9, sent),)  # the first eight are with B
    assert closed.unsent == sent - 8


def test_what_the_loop_has_not_seen_yet_is_counted_too() -> None:
    with members(2, receive=False) as (a, b):
        a.send(b"x")
        a.flush()
        held = threading.Event()
        a._engine.loop.call_soon_threadsafe(held.wait)  # type: ignore[union-attr]
        for _ in range(3):
            a.send(b"y")  # the loop, which would send these, is kept busy
        a._engine.soon(lambda: a._group._end(Closed("said so by a test")))
        held.set()
        *_, closed = a.events()
        assert closed == Closed("said so by a test", 0, ((ringcast.Stream.FIFO, 2, 4),), 3)
        assert b.view


def test_leaving_is_bounded_from_the_ring_to_the_goodbye() -> None:
    membership = replace(PATIENT, leave_timeout_s=2.0)
    with members(2, multicast=MulticastConfig(capacity=8), membership=membership) as (a, b):
        fill(a)
        began = time.monotonic()
        a.leave()
        assert 1.5 <= time.monotonic() - began < 3.0
        b.wait_for_view(lambda view: len(view) == 1, timeout=0.5)  # it was told


def test_a_block_that_fails_leaves_in_good_order() -> None:
    def fail(known: blocking.Group) -> None:
        place = ListSource([known.me.address])
        with blocking.join("test", name="C", discovery=place, membership=PATIENT) as c:
            failed.append(c)
            known.wait_for_view(lambda view: len(view) == 3)
            raise ZeroDivisionError

    failed: list[blocking.Group] = []
    with members(2) as (a, _):
        with pytest.raises(ZeroDivisionError):
            fail(a)
        a.wait_for_view(lambda view: len(view) == 2)
    with pytest.raises(GroupClosed):
        failed[0].send(b"more")


def test_a_group_that_fails_says_so_to_everybody() -> None:
    """Whatever is wrong with ringcast itself, nobody waits for it."""
    with threads(1) as pool, members(1) as (a,):
        waiting = pool.submit(a.wait_for_view, lambda view: len(view) == 9)
        a.send(b"fine")
        assert read(a, 1) == [("A", b"fine")]
        queue = a._queues["fifo"]
        queue._ring.add(queue._ring.ticket(), [None])  # type: ignore[list-item]
        with suppress(GroupClosed):  # it may have been found without that
            a.send(b"wakes the pump")
        why = r"^this member has failed and is gone; leaving raises \w+Error\("
        with pytest.raises(GroupClosed, match=why):
            waiting.result(DEADLINE_S)
        until(lambda: a._engine.is_over)
        calls: list[Callable[[], Any]] = [
            lambda: a.send(b"x"),
            lambda: a.send(b"x", to=a.me),
            lambda: a.send_many(LARGE),
            lambda: a.request(a.me, b"?"),
            a.flush,
        ]
        for call in calls:
            with pytest.raises(GroupClosed, match=why):
                call()
        assert list(a) == []
        with pytest.raises(UsageError, match="messages are bytes"):
            a.leave()
        a.leave()  # it has been said
    assert engines() == []


FORKS = """
import os, signal, sys
from ringcast import Closed, GroupClosed, blocking
from ringcast.aio.sources import ListSource

signal.alarm(30)
with blocking.join("test", name="parent", discovery=ListSource([])) as group:
    group.send_many([b"before"] * 3)
    assert next(iter(group)).payload == b"before"
    child = os.fork()
    if not child:
        calls = [
            lambda: group.send(b"x"),
            lambda: group.send(b"x", to=group.me),
            lambda: group.request(group.me, b"x"),
            lambda: group.wait_for_view(lambda view: True),
            lambda: group.flush(),
        ]
        for call in calls:
            try:
                call()
            except GroupClosed as closed:
                assert str(closed).startswith("this process was made by fork"), closed
            else:
                raise AssertionError("it did as if nothing were")
        assert list(group) == list(group.requests()) == []
        (last,) = group.events()
        assert isinstance(last, Closed)
        group.leave()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    group.send(b"after")
    reader = iter(group)
    assert [next(reader).payload for _ in range(3)] == [b"before", b"before", b"after"]
"""


def test_a_copy_made_by_fork_is_no_member(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    # Later versions of Python warn of it, as a fork copies no thread: that is what this is about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", tmp_path / "forks.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PROGRAM = """
import sys
import ringcast
from ringcast import MulticastConfig, blocking
from ringcast.aio.sources import ListSource

address, doing = ringcast.Address.parse(sys.argv[1]), sys.argv[2]
with blocking.join(
    "test",
    discovery=ListSource([address]),
    multicast=MulticastConfig(capacity=8),
    receive=doing == "read",
) as group:
    if doing == "send":
        group.send(b"ready")
        while True:
            group.send(b"x")
    elif doing == "caught":
        try:
            group.send(b"ready")
            while True:
                group.send_many([b"x" * 5000])
        except KeyboardInterrupt:
            group.send(b"still here")
    else:
        group.send(b"ready")
        for message in group:
            pass
"""


@pytest.mark.parametrize("doing", ["send", "read", "caught"])
def test_an_interrupt_leaves_cleanly(doing: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with threads(1) as pool, members(1, multicast=MulticastConfig(capacity=8)) as (a,):
        command = [sys.executable, tmp_path / "program.py", str(a.me.address), doing]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            got: list[bytes] = []

            def listen() -> None:
                for event in a.events():
                    match event:
                        case Delivered(_, run):
                            got.extend(run.payloads)
                        case ViewInstalled(view) if got and len(view) == 1:
                            return

            listening = pool.submit(listen)
            until(lambda: b"ready" in got and (doing == "read" or len(got) > 20))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=DEADLINE_S)
            listening.result()
            assert got[0] == b"ready"
            if doing == "caught":
                assert process.returncode == 0
                assert got[-1] == b"still here"
            else:
                assert process.returncode == -signal.SIGINT
                assert errors.rstrip().endswith("KeyboardInterrupt")
                assert "leaves before" not in errors
        finally:
            process.kill()
            process.communicate()
