"""Groups in virtual time that record everything: messages to one member, requests, blocked sends
and states are judged, and nothing is found that is not wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from seeded import seeds

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.config import MulticastConfig, UnicastConfig
from ringcast.model import SYSTEM_EPOCH
from ringcast.spark.audit import audit
from ringcast.spark.report import NEED_FULL
from ringcast.testing import cluster
from ringcast.trace import rows as trace
from ringcast.trace.segments import Segment, segment_paths, write_segment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import ringcast
    from ringcast.spark.report import Verdict
    from ringcast.testing import Cluster
    from ringcast.trace.footer import Recording
    from ringcast.trace.rows import Row

SMALL = {
    "multicast": MulticastConfig(capacity=16),
    "unicast": UnicastConfig(capacity=8, xmit_interval_s=0.1, expiry_s=1.0, close_s=0.5),
}
"""Windows that fill, and connections that end, within a short run."""


async def read(group: ringcast.Group) -> None:
    async for _ in group:
        pass


async def answer(group: ringcast.Group) -> None:
    await group.serve(lambda request: request.payload)


async def talk(group: ringcast.Group) -> None:
    others = [member for member in group.view if member != group.me]
    for at in range(40):
        for other in others:
            await group.send(b"%d" % at * (at % 7), to=other)
            if at % 5 == 0:
                await group.send(bytes(9000), to=other)
            if at % 4 == 0:
                assert await group.request(other, b"%d" % at) == b"%d" % at
        await group.send_many([b"all"] * 5)
        await group.send(b"self", to=group.me)
        if at == 20:
            await asyncio.sleep(3)  # connections expire
    await group.flush()
    await asyncio.sleep(3)


def record(directory: Path, seed: int, **options: Any) -> None:
    options = {**SMALL, "loss": 0.03, **options}
    with cluster(3, seed=seed, record=directory, record_level="full", **options) as c:
        run(c)


def run(c: Cluster) -> None:
    c.start(read)
    c.start(answer)
    for task in [member.start(talk) for member in c.members]:
        c.run(task)
    for member in c.members:
        c.run(member.leave())


def rows_in(directory: Path) -> Iterator[Row]:
    for path in segment_paths(directory):
        with Segment(path) as segment:
            yield from segment.rows()


def judged(directory: Path) -> dict[str, Verdict]:
    report = audit(None, directory)
    alarms = [verdict for verdict in report.verdicts if verdict.violation_count]
    assert alarms == [], [(each.id, [found.text for found in each.violations]) for each in alarms]
    assert report.exit_status == 0, report.summary
    return {verdict.id: verdict for verdict in report.verdicts}


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_all_that_members_do_is_judged_and_nothing_is_found(tmp_path: Path, seed: int) -> None:
    record(tmp_path, seed)
    found = judged(tmp_path)
    idle = {id for id in NEED_FULL if not found[id].premises}
    # Nobody lost a window, gave anybody up, or came for a state. Repairs depend on what is lost.
    assert idle <= {
        *("T2", "S7", "S8", "S-L5", "Y3", "Y4", "Y5", "Y-L2", "Y-L3"),
        *("N-L3", "N10", "S3"),
    }
    assert {"S1", "S2", "S4", "S5", "S6", "S9", "S-L3", "S-L4", "S-L6", "Y1", "N-L5"} <= {
        id for id in NEED_FULL if found[id].status == "ok" and found[id].premises
    }


def test_messages_to_one_member_requests_and_blocked_sends_are_rows(tmp_path: Path) -> None:
    record(tmp_path, 1)
    rows = list(rows_in(tmp_path))
    count = Counter(row.event for row in rows)
    assert count[trace.SEND_BLOCK] > 0
    assert count[trace.SEND_BLOCK] >= count[trace.SEND_UNBLOCK] > 0
    for is_system in (False, True):
        here = [row for row in rows if row.epoch and (row.epoch >= SYSTEM_EPOCH) is is_system]
        taken = sum(
            row.seqno2 - row.seqno + 1 for row in here if row.event == trace.UNICAST_DELIVER
        )
        sent = sum(row.seqno2 - row.seqno + 1 for row in here if row.event == trace.UNICAST_SEND)
        own = [row for row in here if row.peer_key == row.key]
        assert taken == sent > 60
        assert bool(own) is not is_system
        kinds = {row.kind for row in here if row.event in (trace.TX, trace.RX)}
        assert {"udata", "uack"} <= kinds
        assert {row.kind for row in here if row.event == trace.CONN} == {"S", "R"}
        assert any(row.again for row in here if row.event == trace.TX)


def test_what_is_not_answered_in_time_is_found(tmp_path: Path) -> None:
    """As if the first acks of each member had never left: later ones come too late for those."""
    record(tmp_path / "run", 2, loss=0.0)
    late = tmp_path / "late"
    late.mkdir()
    of_member: dict[tuple[str, int], list[Row]] = {}
    recordings: dict[tuple[str, int], Recording] = {}
    for path in segment_paths(tmp_path / "run"):
        with Segment(path) as segment:
            recordings[segment.info.node, segment.info.inc] = segment.info.recording
            of_member.setdefault((segment.info.node, segment.info.inc), []).extend(segment.rows())
    for member, rows in of_member.items():
        acks = [row.idx for row in rows if row.event == trace.TX and row.kind == "uack"]
        first = set(acks[: len(acks) // 3])
        kept = [row for row in rows if row.idx not in first]
        kept = [row._replace(idx=at) for at, row in enumerate(kept)]
        write_segment(late, recordings[member], kept, is_last=True)
    found = {verdict.id: verdict for verdict in audit(None, late).verdicts}
    assert found["S-L3"].violation_count


def test_a_machine_that_is_late_raises_no_alarm(tmp_path: Path) -> None:
    with cluster(3, seed=5, record=tmp_path, record_level="full", **SMALL) as c:
        c.members[0].delay_timers(0.05)
        run(c)
    judged(tmp_path)
    late = [row for row in rows_in(tmp_path) if row.event == trace.LATE]
    assert {row.node for row in late} == {c.members[0].name}
    assert max(row.size for row in late) == pytest.approx(50e6, rel=0.1)


def test_syncs_states_and_who_is_killed_are_judged_too(tmp_path: Path) -> None:
    """An operator makes a member ask where a stream stands; another one is killed, and one comes
    for the state."""

    def give() -> Iterator[bytes]:
        return iter([b"state"] * 20)

    async def take(chunks: AsyncIterator[bytes]) -> None:
        async for _ in chunks:
            pass

    async def chat(group: ringcast.Group) -> None:
        while True:
            for member in group.view:
                if member.name in ("m0", "m1"):
                    await group.send(b"to one", to=member)
            await group.send(b"to all")
            await asyncio.sleep(0.01)

    options = {**SMALL, "record": tmp_path, "record_level": "full"}
    options |= {"give_state": give, "take_state": take}
    with cluster(0, seed=9, loss=0.1) as c:
        for name in ("m0", "m1", "m2"):
            c.run(c.join(name, **options)).start(read)
        a, b, d = c.members
        chats = [member.start(chat) for member in (a, b)]
        for _ in range(3):
            c.run(asyncio.sleep(0.5))
            b.group.sync(a.group.me)
        d.crash()
        late = c.run(c.join("late", **options))
        late.start(read)
        c.run(asyncio.sleep(5))
        for task in chats:
            task.cancel()
        for member in (a, b, late):
            c.run(member.leave())
    found = judged(tmp_path)
    for id in ("Y4", "Y5", "Y-L2", "Y-L3", "Y3", "T2", "S7"):
        assert found[id].premises > 0, id
