"""Publishers that are killed, cut off and started again: each staged message once at every member.

In virtual time, with real staging directories.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import pytest
from seeded import seeds

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast import MembershipConfig, MulticastConfig
from ringcast.aio.published import PUBLISHERS_MAX, TO_ONE, Offset, Published, dump, header_of, parse
from ringcast.aio.publisher import KEEP_S, Publisher, bearing, check_publisher
from ringcast.aio.requests import Request
from ringcast.errors import UsageError
from ringcast.events import Delivered
from ringcast.model import Address, Headed, Member, Run, Stream, ViewId
from ringcast.testing import cluster
from ringcast.trace import staging as staging_module
from ringcast.trace.staging import Staging, Stretch
from ringcast.wire.headers import encode_headers, split_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ringcast import Group, Message
    from ringcast.testing import Cluster, Process

SOON: dict[str, Any] = {
    "membership": MembershipConfig(heartbeat_s=0.05, suspect_after_s=0.3, verify_s=0.1),
    "multicast": MulticastConfig(capacity=8),
}
LARGE = b"x" * 200_000


def stage(staging: Staging, batches: int, rows: int = 20) -> list[bytes]:
    """Batches of two partitions, and their messages in order."""
    staging.claim("orders", "a stream")
    found: list[bytes] = []
    for batch in range(batches):
        files = []
        for partition in range(2):
            mine = [b"%d.%d.%d" % (batch, partition, row) for row in range(rows)]
            mine[3] += LARGE
            staged: list[bytes] = list(mine)
            staged[1] = Headed(encode_headers({"k": "v"}, "c") + mine[1])
            files.append(staging.stage("orders", [Stretch(staged)])[0])
            found += mine
        assert staging.commit(batch, files)
    return found


class Reader:
    """What each member has delivered; or has in its state, if `is_state`."""

    def __init__(self, pause_s: float = 0.0, *, is_state: bool = False) -> None:
        self.got: dict[str, list[bytes]] = defaultdict(list)
        self.is_state = is_state
        self._pause_s = pause_s

    async def read(self, group: Group) -> None:
        async for message in group:
            self.got[group.me.name].append(message.payload)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)


def short(messages: list[bytes]) -> list[bytes]:
    """So that a difference can be read."""
    return [message.replace(LARGE, b" large") for message in messages]


def stage_many(staging: Staging, rows: int) -> list[bytes]:
    """One batch of small messages."""
    staging.claim("orders", "a stream")
    found = [b"%d" % row for row in range(rows)]
    assert staging.commit(0, [staging.stage("orders", [Stretch(found)])[0]])
    return found


async def until_done(staging: Staging, last: int) -> None:
    while staging.progress().through < last:  # noqa: ASYNC110 - it may be another process
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)


def publish(process: Process, staging: Staging, keep_s: float = KEEP_S) -> None:
    process.start(lambda group: Publisher(staging, group, keep_s=keep_s).run())


def test_a_batch_arrives_once_in_order_and_goes_from_the_disk(tmp_path: Path) -> None:
    staging, reader = Staging(tmp_path), Reader()
    expected = stage(staging, 2)

    async def scenario(c: Cluster) -> None:
        publish(await c.join("p", receive=False, **SOON), staging, keep_s=0.0)
        await until_done(staging, 1)

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=100)
    assert reader.got == {"m0": expected, "m1": expected}
    assert list(staging.files.iterdir()) == []
    assert list(tmp_path.glob("batch-*")) == []
    assert not staging.has_batches


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_publisher_that_dies_is_followed_by_one_that_goes_on(
    tmp_path: Path, seed: int, *, silently: bool
) -> None:
    """Again and again, in the middle of sending, of asking, and before it has begun."""
    staging, reader = Staging(tmp_path), Reader(0.01)
    expected = stage(staging, 3)

    async def scenario(c: Cluster) -> None:
        for life in range(6):
            process = await c.join(f"p{life}", receive=False, **SOON)
            publish(process, staging)
            await asyncio.sleep([0.0, 0.03, 0.4, 0.21, 0.9, 0.07][(life + seed) % 6])
            process.crash(silently=silently)
        publish(await c.join("last", receive=False, **SOON), staging)
        await until_done(staging, 2)

    with cluster(3, loss=0.02, seed=seed, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=1000)
    for name in ("m0", "m1", "m2"):
        assert short(reader.got[name]) == short(expected), name


@pytest.mark.parametrize("after_s", [0.1, 0.35, 0.6])
def test_a_publisher_that_was_cut_off_goes_back_to_what_the_others_have(
    tmp_path: Path, after_s: float
) -> None:
    """What it sent when nobody heard it is sent again, before what comes behind it."""
    staging, reader = Staging(tmp_path), Reader(0.02)
    expected = stage(staging, 2)

    async def scenario(c: Cluster) -> None:
        process = await c.join("p", receive=False, **SOON)
        publish(process, staging)
        await asyncio.sleep(after_s)
        for _ in range(2):
            c.partition(c.members[:2], [process])
            await asyncio.sleep(3)
            c.heal()
            await asyncio.sleep(1.5)
        await until_done(staging, 1)

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=1000)
    for name in ("m0", "m1"):
        assert short(reader.got[name]) == short(expected), name


def keeper(mine: list[bytes]) -> dict[str, Any]:
    """Options of a member whose state is what it has delivered."""

    async def give() -> AsyncIterator[bytes]:
        for message in list(mine):
            yield b"%d:" % len(message) + message

    async def take(chunks: AsyncIterator[bytes]) -> None:
        text = b"".join([chunk async for chunk in chunks])
        mine.clear()
        at = 0
        while at < len(text):
            start = text.index(b":", at) + 1
            at = start + int(text[at : start - 1])
            mine.append(text[start:at])

    return {"give_state": give, "take_state": take}


def test_who_has_the_state_knows_how_far_publishers_are_in_it(tmp_path: Path) -> None:
    """The only member that was there leaves; the publisher died, and comes back to one that has its
    messages in a state alone."""
    staging, reader = Staging(tmp_path), Reader(0.02)
    expected = stage(staging, 2, rows=10)

    def options(name: str) -> dict[str, Any]:
        return keeper(reader.got[name]) | SOON

    async def scenario(c: Cluster) -> None:
        (old,) = c.members
        old.start(reader.read)
        first = await c.join("p1", receive=False, **options("p1"))
        publish(first, staging)
        while len(reader.got["m0"]) < 15:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first.crash()
        young = await c.join("young", **options("young"))
        young.start(reader.read)
        await asyncio.sleep(1)
        await old.leave()
        assert 0 < len(reader.got["young"]) < len(expected)
        publish(await c.join("p2", receive=False, **options("p2")), staging)
        await until_done(staging, 1)

    with cluster(1, **options("m0")) as c:
        c.run(scenario(c), limit_s=1000)
    assert short(reader.got["young"]) == short(expected)


PATIENT = MembershipConfig(suspect_after_s=600.0)
LATE = [("m0", 0.7), ("m0", 2.0), ("m1", 0.7), ("m1", 2.0)]


async def die_while_one_sleeps(
    c: Cluster, staging: Staging, reader: Reader, late: str, stall_s: float
) -> None:
    """A publisher dies when m1 holds far more of it than m0, and one of the two is not heard in the
    view change: each ends the view alone, with what it holds. Another publisher follows."""
    for name, few in (("m0", {"multicast": MulticastConfig(capacity=16)}), ("m1", {})):
        state = keeper(reader.got[name]) if reader.is_state else {}
        (await c.join(name, membership=PATIENT, **few, **state)).start(reader.read)
    hooks = keeper([]) if reader.is_state else {}
    first = await c.join("p1", receive=False, **hooks)
    publish(first, staging)
    while len(reader.got["m1"]) < 1500:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    sleeper = c.members[late == "m1"]
    sleeper.pause()
    first.crash()
    await asyncio.sleep(stall_s)
    sleeper.resume()
    if reader.is_state:
        await asyncio.sleep(5)  # they are together again, and have the state of one of them
    publish(await c.join("p2", receive=False, **hooks), staging)
    await until_done(staging, 0)
    await asyncio.sleep(5)


@pytest.mark.parametrize(("late", "stall_s"), LATE)
def test_who_was_not_heard_in_a_view_change_gets_what_it_missed(
    tmp_path: Path, late: str, stall_s: float
) -> None:
    """Also if all was published before it came back."""
    staging, reader = Staging(tmp_path), Reader()
    expected = stage_many(staging, 7000)
    with cluster(0) as c:
        c.run(die_while_one_sleeps(c, staging, reader, late, stall_s), limit_s=1000)
        repeated = [member.group._published.repeated for member in c.members[:2]]
    assert reader.got == {"m0": expected, "m1": expected}
    assert any(repeated)  # one had more than the other


@pytest.mark.parametrize(("late", "stall_s"), LATE)
def test_who_takes_the_state_of_another_part_gets_what_is_not_in_it(
    tmp_path: Path, late: str, stall_s: float
) -> None:
    """It had more than that."""
    staging, reader = Staging(tmp_path), Reader(is_state=True)
    expected = stage_many(staging, 7000)
    with cluster(0) as c:
        c.run(die_while_one_sleeps(c, staging, reader, late, stall_s), limit_s=1000)
    assert reader.got == {"m0": expected, "m1": expected}


def test_who_comes_back_too_late_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    staging, reader = Staging(tmp_path), Reader()
    expected = stage(staging, 1)

    def add(batch: int) -> bytes:
        message = b"%d" % batch
        assert staging.commit(batch, [staging.stage("orders", [Stretch([message])])[0]])
        return message

    async def scenario(c: Cluster) -> None:
        process = await c.join("p", receive=False, **SOON)
        publish(process, staging, keep_s=0.0)
        await until_done(staging, 0)
        assert reader.got["m1"] == expected
        c.partition(c.members[1:2])
        await c.members[0].group.wait_for_view(lambda view: len(view) == 2)
        add(1)
        await until_done(staging, 1)
        c.heal()
        await c.members[0].group.wait_for_view(lambda view: len(view) == 3)
        expected.append(add(2))
        await until_done(staging, 2)

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=1000)
    assert short(reader.got["m1"]) == short(expected)
    late = [text for text in caplog.messages if "batches up to 1 are kept no more" in text]
    assert len(late) == 1
    assert late[0].startswith("m1 has come to batch 0 of orders, ")


def test_a_directory_that_was_begun_anew_is_told(tmp_path: Path) -> None:
    """Members would take its batches for those that they have had."""
    old, new, reader = Staging(tmp_path / "old"), Staging(tmp_path / "new"), Reader()
    stage(old, 3)
    stage(new, 1)

    async def scenario(c: Cluster) -> None:
        process = await c.join("p1", receive=False, **SOON)
        publish(process, old)
        await until_done(old, 2)
        process.crash()
        publish(await c.join("p2", receive=False, **SOON), new)
        await asyncio.sleep(10)

    with cluster(1, **SOON) as c:
        c.members[0].start(reader.read)
        with pytest.raises(UsageError, match=r"had batch 2 of publisher 'orders', and .*new ends"):
            c.run(scenario(c), limit_s=1000)


WAYS = [
    *[Stretch([], stream) for stream in Stream],
    Stretch([], Stream.FIFO, "m1"),
    Stretch([], Stream.FIFO, "nobody"),
]


def key_of(message: Message) -> str:
    return "to" if message.to_me else message.guarantee


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_each_row_goes_its_way_once_whoever_dies(tmp_path: Path, seed: int) -> None:
    """Plain ones that some members had of a dead publisher, and others had not, among them."""
    staging, got = Staging(tmp_path), defaultdict[tuple[str, str], list[bytes]](list)
    staging.claim("orders", "a stream")
    expected = defaultdict[tuple[str, str], list[bytes]](list)
    members = ("m0", "m1", "m2")
    for batch in range(3):
        stretches = []
        for at in range(40):
            for way in WAYS:
                messages = [b"%d.%d.%d" % (batch, at, row) for row in range(3)]
                stretches.append(way._replace(messages=messages))
                stream = "to" if way.to else way.stream.name.lower()
                for name in [way.to] if way.to else members:
                    expected[name, stream] += messages
        assert staging.commit(batch, [staging.stage("orders", stretches)[0]])
    del expected["nobody", "to"]

    async def read(group: Group) -> None:
        async for message in group:
            got[group.me.name, key_of(message)].append(message.payload)
            await asyncio.sleep(0.001 * (1 + int(group.me.name[1:])))

    async def scenario(c: Cluster) -> None:
        for life in range(5):
            process = await c.join(f"p{life}", receive=False, **SOON)
            publish(process, staging)
            await asyncio.sleep([0.15, 0.4, 0.9, 0.25, 0.6][(life + seed) % 5])
            process.crash()
        last = await c.join("last", receive=False, **SOON)
        publisher = Publisher(staging, last.group)
        last.start(lambda _: publisher.run())
        await until_done(staging, 2)
        assert publisher.unsent == 120 * publisher.batches > 0

    with cluster(3, loss=0.05, seed=seed, **SOON) as c:
        for member in c.members:
            member.start(read)
        c.run(scenario(c), limit_s=1000)
    assert got == expected


def test_rows_for_nobody_are_counted_once_though_their_batch_is_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staging, reader = Staging(tmp_path), Reader()
    staging.claim("orders", "a stream")

    def commit(batch: int) -> None:
        stretches = [Stretch([b"x"] * 3, Stream.FIFO, "nobody"), Stretch([b"%d" % batch])]
        staging.commit(batch, [staging.stage("orders", stretches)[0]])

    async def scenario(c: Cluster) -> Publisher:
        process = await c.join("p", receive=False, **SOON)
        publisher = Publisher(staging, process.group)
        process.start(lambda _: publisher.run())
        commit(0)
        await until_done(staging, 0)
        c.partition([c.members[0], process], [c.members[1]])
        await asyncio.sleep(3)
        commit(1)
        await until_done(staging, 1)
        c.heal()
        await asyncio.sleep(5)
        return publisher

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        publisher = c.run(scenario(c), limit_s=1000)
    assert reader.got == {"m0": [b"0", b"1"], "m1": [b"0", b"1"]}
    assert (publisher.unsent, publisher.batches) == (6, 2)
    assert sum("3 messages of batch 1 not sent" in text for text in caplog.messages) == 1


def test_a_second_publisher_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    """Should both work in one directory, whatever its lock is worth."""
    staging, reader = Staging(tmp_path), Reader(0.02)
    expected = stage(staging, 2)

    async def scenario(c: Cluster) -> None:
        first = await c.join("p1", receive=False, **SOON)
        publish(first, staging)
        publish(await c.join("p2", receive=False, **SOON), staging)
        await asyncio.sleep(1)
        first.crash()
        await until_done(staging, 1)

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=1000)
    for name in ("m0", "m1"):
        assert short(reader.got[name]) == short(expected), name


def test_who_has_not_read_the_view_does_not_answer_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staging, reader = Staging(tmp_path), Reader()
    expected = stage(staging, 1)

    async def scenario(c: Cluster) -> None:
        process = await c.join("p1", receive=False, **SOON)
        publish(process, staging)
        await asyncio.sleep(1)
        process.crash()
        publish(await c.join("p2", receive=False, **SOON), staging)
        await asyncio.sleep(8)
        c.members[0].start(reader.read)
        await until_done(staging, 0)

    with cluster(1, **SOON) as c:
        c.run(scenario(c), limit_s=1000)
    assert short(reader.got["m0"]) == short(expected)
    assert any("m0 has not read up to View" in text for text in caplog.messages)


def test_a_large_message_that_goes_on_in_another_view_is_waited_for(tmp_path: Path) -> None:
    staging, reader = Staging(tmp_path), Reader()
    staging.claim("orders", "a stream")
    expected = [bytes([65 + n]) + 5 * LARGE for n in range(4)]
    assert staging.commit(0, [staging.stage("orders", [Stretch(expected)])[0]])

    async def late(group: Group) -> None:
        await asyncio.sleep(2)
        await reader.read(group)

    async def scenario(c: Cluster) -> None:
        publish(await c.join("p", receive=False, **SOON), staging)
        await asyncio.sleep(0.3)
        for number in range(3):
            await c.join(f"n{number}", receive=False, **SOON)
            await asyncio.sleep(0.6)
        await until_done(staging, 0)

    with cluster(1, **SOON) as c:
        c.members[0].start(late)
        c.run(scenario(c), limit_s=1000)
    assert [message[:1] for message in reader.got["m0"]] == [b"A", b"B", b"C", b"D"]
    assert reader.got["m0"] == expected


# The parts


def said(offset: Offset, stream: Stream = Stream.UNIFORM, epoch: int = 0) -> Delivered:
    """Three messages of one publisher, up to this offset."""
    first = offset.number - 2
    payloads: list[bytes] = [
        bearing(header_of("a b", offset._replace(number=number)), b"%d" % number)
        for number in range(first, first + 3)
    ]
    me = Member(Address("127.0.0.1", 7), 1, "a")
    return Delivered(me, Run(stream, 100 + first, payloads), ViewId(me, 1), epoch, 50)


def test_a_member_passes_over_what_it_has_had(caplog: pytest.LogCaptureFixture) -> None:
    known = Published()
    whole = said(Offset(1, 2, 5))
    assert known.take(whole) is whole
    assert known.take(said(Offset(1, 2, 4))) is None
    rest = known.take(said(Offset(1, 2, 6)))
    assert rest is not None
    assert [split_headers(message)[1] for message in rest.run.payloads] == [b"6"]
    assert (rest.run.first, rest.position) == (106, 52)
    assert known.repeated == 5
    # Each stream has offsets of its own.
    assert known.take(said(Offset(1, 2, 3), Stream.FIFO)) is not None
    assert known.take(said(Offset(0, 2, 3), Stream.FIFO, epoch=9)) is not None
    offsets = {"uniform": Offset(1, 2, 6), "fifo": Offset(1, 2, 3), TO_ONE: Offset(0, 2, 3)}
    assert known.offsets == {"a b": offsets}
    for text in (encode_headers({"k": "v"}), b"\x05no", encode_headers(None, published="1.x p")):
        odd = replace(whole, run=Run(Stream.UNIFORM, 1, [Headed(text + b"x")]))
        assert known.take(odd) is odd
    assert parse(dump(known.offsets)) == known.offsets == {"a b": offsets}
    other = Published()
    other.load(b"9.9.9 uniform a b\n1.2.3 uniform c\n")
    other.load(dump(known.offsets) + b"nonsense\n1.2.3 odd p\n\xff\n")
    assert other.offsets == known.offsets  # also where they were higher
    for number in range(PUBLISHERS_MAX):
        other._note(str(number), {"uniform": Offset(1, 1, 1)})
    assert len(other.offsets) == PUBLISHERS_MAX
    assert "a b" not in other.offsets
    assert "a b is not one any more" in caplog.text


def test_an_inquiry_waits_for_its_view_and_for_the_state() -> None:
    is_behind = True
    known = Published(lambda: is_behind)
    said: list[bytes] = []

    def ask(text: bytes) -> None:
        member = Member(Address("127.0.0.1", 7), 1, "a")
        known.asked(Request(member, text, lambda answer, is_refused: said.append(answer)))

    ask(b"3\n4.0.7 uniform p\n")
    known.on_view(3)
    assert said == []
    is_behind = False
    known.settle()
    assert said == [b"4.0.7 uniform p\n"]
    ask(b"2\n5.0.7 uniform p\n")  # it has moved on: that may not be about the state of now
    assert said[1:] == [b"4.0.7 uniform p\n"]
    ask(b"x\n")
    assert said[2:] == [b"an inquiry names a view"]


def test_a_message_bears_its_offset_beside_its_own_headers() -> None:
    message = bearing("1.0.7 p", Headed(encode_headers({"k": "v"}, "c") + b"x"))
    assert split_headers(message) == ({"k": "v", "channel": "c", "published": "1.0.7 p"}, b"x")
    with pytest.raises(UsageError, match="ringcast publish says it"):
        encode_headers({"published": "1.0.7 p"})
    for name in ("", "x" * 65, "a\nb", "\ud800"):
        with pytest.raises(UsageError, match="publisherId is 1 to 64 bytes of printable text"):
            check_publisher(name)


def test_who_asks_what_waits_misses_no_batch_that_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, publishing = Staging(tmp_path), Staging(tmp_path)
    staging.claim("p", "a stream")
    for number in range(2):
        staging.commit(number, [staging.stage("p", [Stretch([b"x"])])[0]])
    batch = publishing.next_batch(0)
    assert batch is not None
    publishing.finish(batch)
    listed = staging._manifests()
    monkeypatch.setattr(staging, "_manifests", lambda: listed)
    publishing.forget(0.0)  # behind the list
    (left,) = staging.files.iterdir()
    assert staging.waiting_bytes == left.stat().st_size


def test_what_no_batch_has_delays_nobody_and_goes_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of tasks and drivers that were killed; the publisher goes on for days."""
    monkeypatch.setattr(staging_module, "SWEEP_S", 0.0)
    staging = Staging(tmp_path)
    staging.claim("p", "a stream")
    kept, left = (staging.files / staging.stage("p", [Stretch([b"x"])])[0] for _ in range(2))
    staging.commit(0, [kept.name])
    assert staging.waiting_bytes == kept.stat().st_size
    lost = left, left.with_suffix(".part"), tmp_path / "batch-000000000001.json.x.staged"
    for hours, is_there in ((23, True), (25, False)):
        for path in (kept, *lost):
            path.touch()
            os.utime(path, (time.time() - 3600 * hours,) * 2)
        staging.forget(1e6)
        assert [path.exists() for path in lost] == [is_there] * 3
        assert kept.exists()


