"""Members that find each other, are missed, are left out by mistake and come back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import (
    DEADLINE_S,
    FIRST,
    PATIENT,
    exclude,
    numbered,
    read,
    until,
    vanish,
    waits,
    with_members,
)

from ringcast import (
    DirectorySource,
    GroupClosed,
    JoinTimeout,
    MulticastConfig,
    UsageError,
    ViewInstalled,
    join,
)
from ringcast.aio.loop import run
from ringcast.sim.processes import Cluster, hear, tell

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from ringcast import Address, Group, Member


def bounded(main: Coroutine[Any, Any, None]) -> None:
    async def run_it() -> None:
        await asyncio.wait_for(main, DEADLINE_S)

    run(run_it())


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test leaves behind concerns no other one."""
    home = tmp_path / "run"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))


def member_files(directory: Path) -> int:
    return len(list(directory.rglob("*.member")))


async def told(group: Group, *kinds: type) -> list[object]:
    """The next events of these kinds, in their order."""
    found: list[object] = []
    async for event in group.events():
        if isinstance(event, kinds[len(found)]):
            found.append(event)
            if len(found) == len(kinds):
                break
    return found


# Finding each other


def test_the_name_is_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            join("orders", name="A", membership=FIRST) as a,
            join("orders", name="B") as b,
            join("stock", name="C", membership=FIRST) as c,
        ):
            assert str(a.view) == str(b.view) == "View 2: A, B"
            assert str(c.view) == "View 1: C"
            await b.send(b"found you")
            assert await read(a, 1) == await read(b, 1) == [("B", b"found you")]
            assert member_files(tmp_path) == 3
        assert member_files(tmp_path) == 0

    bounded(main())


def test_members_that_start_at_the_same_instant_make_one_group() -> None:
    async def member(name: str, meet: asyncio.Barrier) -> None:
        await meet.wait()
        async with join(
            "orders", name=name, membership=replace(PATIENT, discovery_wait_s=0.1)
        ) as g:
            await g.wait_for_view(lambda view: len(view) == 4)
            await meet.wait()

    async def main() -> None:
        meet = asyncio.Barrier(4)
        await asyncio.gather(*(member(name, meet) for name in "ABCD"))

    bounded(main())


def test_a_shared_directory_is_a_place_to_meet(tmp_path: Path) -> None:
    async def main() -> None:
        at = tmp_path / "shared"
        async with (
            join("orders", name="A", discovery=DirectorySource(at), membership=FIRST),
            join("orders", name="B", discovery=DirectorySource(at), must_exist=True) as b,
        ):
            assert str(b.view) == "View 2: A, B"

    bounded(main())


