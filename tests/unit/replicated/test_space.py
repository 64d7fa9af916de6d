"""Spaces on a model of total order: what applications see as members come, go, divide and merge."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ringcast.errors import (
    LockLost,
    OperationFailed,
    OutcomeUnknown,
    SpaceClosed,
    StaleToken,
    TimedOut,
    UnknownStructure,
    UsageError,
)
from ringcast.replicated import ABSENT, Changed, Removed, Reset, Space, Unanswered
from ringcast.replicated.encoding import Op
from support.ordered import Order, member, settle
from support.spaces import App, apps, run, same, serving


async def hear(app: App, prefix: str, heard: list[Any]) -> None:
    async for event in app.prices.watch(prefix):
        heard.append(event)  # noqa: PERF401 (the test looks meanwhile)


def test_all_members_have_what_one_has_written() -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1, 2) as (a, b, c):
            await a.prices.set("tea", {"cents": [420, None]})
            assert a.prices["tea"] == {"cents": [420, None]}
            assert await b.prices.update({"tea": 1, "cake": 2.5}) == 1
            assert await c.prices.delete("tea") is True
            assert await c.prices.delete("tea") is False
            assert await a.prices.compare_and_set("cake", 2.5, 3) is True
            assert await b.prices.compare_and_set("cake", 2.5, 4) is False
            assert await b.prices.compare_and_set("pie", ABSENT, 1) is True
            assert await b.prices.compare_and_set("pie", 1, ABSENT) is True
            await a.blobs.set("raw", b"\x00\xff")
            assert await c.blobs.get("raw", fresh=True) == b"\x00\xff"
            assert await c.sold.add(5) == 5
            assert await a.sold.add(-2) == 3
            assert await b.sold.get(fresh=True) == b.sold.value == 3
            await same(a, b, c)
            for app in (a, b, c):
                assert app.prices.items() == [("cake", 3)]
                assert list(app.prices) == ["cake"]
                assert len(app.prices) == 1
                assert "tea" not in app.prices
                assert await app.prices.get("tea", "none") == "none"
                with pytest.raises(KeyError):
                    app.prices["tea"]

    run(main)


def test_what_a_reader_has_cannot_change_what_others_have() -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            await a.prices.set("tea", [1])
            a.prices["tea"].append(2)
            await same(a, b)
            assert a.prices["tea"] == b.prices["tea"] == [1]

    run(main)


def test_iteration_is_of_one_moment() -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            await a.prices.update({"a": 1, "b": 2})
            seen = []
            for key in a.prices:
                seen.append(key)
                await a.prices.delete("b")
                await a.prices.set("c", 3)
            assert seen == ["a", "b"]
            assert a.prices.items("c") == [("c", 3)]

    run(main)


def test_values_that_cannot_be_are_refused_before_they_are_sent() -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            for wrong in (object(), float("nan"), {1, 2}):
                with pytest.raises(UsageError, match=r"prices\['tea'\] cannot be"):
                    await a.prices.set("tea", wrong)
            with pytest.raises(UsageError, match="1048577 bytes, and 1048576 are the most"):
                await a.blobs.set("big", bytes(2**20 + 1))
            with pytest.raises(UsageError, match="whole numbers"):
                await a.sold.add(1.5)  # type: ignore[arg-type]
            with pytest.raises(OperationFailed, match="sold would be beyond"):
                await a.sold.add(2**63)
            assert a.space._number == 1  # the last one

    run(main)


def test_a_joiner_has_the_state_and_what_follows() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1) as (a, b):
            await a.prices.set("tea", 1)
            token = await a.lock.acquire()
            await b.sold.add(7)
            async with serving(order, App(2)) as c:
                assert c.prices["tea"] == 1
                assert c.sold.value == 7
                assert c.lock.holder == a.me
                assert c.leader.member == a.me
                waiting = asyncio.create_task(c.lock.acquire())
                await settle(lambda: len(c.lock._state.line) == 2)
                await a.lock.release(token)
                assert bytes(await waiting) > bytes(token)
                await same(a, b, c)
            await settle(lambda: b.lock.holder is None)  # c has left

    run(main)


def test_watchers_hear_a_snapshot_and_each_change_once() -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            await a.prices.update({"x/1": 1, "y/1": 1})
            await same(a, b)
            heard: list[Any] = []
            watching = asyncio.create_task(hear(b, "x/", heard))
            await settle(lambda: heard)
            await a.prices.update({"x/2": 2, "y/2": 2})
            await a.prices.update({"x/1": ABSENT, "x/none": ABSENT})
            await a.prices.set("x/2", 3)
            await settle(lambda: len(heard) == 4)
            assert heard[0] == Reset({"x/1": 1})
            assert [type(event) for event in heard[1:]] == [Changed, Removed, Changed]
            assert [event.key for event in heard[1:]] == ["x/2", "x/1", "x/2"]
            assert [event.at for event in heard[1:]] == sorted(event.at for event in heard[1:])
        await watching  # it ends with the space

    run(main)


def test_a_slow_watcher_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast.replicated.structures.CHANGES_MAX", 3)

    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            watching = a.prices.watch()
            assert await anext(watching) == Reset({})
            for number in range(4):
                await a.prices.set(f"k{number}", number)
            assert await anext(watching) == Reset({f"k{n}": n for n in range(4)})
            await a.prices.set("k", 1)
            event = await anext(watching)
            assert isinstance(event, Changed)
            assert event.key == "k"
            await watching.aclose()  # type: ignore[attr-defined]
            assert not a.prices._watchers

    run(main)


def test_a_lock_goes_round_in_the_order_of_those_who_ask() -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1, 2) as members:
            inside: list[int] = []
            tokens: list[bytes] = []

            async def work(app: App) -> None:
                for _ in range(5):
                    async with app.lock as token:
                        inside.append(app.me.incarnation)
                        tokens.append(bytes(token))
                        assert app.lock.holder == app.me
                        await asyncio.sleep(0)
                        await app.prices.set("by", app.me.name, token=token)
                        assert inside.pop() == app.me.incarnation
                        assert not inside

            await asyncio.gather(*(work(app) for app in members for _ in range(2)))
            assert tokens == sorted(set(tokens))
            assert len(tokens) == 30

    run(main)


def test_a_lock_that_nobody_waits_for_any_more_passes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            token = await a.lock.acquire()
            first, second = (asyncio.create_task(app.lock.acquire()) for app in (b, a))
            await settle(lambda: len(b.lock._state.line) == 3)
            first.cancel()
            await settle(lambda: len(a.lock._state.line) == 2)
            await a.lock.release(token)
            token = await second
            # Cancelled when it has been granted, and before the task has run.
            third = asyncio.create_task(b.lock.acquire())
            await settle(lambda: len(b.lock._state.line) == 2)
            number = b.lock._state.line[1].number
            release = a.lock.release(token)
            set_news = b.lock._asking[number].set
            monkeypatch.setattr(b.lock._asking[number], "set", lambda: (set_news(), third.cancel()))
            await release
            await settle(lambda: a.lock.holder is None)
            assert third.cancelled()
            assert not b.lock._holds
            async with asyncio.timeout(1), a.lock:
                pass

    run(main)


def test_mistakes_with_locks_are_told() -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            async with a.lock as token:
                with pytest.raises(UsageError, match="would wait for itself"):
                    async with a.lock:
                        pass
            with pytest.raises(UsageError, match="not held here"):
                await a.lock.release(token)
            with pytest.raises(
                StaleToken, match=r"prices: 1\.1\.1 of job is not the present token"
            ):
                await a.prices.set("tea", 1, token=token)
            with pytest.raises(ZeroDivisionError):
                async with a.lock:
                    1 / 0  # noqa: B018
            assert a.lock.holder is None

    run(main)


def test_a_lock_is_freed_when_its_holder_is_killed_and_leads_go_on() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            token = await a.lock.acquire()
            waiting = asyncio.create_task(c.lock.acquire())
            await settle(lambda: len(b.lock._state.line) == 2)
            assert b.leader.member == a.me
            order.kill(a.group)
            later = await waiting
            assert bytes(later) > bytes(token)
            assert b.leader.member == b.me
            assert b.leader.is_me
            assert c.terms[-1] == b.terms[-1]
            assert [member for member, _ in b.terms] == [a.me, b.me]
            a.group.close()

    run(main)


def test_terms_tell_the_latest_leader() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1) as (a, b):
            terms = b.leader.terms()
            assert (await anext(terms))[0] == a.me
            nextly = asyncio.create_task(anext(terms))
            order.kill(a.group)
            member, epoch = await nextly
            assert (member, epoch) == (b.me, b.leader.epoch)
            assert await b.prices.update({"led": 1}, token=epoch) == 0
            a.group.close()
        assert [term async for term in terms] == []

    run(main)


def test_no_answer_in_time_says_so_and_the_same_again_is_safe() -> None:
    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0, 1, timeout_s=0.01) as (a, _):
            with pytest.raises(
                Unanswered, match=r"operation 1 on 'sold': no answer within 0\.01 s"
            ):
                await a.sold.add(5)
            with pytest.raises(OutcomeUnknown) as unknown:
                await a.sold.add(1)
            assert isinstance(unknown.value, Unanswered)
            order.order(a.group)
            order.is_prompt = True
            assert await unknown.value.again() == 6
            assert await unknown.value.again() == 6
            assert a.sold.value == 6
            assert not a.space._open

    run(main)


def test_what_found_no_room_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with apps(Order(), 0, timeout_s=0.01) as (a,):
            send = a.group.send
            monkeypatch.setattr(a.group, "send", lambda *_, **__: asyncio.Event().wait())
            with pytest.raises(TimedOut, match="no room to send"):
                await a.sold.add(5)
            monkeypatch.setattr(a.group, "send", send)
            assert not a.space._open
            assert await a.sold.add(1) == 1

    run(main)


def test_who_was_excluded_has_its_answers_and_its_locks_are_lost() -> None:
    """What was ordered while it was away is answered from the state; what was not comes along."""

    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0, 1, 2) as (a, b, c):
            acquiring = asyncio.create_task(c.lock.acquire())
            await settle(lambda: c.group.pending)
            order.order_all()
            token = await acquiring
            lost = c.lock.lost
            queued = asyncio.create_task(c.lock.acquire())
            known, carried = (asyncio.create_task(c.sold.add(number)) for number in (5, 1))
            release = asyncio.create_task(c.prices.set("tea", 1, token=token))
            await settle(lambda: len(c.group.pending) == 4)
            for _ in range(2):
                order.order(c.group, at=[a.group, b.group])
            order.divide(c.group)
            await settle(lambda: a.lock.holder is None)
            assert a.sold.value == 5
            assert not lost.is_set()  # it does not know
            order.merge(a.group.part, c.group.part)  # type: ignore[arg-type]
            await lost.wait()
            order.is_prompt = True
            order.order_all()
            assert (await known, await carried) == (5, 6)
            with pytest.raises(StaleToken):
                await release
            again = await queued
            assert bytes(again) > bytes(token)
            with pytest.raises(LockLost, match="the others were without m2"):
                await c.lock.release(token)
            await c.lock.release(again)
            assert c.sold.value == a.sold.value == 6
            assert not c.diverged
            assert not c.space._open
            await same(a, b, c)

    run(main)


def test_an_answer_that_was_given_while_it_was_away_comes_with_the_state() -> None:
    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0, 1) as (a, b):
            adding = asyncio.create_task(b.sold.add(5))
            await settle(lambda: b.group.pending)
            order.order(b.group, at=[a.group])
            order.divide(b.group)
            order.merge(a.group.part, b.group.part)  # type: ignore[arg-type]
            assert not b.group.pending  # nobody sends it again
            assert await adding == 5

    run(main)


def test_what_was_forgotten_while_a_member_was_away_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringcast.replicated.machine.DEPARTED_MAX", 0)

    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            assert await c.sold.add(1) == 1
            order.is_prompt = False
            known = asyncio.create_task(c.sold.add(5))
            await settle(lambda: c.group.pending)
            order.order(c.group, at=[a.group, b.group])
            carried = asyncio.create_task(b.sold.add(7))
            await settle(lambda: b.group.pending)
            order.divide(c.group)
            order.divide(b.group)  # the second view without c, after which c is forgotten
            for other in (b, c):
                order.merge(a.group.part, other.group.part)  # type: ignore[arg-type]
            with pytest.raises(Unanswered, match="forgotten while this member was away") as error:
                await known
            order.is_prompt = True
            with pytest.raises(Unanswered, match="not known any more"):
                await error.value.again()
            assert await carried == 13
            assert await c.sold.add(1) == 14

    run(main)


def test_what_a_lesser_part_has_done_is_told_when_parts_merge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            await a.prices.set("tea", 1)
            heard: list[Any] = []
            watching = asyncio.create_task(hear(c, "", heard))
            await settle(lambda: heard)
            epochs = [c.leader.epoch]
            order.divide(c.group)
            await settle(lambda: len(c.space.view) == 1)
            assert c.leader.is_me
            epochs.append(c.leader.epoch)
            async with c.lock as token:
                await c.prices.set("cake", 2, token=token)
            await c.sold.add(5)
            await a.prices.set("pie", 3)
            async with a.lock as other:
                pass
            order.merge(a.group.part, c.group.part)  # type: ignore[arg-type]
            await same(a, b, c)
            assert c.prices.items() == [("tea", 1), ("pie", 3)]
            assert c.sold.value == 0
            (diverged,) = c.diverged
            assert diverged.keys("prices") == {"cake"}
            assert diverged.added("sold") == 5
            assert diverged.is_whole
            assert not a.diverged
            assert "2 operations that were done here are not in the history" in caplog.text
            await settle(lambda: len(heard) == 3)
            assert heard == [Reset({"tea": 1}), heard[1], Reset({"tea": 1, "pie": 3})]
            assert c.leader.member == a.me
            async with b.lock as last:
                assert bytes(last) > max(bytes(token), bytes(other))
            del watching

    with caplog.at_level(logging.WARNING, "ringcast"):
        run(main)


def test_a_lock_that_was_granted_and_lost_before_its_task_ran_is_asked_for_anew() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            token = await b.lock.acquire()
            waiting = asyncio.create_task(a.lock.acquire())
            await settle(lambda: len(b.lock._state.line) == 2)
            order.is_prompt = False
            releasing = asyncio.create_task(b.lock.release(token))
            await settle(lambda: b.group.pending)
            order.order(b.group)  # a has it, and is away before its task can run
            order.divide(a.group)
            order.merge(b.group.part, a.group.part)  # type: ignore[arg-type]
            order.is_prompt = True
            granted = await waiting
            await releasing
            await same(a, b, c)
            assert b.lock._state.token == granted
            assert not a.lock.lost.is_set()
            await a.lock.release(granted)

    run(main)


def test_lock_of_both_parts_after_a_merge_is_that_of_the_leading_one() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1) as (a, b):
            order.divide(b.group)
            await settle(lambda: len(b.space.view) == 1)
            mine, theirs = await b.lock.acquire(), await a.lock.acquire()
            lost = b.lock.lost
            order.merge(a.group.part, b.group.part)  # type: ignore[arg-type]
            await lost.wait()
            await same(a, b)
            assert b.lock.holder == a.me
            await b.prices.set("x", 1, token=theirs)
            with pytest.raises(StaleToken):
                await b.prices.set("x", 2, token=mine)
            with pytest.raises(LockLost):
                await b.lock.release(mine)

    run(main)


def test_who_cannot_get_the_state_goes_on_with_what_it_has() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            await a.prices.set("tea", 1)
            await c.lock.acquire()
            lost = c.lock.lost
            order.divide(b.group, c.group)
            await settle(lambda: len(c.space.view) == 2)
            await c.prices.set("cake", 1)
            order.merge(a.group.part, c.group.part)  # type: ignore[arg-type]
            order.kill(a.group)  # before it has given its state
            assert lost.is_set() is False
            await settle(lambda: lost.is_set() and len(c.space.view) == 2)
            await c.prices.set("pie", 2)
            await same(b, c)
            assert b.prices.items() == [("tea", 1), ("cake", 1), ("pie", 2)]
            assert b.leader.member in (b.me, c.me)
            a.group.close()

    run(main)


def test_views_that_come_before_the_messages_they_follow_wait() -> None:
    """A joiner hears of views at once, and of messages when it has its state."""

    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1, 2) as (a, b, c):
            order.divide(c.group)
            await settle(lambda: len(c.space.view) == 1)
            # a has been asked for the state, and has not read so far
            order.merge(a.group.part, c.group.part)  # type: ignore[arg-type]
            adding = asyncio.create_task(b.sold.add(1))
            locking = asyncio.create_task(b.lock.acquire())
            heard = len(c.terms)
            await asyncio.sleep(0)
            c.group.part = a.group.part
            order.kill(b.group)
            await same(a, c)
            assert (c.sold.value, c.lock.holder) == (a.sold.value, None)
            assert len(c.terms) > heard
            for task in (adding, locking):
                task.cancel()
            b.group.close()

    run(main)


def test_a_structure_that_is_not_named_here_closes_the_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0, 1) as (a, b):
            waiting = asyncio.create_task(b.lock.acquire())
            token = await waiting
            lost, terms = b.lock.lost, b.leader.terms()
            await anext(terms)
            op = Op(b"12345678", 1, 1, is_again=False, body=[b"read"])
            await a.group.send(bytes(op), guarantee="total", channel="replicated:new")
            with pytest.raises(Unanswered, match="m0 has a structure 'new'"):
                await b.sold.add(1)
            assert lost.is_set()
            with pytest.raises(UnknownStructure):
                await b.lock.release(token)
            with pytest.raises(UnknownStructure):
                await anext(terms)
            await settle(lambda: b.space._closed)
            with pytest.raises(UnknownStructure):
                await b.sold.add(1)

    with pytest.raises(UnknownStructure, match="m0 has a structure 'new' and this member has"):
        run(main)
    assert "the space of m1 is closed" in caplog.text


def test_a_joiner_with_other_structures_does_not_come_in() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0):
            space = Space()
            space.dict("prices")
            with pytest.raises(
                UsageError,
                match="name the same structures: others have counter 'sold', dict 'blobs'",
            ):
                await order.join(member(1), space)
            await asyncio.sleep(0)

    run(main)


def test_messages_of_the_application_stand_in_the_same_order() -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1) as (a, b):
            messages = b.space.messages()
            with pytest.raises(UsageError, match="already"):
                b.space.messages()
            await a.group.send(b"one", guarantee="total")
            await b.prices.set("x", 1)
            await b.group.send(b"two", guarantee="total", channel="mine")
            got = [await anext(messages), await anext(messages)]
            assert [(m.sender, m.payload, m.guarantee, m.channel, m.position) for m in got] == [
                (a.me, b"one", "total", "", 1),
                (b.me, b"two", "total", "mine", 3),
            ]
            await same(a, b)
        assert [message async for message in messages] == []

    run(main)


def test_messages_of_a_space_that_has_left_end_at_once() -> None:
    async def main() -> None:
        app, order = App(0), Order()
        early = app.space.messages()  # before it joins, for who wants the first ones, too
        async with serving(order, app):
            await app.group.send(b"one", guarantee="total")
        assert [message.payload async for message in early] == [b"one"]
        assert [message async for message in app.space.messages()] == []
        assert [message async for message in app.space.messages()] == []

    run(main)


def test_a_reader_of_messages_who_waits_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast.replicated.space.MESSAGES_MAX", 2)

    async def main() -> None:
        async with asyncio.timeout(None) as leaving, apps(Order(), 0) as (a,):
            messages = a.space.messages()
            for number in range(5):
                await a.group.send(b"%d" % number, guarantee="total")
            adding = asyncio.create_task(a.sold.add(1))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not adding.done()
            assert [(await anext(messages)).payload for _ in range(3)] == [b"0", b"1", b"2"]
            assert await adding == 1
            for number in range(5, 9):  # for which nobody waits where the member leaves
                await a.group.send(b"%d" % number, guarantee="total")
            leaving.reschedule(asyncio.get_running_loop().time() + 5)
        rest = [message.payload async for message in messages]
        assert rest == [b"%d" % number for number in range(3, 9)]

    run(main)


def test_what_a_space_is_not_for_is_refused() -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            assert a.space.dict("prices") is a.prices
            with pytest.raises(UsageError, match="'prices' is a dict of this space already"):
                a.space.lock("prices")
            with pytest.raises(UsageError, match="name all structures before"):
                a.space.lock("another")
            with pytest.raises(UsageError, match="make one for each group"):
                async with a.space.serve(a.group):  # type: ignore[arg-type]
                    pass
        with pytest.raises(SpaceClosed, match="is out of its group"):
            await a.sold.add(1)
        for option in ({"receive": False}, {"receive_own": False}, {"take_state": None}):
            with pytest.raises(UsageError, match=f"{next(iter(option))}= is not for spaces"):
                async with a.space.join("g", **option):
                    pass
        for wrong in ("", "x" * 256, 7, "\ud800"):
            with pytest.raises(UsageError, match="named by a text"):
                Space().dict(wrong)  # type: ignore[arg-type]

    run(main)


def test_a_group_that_was_joined_without_the_state_is_refused() -> None:
    async def main() -> None:
        order = Order()
        async with apps(order, 0):
            space = App(1).space
            group = await order.join(member(1), App(1).space)  # which has the state
            async with space.serve(group):  # type: ignore[arg-type]
                pytest.fail("it has no state")

    with pytest.raises(UsageError, match=r"join with give_state=space\.give_state"):
        run(main)


def test_a_lock_is_released_though_there_was_no_room_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with apps(Order(), 0, 1, timeout_s=0.01) as (a, b):
            token = await a.lock.acquire()
            send, has_room = a.group.send, asyncio.Event()

            async def blocked(payload: bytes, **how: Any) -> None:
                await has_room.wait()
                await send(payload, **how)

            monkeypatch.setattr(a.group, "send", blocked)
            with pytest.raises(TimedOut):
                await a.lock.release(token)
            has_room.set()
            async with asyncio.timeout(1), b.lock as later:
                assert bytes(later) > bytes(token)

    run(main)


def test_what_no_space_sends_in_the_channel_of_a_structure_closes_it() -> None:
    async def main() -> None:
        async with apps(Order(), 0) as (a,):
            await a.group.send(b"\xff\xff", guarantee="total", channel="replicated:sold")
            await settle(lambda: a.space._closed)

    with pytest.raises(SpaceClosed, match="m0 sends what no space sends"):
        run(main)


def test_a_space_that_joins_again_asks_for_its_old_answers() -> None:
    async def main() -> None:
        order = Order(is_prompt=False)
        async with apps(order, 0) as (a,):
            b = App(1, timeout_s=0.01)
            group = await order.join(b.me, b.space)
            async with b.space.serve(group):  # type: ignore[arg-type]
                with pytest.raises(Unanswered) as done:
                    await b.sold.add(5)
                order.order(b.group, at=[a.group])  # a has it; b goes before it hears of it
                with pytest.raises(Unanswered) as undone:
                    await b.sold.add(1)
                order.kill(b.group)
                b.group.close()
            order.is_prompt = True
            group = await order.join(member(1, incarnation=99), b.space)
            async with b.space.serve(group):  # type: ignore[arg-type]
                assert await undone.value.again() == 6
                assert await done.value.again() == 5
                assert await b.sold.add(1) == 7
                await same(a, b)

    run(main)


def test_a_space_that_begins_a_group_anew_has_nothing() -> None:
    async def main() -> None:
        a = App(0)
        for _ in range(2):
            order = Order()
            group = await order.join(a.me, a.space)
            async with a.space.serve(group):  # type: ignore[arg-type]
                assert "x" not in a.prices
                await a.prices.set("x", 1)

    run(main)