def test_a_batch_that_is_repeated_changes_nothing(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.claim("p", "a stream")
    first, again = (staging.stage("p", [Stretch([text])])[0] for text in (b"first", b"again"))
    assert staging.commit(0, [first])
    assert not staging.commit(0, [again, ""])
    assert [path.name for path in staging.files.iterdir()] == [first]
    batch = staging.next_batch(0)
    assert batch is not None
    assert [*staging.messages(*batch.files)] == [(0, [b"first"], Stream.UNIFORM, "")]
    assert staging.waiting_bytes > 0
    assert staging.finish(batch)
    assert not staging.finish(batch)
    assert staging.waiting_bytes == 0
    staging.forget(100.0)
    assert staging.next_batch(0) == batch  # kept
    assert (staging.gone, staging.last) == (-1, 0)
    staging.forget(0.0)
    assert (staging.gone, staging.last) == (0, 0)
    assert not staging.commit(0, [staging.stage("p", [Stretch([b"late"])])[0]])  # and repeated
    assert list(staging.files.iterdir()) == []
    assert staging.commit(3, [staging.stage("p", [])[0]])
    assert staging.next_batch(1) == (3, ())
    assert (staging.gone, staging.last) == (0, 3)
    with pytest.raises(UsageError, match="batch 1 comes after batch 3"):
        staging.commit(1, [])
    assert staging.commit(None, [])
    with pytest.raises(UsageError, match="is for a stream of publisherId 'p', not for tables of"):
        staging.claim("p", "tables")
    with pytest.raises(UsageError, match="no stream or table was written here yet"):
        Staging(tmp_path / "other").publisher  # noqa: B018


def test_rows_keep_their_headers_and_their_way_on_the_disk(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.claim("p", "a stream")
    messages = [Headed(b"%d" % n) if n % 3 else b"%d" % n for n in range(3000)]
    alone = Stretch([b"alone"], Stream.FIFO, "web-1")
    name, count = staging.stage("p", [Stretch(messages, Stream.TOTAL), alone])
    *found, last = staging.messages(name)
    assert count == 3001
    assert last == (3000, *alone)
    stretches = [stretch for _, stretch, *way in found if way == [Stream.TOTAL, ""]]
    assert [first for first, *_ in found] == [0, *accumulate(map(len, stretches))][:-1]
    restored = [*chain.from_iterable(stretches)]
    assert restored == messages
    assert [*map(type, restored)] == [*map(type, messages)]
