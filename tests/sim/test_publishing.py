"""Publishers that are killed, cut off and started again: each staged message once at every member.

In virtual time, with real staging directories.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast import MembershipConfig, MulticastConfig
from ringcast.aio.published import PUBLISHERS_MAX, Place, Published, header_of, parse
from ringcast.aio.publisher import Publisher, bearing, check_publisher
from ringcast.errors import UsageError
from ringcast.model import Headed
from ringcast.testing import cluster
from ringcast.trace.staging import Staging
from ringcast.wire.headers import encode_headers, split_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ringcast import Group
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
            files.append(staging.stage("orders", staged)[0])
            found += mine
        assert staging.commit(batch, files)
    return found


class Reader:
    """What each member has delivered."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.got: dict[str, list[bytes]] = defaultdict(list)
        self._pause_s = pause_s

    async def read(self, group: Group) -> None:
        async for message in group:
            self.got[group.me.name].append(message.payload)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)


def short(messages: list[bytes]) -> list[bytes]:
    """So that a difference can be read."""
    return [message.replace(LARGE, b" large") for message in messages]


async def until_done(staging: Staging, last: int) -> None:
    while staging.progress().through < last:  # noqa: ASYNC110 - it may be another process
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)


def publish(process: Process, staging: Staging) -> None:
    process.start(lambda group: Publisher(staging, group).run())


def test_a_batch_arrives_once_in_order_and_goes_from_the_disk(tmp_path: Path) -> None:
    staging, reader = Staging(tmp_path), Reader()
    expected = stage(staging, 2)

    async def scenario(c: Cluster) -> None:
        publish(await c.join("p", receive=False, **SOON), staging)
        await until_done(staging, 1)

    with cluster(2, **SOON) as c:
        for member in c.members:
            member.start(reader.read)
        c.run(scenario(c), limit_s=100)
    assert reader.got == {"m0": expected, "m1": expected}
    assert list(staging.files.iterdir()) == []
    assert list(tmp_path.glob("batch-*")) == []
    assert staging.next_batch() is None


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("seed", range(3))
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


def test_who_has_the_state_knows_how_far_publishers_are_in_it(tmp_path: Path) -> None:
    """The only member that was there leaves; the publisher died, and comes back to one that has its
    messages in a state alone."""
    staging = Staging(tmp_path)
    got: dict[str, list[bytes]] = defaultdict(list)
    expected = stage(staging, 2, rows=10)

    def keeper(name: str) -> dict[str, Any]:
        mine = got[name]

        async def give() -> AsyncIterator[bytes]:
            for message in list(mine):
                yield b"%d:" % len(message) + message

        async def take(chunks: AsyncIterator[bytes]) -> None:
            text = b"".join([chunk async for chunk in chunks])
            mine.clear()
            while text:
                size, _, text = text.partition(b":")
                mine.append(text[: int(size)])
                text = text[int(size) :]

        return {"give_state": give, "take_state": take, **SOON}

    async def read(group: Group) -> None:
        async for message in group:
            got[group.me.name].append(message.payload)
            await asyncio.sleep(0.02)

    async def scenario(c: Cluster) -> None:
        (old,) = c.members
        old.start(read)
        first = await c.join("p1", receive=False, **keeper("p1"))
        publish(first, staging)
        while len(got["m0"]) < 15:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first.crash()
        young = await c.join("young", **keeper("young"))
        young.start(read)
        await asyncio.sleep(1)
        await old.leave()
        assert 0 < len(got["young"]) < len(expected)
        publish(await c.join("p2", receive=False, **keeper("p2")), staging)
        await until_done(staging, 1)

    with cluster(1, **keeper("m0")) as c:
        c.run(scenario(c), limit_s=1000)
    assert short(got["young"]) == short(expected)


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
    assert staging.commit(0, [staging.stage("orders", expected)[0]])

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


def test_places_only_rise_and_are_bounded() -> None:
    known = Published()
    for place in (Place(1, 2, 3), Place(1, 1, 9), Place(1, 2, 4)):
        known.delivered(bearing(header_of("a b", place), b"x"))
    known.delivered(bearing(header_of("a b", Place(0, 9, 9)), b"x"))
    assert known.places == {"a b": Place(1, 2, 4)}
    known.delivered(Headed(encode_headers({"k": "v"}) + b"x"))
    known.delivered(Headed(b"\x05no"))
    known.delivered(Headed(encode_headers(None, published="1.2.x p")))
    assert parse(known.dump()) == known.places
    other = Published()
    other.load(known.dump() + b"nonsense\n\xff\n")
    assert other.places == known.places
    for number in range(PUBLISHERS_MAX):
        other.load(f"{header_of(str(number), Place(1, 1, 1))}\n".encode())
    assert len(other.places) == PUBLISHERS_MAX
    assert "a b" not in other.places


def test_a_message_bears_its_place_beside_its_own_headers() -> None:
    message = bearing("1.0.7 p", Headed(encode_headers({"k": "v"}, "c") + b"x"))
    assert split_headers(message) == ({"k": "v", "channel": "c", "published": "1.0.7 p"}, b"x")
    with pytest.raises(UsageError, match="ringcast publish says it"):
        encode_headers({"published": "1.0.7 p"})
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(UsageError, match="publisherId is 1 to 64 bytes of printable text"):
            check_publisher(name)


def test_a_batch_that_is_repeated_changes_nothing(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.claim("p", "a stream")
    first, again = (staging.stage("p", [text])[0] for text in (b"first", b"again"))
    assert staging.commit(0, [first])
    assert not staging.commit(0, [again, ""])
    assert [path.name for path in staging.files.iterdir()] == [first]
    batch = staging.next_batch()
    assert batch is not None
    assert [*staging.messages(*batch.files)] == [(0, b"first")]
    staging.finish(batch)
    assert not staging.commit(0, [staging.stage("p", [b"late"])[0]])  # published, and repeated
    assert list(staging.files.iterdir()) == []
    assert staging.commit(3, [staging.stage("p", [])[0]])
    assert staging.next_batch() == (3, ())
    with pytest.raises(UsageError, match="batch 1 comes after batch 3"):
        staging.commit(1, [])
    assert staging.commit(None, [])
    with pytest.raises(UsageError, match="is for a stream of publisherId 'p', not for tables of"):
        staging.claim("p", "tables")
    with pytest.raises(UsageError, match="no stream or table was written here yet"):
        Staging(tmp_path / "other").publisher  # noqa: B018


def test_rows_keep_their_headers_on_the_disk(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.claim("p", "a stream")
    messages = [Headed(b"%d" % n) if n % 3 else b"%d" % n for n in range(3000)]
    name, count = staging.stage("p", messages)
    found = [*staging.messages(name)]
    assert count == 3000
    assert found == [*enumerate(messages)]
    assert [*map(type, dict(found).values())] == [*map(type, messages)]
