"""What threads send to one member: in a queue of its own, so that nobody waits for the loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from blocking_groups import members, read, threads, until
from loopback_groups import numbered, vanish

from ringcast import TimedOut, Undeliverable, UnicastConfig
from ringcast.aio.send_queue import BATCH, RING_CAPACITY

if TYPE_CHECKING:
    from ringcast import blocking

SMALL = UnicastConfig(capacity=8)


def queued(group: blocking.Group) -> list[str]:
    return [str(to) for to in list(group._sends._to_one)]


def test_single_sends_do_not_wait_for_the_loop_and_keep_their_order() -> None:
    with members(2) as (a, b):
        a.send(b"first", to=b.me)
        scheduled, schedule = 0, a._engine._schedule

        def count(callback: object) -> None:
            nonlocal scheduled
            scheduled += 1
            schedule(callback)  # type: ignore[arg-type]

        a._engine._schedule = count  # type: ignore[method-assign, assignment]
        for payload in numbered("A", 500):
            a.send(payload, to=b.me)
        a._engine._schedule = schedule  # type: ignore[method-assign]
        assert scheduled < 250  # once for each time that the pump sleeps
        assert [payload for _, payload in read(b, 501)] == [b"first", *numbered("A", 500)]


def test_each_thread_keeps_its_order_whatever_it_sends_to_whom() -> None:
    def send(group: blocking.Group, peer: blocking.Group, name: str) -> None:
        one, *others = numbered(name, 60)
        group.send(one, to=peer.me)
        group.send_many(others[:20], to=peer.me)
        for payload in others[20:40]:
            group.send(payload, to=peer.me)
        receipt = group.send(others[40], to=peer.me, receipt=True)
        group.send(bytes(10_000), to=peer.me)
        for payload in others[41:]:
            group.send(payload, to=peer.me)
        receipt.delivered()

    with threads() as pool, members(3) as (a, b, c):
        sending = [pool.submit(send, a, peer, name) for peer in (b, c) for name in "XY"]
        for peer in (b, c):
            got = [payload for _, payload in read(peer, 2 * 61)]
            for name in "XY":
                assert [one for one in got if one.startswith(name.encode())] == numbered(name, 60)
        for done in sending:
            done.result()


def fill(group: blocking.Group, peer: blocking.Group) -> int:
    """How many messages one may send that are not read."""
    sent = 0
    with suppress(TimedOut):
        while True:
            group.send(b"%d" % sent, to=peer.me, timeout=0.05)
            sent += 1
    return sent


def test_a_member_that_does_not_read_blocks_who_sends_to_it_once_its_queue_is_full() -> None:
    with members(3, unicast=SMALL) as (a, b, c):
        sent = fill(a, b)
        assert RING_CAPACITY <= sent <= RING_CAPACITY + BATCH + 8
        assert not a.try_send(b"no room", to=b.me)
        with pytest.raises(TimedOut) as caught:
            a.send_many([b"x", b"y"], to=b.me, timeout=0.05)
        assert caught.value.sent == 0
        a.send(b"to C", to=c.me)
        assert read(c, 1) == [("A", b"to C")]
        assert [payload for _, payload in read(b, sent)] == [b"%d" % n for n in range(sent)]


def test_flush_and_leaving_wait_for_what_is_in_the_queue() -> None:
    with threads() as pool, members(2, unicast=SMALL) as (a, b):
        for payload in numbered("A", 100):
            a.send(payload, to=b.me)
        flushing = pool.submit(a.flush)
        assert [payload for _, payload in read(b, 99)] == numbered("A", 99)
        assert len(read(b, 1)) == 1
        flushing.result()
        for payload in numbered("B", 100):
            a.send(payload, to=b.me)
        leaving = pool.submit(a.leave)
        assert [payload for _, payload in read(b, 100)] == numbered("B", 100)
        leaving.result()


def test_what_waits_for_a_member_that_departs_is_undeliverable_and_its_queue_goes() -> None:
    with threads() as pool, members(2, unicast=SMALL) as (a, b):
        gone = b.me
        for payload in numbered("A", 50):
            a.send(payload, to=gone)
        blocked = pool.submit(a.send_many, numbered("B", 3), to=gone)
        until(lambda: a._sends.to_all and queued(a) == ["B"])
        b._do(lambda: vanish(b._group))
        a.wait_for_view(lambda view: len(view) == 1)
        with pytest.raises(Undeliverable) as refused:
            blocked.result()
        assert (refused.value.to, refused.value.sent) == (gone, 0)
        lost = 0
        for event in a.events():
            if isinstance(event, Undeliverable):
                lost += event.last - event.first + 1
            if lost >= 42:  # 8 have seqnos, and may arrive
                break
        until(lambda: not queued(a))
        assert len(a._group._sending.queues) == 4
        with pytest.raises(Undeliverable, match="is not in the view"):
            a.send(b"after", to=gone)
        until(lambda: not queued(a))


def test_who_is_about_to_send_keeps_its_queue() -> None:
    with members(2) as (a, b):
        a.send(b"first", to=b.me)
        read(b, 1)
        queue = a._sends._to_one[b.me]
        until(lambda: queue._room.qsize() == RING_CAPACITY)
        queue._room.get()  # as a thread that has not gone on yet
        assert not a._do(queue.retire)
        assert queue._room.qsize() == RING_CAPACITY - 1
        queue._room.put(None)
        assert a._do(queue.retire)
        a._sends._to_one.clear()
        a.send(b"second", to=b.me)  # in another one
        assert read(b, 1) == [("A", b"second")]