def test_a_group_that_must_exist_is_not_started(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(JoinTimeout, match=r"nobody answered at .*, where no other member is"):
            async with join("orders", must_exist=True, membership=FIRST):
                pass
        addresses = [f"127.0.0.1:{port}" for port in range(1, 9)]
        with pytest.raises(JoinTimeout, match=r"127\.0\.0\.1:5 and 3 more: is group 'orders'"):
            async with join("orders", must_exist=True, membership=FIRST, members=addresses):
                pass
        assert member_files(tmp_path) == 0

    bounded(main())


def test_one_place_to_look_is_enough(tmp_path: Path) -> None:
    async def main() -> None:
        somewhere = DirectorySource(tmp_path)
        async with join("orders", members=["127.0.0.1:7800"], discovery=somewhere):
            pass

    with pytest.raises(UsageError, match="members= or with discovery=, not with both"):
        bounded(main())


def test_files_of_the_dead_hold_nobody_up(tmp_path: Path) -> None:
    """Among many addresses that refuse, the one that answers is heard."""

    async def main() -> None:
        async with join("orders", name="A", membership=FIRST) as a:
            dead = [f"127.0.0.1:{port}" for port in range(1, 40)]
            members = [*dead, str(a.me.address), *reversed(dead)]
            async with join("orders", name="B", members=members, membership=PATIENT) as b:
                assert str(b.view) == "View 2: A, B"
                transport: Any = b.stats()["transport"]
                assert transport["dropped"] == 0
                assert waits(b) == []  # who is in waits for none of these

    bounded(main())


class Known:
    """A source that is told where to look."""

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self.registered: list[Member] = []
        self.fails = False

    def register(self, me: Member) -> None:
        if self.fails:
            raise UsageError("the directory is gone")
        self.registered.append(me)

    def candidates(self) -> list[Address]:
        return self.addresses

    def unregister(self) -> None:
        self.registered.append(self.registered[-1])


def test_two_groups_of_one_name_become_one() -> None:
    async def main() -> None:
        sources = [Known(), Known(), Known()]
        async with (
            join("orders", name="A", discovery=sources[0]) as a,
            join("orders", name="B", discovery=sources[1]) as b,
        ):
            sources[2].addresses.append(b.me.address)
            async with join("orders", name="C", discovery=sources[2]) as c:
                assert (len(a.view), len(b.view), len(c.view)) == (1, 2, 2)
                was = a.me
                sources[0].addresses.append(c.me.address)
                _, merged = await told(a, ViewInstalled, ViewInstalled)
                assert isinstance(merged, ViewInstalled)
                assert [member.name for member in merged.view] == ["B", "C", "A"]
                parts = [[member.name for member in part] for part in merged.parts]
                assert parts == [["B", "C"], ["A"]]
                assert a.me == was
                await a.send(b"from the other side")
                assert await read(c, 1) == [("A", b"from the other side")]

    bounded(main())


# Being left out, and coming back


def names(view: object) -> list[str]:
    assert isinstance(view, ViewInstalled)
    return [member.name for member in view.view]


def test_who_is_left_out_by_mistake_comes_back_as_it_is() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        was = b.me
        await b.send(b"before")
        for group in (a, b, c):
            assert await read(group, 1) == [("B", b"before")]
        await b.flush()
        exclude(was, by=a)
        alone, back = await told(b, ViewInstalled, ViewInstalled)
        assert names(alone) == ["B"]
        assert names(back) == ["A", "C", "B"]
        assert b.me == was
        assert b.view == a.view == c.view
        await b.send(b"after")
        await a.send(b"welcome back")
        expected = {("B", b"after"), ("A", b"welcome back")}
        for group in (a, b, c):
            assert set(await read(group, 2)) == expected

    with_members(3)(exchange)


def test_who_waits_to_send_goes_on_without_the_member_that_held_it_up() -> None:
    async def exchange(a: Group, b: Group) -> None:
        sending = asyncio.create_task(b.send_many(numbered("B", 20)))
        own = asyncio.create_task(read(b, 20))
        await until(lambda: any("limited by A" in reason for reason in b.explain()))
        exclude(a.me, by=b)
        await sending
        assert await own == [("B", payload) for payload in numbered("B", 20)]
        # A has what was sent in the view of both.
        assert await read(a, 8) == [("B", payload) for payload in numbered("B", 20)[:8]]

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


def test_a_send_that_is_cancelled_while_it_waits_sends_nothing() -> None:
    async def exchange(a: Group, b: Group) -> None:
        assert b.try_send(b"fills the window")
        sending = asyncio.create_task(b.send(b"no room"))
        await until(lambda: any("blocked" in reason for reason in b.explain()))
        await until(lambda: a._driver.node.has_ready)
        exclude(b.me, by=a)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await until(lambda: len(b.view) == 1)
        await until(lambda: len(b.view) == 2)
        assert await read(b, 1) == [("B", b"fills the window")]
        await b.send(b"the second")
        assert ("B", b"the second") in await read(a, 2)

    with_members(2, multicast=MulticastConfig(capacity=1))(exchange)


def test_recording_goes_on_across_an_exclusion(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs ringcast[spark]")
    from ringcast.trace.segments import Segment, segment_paths

    async def exchange(a: Group, b: Group) -> None:
        for payload in (b"before", b"after"):
            await b.send(payload)
            assert await read(a, 1) == await read(b, 1) == [("B", payload)]
            await b.flush()
            if payload == b"before":
                exclude(b.me, by=a)
                await until(lambda: len(b.view) == 1)
                await until(lambda: len(b.view) == 2)

    per_member: list[dict[str, Any]] = [{}, {"record": tmp_path / "trace"}]
    with_members(2, per_member=per_member)(exchange)
    sent: list[int] = []
    for path in segment_paths(tmp_path / "trace"):
        with Segment(path) as segment:
            sent += [row.seqno for row in segment.rows() if row.event == "send"]
    assert sorted(sent) == [1, 2]


# Leaving


def test_who_leaves_is_missed_at_once_and_nobody_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def exchange(a: Group, b: Group) -> None:
        async with join("test", name="C", members=[str(b.me.address)]) as c:
            await c.send(b"bye")
            reading = [asyncio.create_task(read(group, 1)) for group in (a, b)]
        assert [task.result() for task in reading] == [[("C", b"bye")]] * 2
        for group in (a, b):
            view = await group.wait_for_view(lambda view: len(view) == 2)
            assert str(view) == "View 4: A, B"
        with pytest.raises(GroupClosed, match="left"):
            await c.send(b"too late")

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(2)(exchange)
    assert caplog.messages == []


def test_the_coordinator_may_leave_too() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        await a._presence.leave(DEADLINE_S)
        for group in (b, c):
            view = await group.wait_for_view(lambda view: len(view) == 2)
            assert [member.name for member in view] == ["B", "C"]

    with_members(3)(exchange)


def test_all_may_leave_at_once() -> None:
    patience_s = 10.0

    async def exchange(*groups: Group) -> None:
        started = time.monotonic()
        await asyncio.gather(*(group._presence.leave(patience_s) for group in groups))
        assert time.monotonic() - started < patience_s / 2

    with_members(3, membership=replace(PATIENT, leave_timeout_s=patience_s))(exchange)


def test_who_sends_while_the_block_ends_is_told() -> None:
    async def exchange(a: Group) -> None:
        async with join("test", name="B", members=[str(a.me.address)], multicast=one_slot) as b:
            assert b.try_send(b"fills the window")
            sending = asyncio.create_task(b.send(b"never"))
            await until(lambda: any("blocked" in reason for reason in b.explain()))
            reading = asyncio.create_task(read(a, 1))
        with pytest.raises(GroupClosed, match="leaving"):
            await sending
        assert await reading == [("B", b"fills the window")]

    one_slot = MulticastConfig(capacity=1)
    with_members(1, multicast=one_slot)(exchange)


@pytest.mark.parametrize("victim", ["the coordinator", "everybody else"])
def test_leaving_does_not_wait_for_the_dead(victim: str) -> None:
    patience_s = 10.0

    async def exchange(a: Group, b: Group) -> None:
        patient = replace(PATIENT, leave_timeout_s=patience_s)
        address = str(a.me.address)
        async with join("test", name="C", members=[address], membership=patient) as c:
            await c.send(b"not taken by all")
            vanish(a)
            if victim == "everybody else":
                vanish(b)
            else:
                reading = asyncio.create_task(read(b, 1))
            started = time.monotonic()
        assert time.monotonic() - started < patience_s / 2
        if victim == "the coordinator":
            assert await reading == [("C", b"not taken by all")]

    with_members(2)(exchange)


def test_leaving_does_not_wait_for_readers(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group) -> None:
        patient = replace(PATIENT, leave_timeout_s=60.0)
        async with join("test", name="B", members=[str(a.me.address)], membership=patient) as b:
            await b.send(b"A reads this later")
            started = time.monotonic()
        assert time.monotonic() - started < 2.0
        await a.wait_for_view(lambda view: len(view) == 1)
        assert await read(a, 1) == [("B", b"A reads this later")]

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(1)(exchange)
    assert caplog.messages == []


def test_leaving_takes_no_longer_than_allowed(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(a: Group) -> None:
        hasty = replace(PATIENT, leave_timeout_s=0.1)
        small = MulticastConfig(capacity=4, datagram_bytes=1000)
        options = {"members": [str(a.me.address)], "membership": hasty, "multicast": small}
        async with join("test", name="B", **options) as b:
            await b.send(bytes(100_000))  # of which most finds no room: A never reads
            started = time.monotonic()
        assert 0.07 < time.monotonic() - started < 2.0  # a quarter of it is for the goodbye
        view = await a.wait_for_view(lambda view: len(view) == 1)  # and yet it is missed
        assert [member.name for member in view] == ["A"]

    with caplog.at_level(logging.WARNING, "ringcast"):
        with_members(1)(exchange)
    (text,) = caplog.messages
    assert text.startswith("B leaves before everybody has delivered its messages: ")
    assert text.endswith(" bytes of a large message")


# Real processes


def test_processes_that_start_at_the_same_instant_make_one_group() -> None:
    program = (
        "import asyncio, sys, ringcast\n"
        "async def main():\n"
        "    async with ringcast.join('instant', name=sys.argv[1]) as group:\n"
        "        view = await group.wait_for_view(lambda view: len(view) == 3)\n"
        "        print(*sorted(member.name for member in view))\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", "-c", program, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "a b c\n"
    finally:
        for process in processes:
            process.communicate("")
    assert [process.returncode for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("transport", ["udp", pytest.param("tcp", marks=pytest.mark.proof)])
def test_a_process_that_was_stopped_is_left_out_and_comes_back(transport: str) -> None:
    soon = {"heartbeat_s": 0.2, "suspect_after_s": 1.0, "verify_s": 0.3}
    with Cluster(members=3, membership=soon, transport=transport) as cluster:
        before = cluster.await_view()[1]["incarnation"]
        stopped = cluster.processes[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for at in (0, 2):
                tell(cluster.processes[at], {"op": "view", "names": ["m0", "m2"]})
            assert [hear(cluster.processes[at])["view"] for at in (0, 2)] == [["m0", "m2"]] * 2
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        # It is asked last: until it hears of the others' view it is in the old one.
        for at in (0, 2, 1):
            tell(cluster.processes[at], {"op": "view", "names": ["m0", "m1", "m2"]})
            answer = hear(cluster.processes[at])
            assert answer["view"] == ["m0", "m2", "m1"]
        assert answer["incarnation"] == before


def test_a_process_that_restarts_on_its_port_is_let_in_again() -> None:
    with Cluster(members=2) as cluster:
        first = cluster.enter(cluster.start())
        cluster.kill(2)
        second = cluster.enter(cluster.start(listen=first["listen"]))
        assert second["listen"] == first["listen"]
        assert [answer["view"] for answer in cluster.await_view()] == [["m0", "m1", "m3"]] * 3
