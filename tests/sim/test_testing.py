"""What users test their applications with: members of a group in virtual time."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringcast
from ringcast.errors import ConfigError, GroupClosed, Undeliverable, UsageError
from ringcast.replicated import Space
from ringcast.testing import Cluster, MemberOptions, cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).resolve().parents[2]


class Log:
    """What each member took, and when."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, str, str, bytes]] = []

    async def follow(self, group: ringcast.Group) -> None:
        loop = asyncio.get_running_loop()
        async for message in group:
            self.rows.append((loop.time(), group.me.name, message.sender.name, message.payload))

    def payloads(self, reader: str, sender: str) -> list[bytes]:
        return [row[3] for row in self.rows if row[1:3] == (reader, sender)]

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.rows).encode()).hexdigest()


async def count(group: ringcast.Group) -> None:
    for number in range(100):
        await group.send(b"%d" % number)
        await asyncio.sleep(0.01)


NUMBERS = [b"%d" % number for number in range(100)]


def busy_run(seed: int) -> str:
    """A run with a crash and a partition; what happened in it."""
    log = Log()
    with cluster(3, seed=seed, loss=0.2, duplicates=0.1) as c:
        c.start(log.follow)
        c.start(count)
        c.run(asyncio.sleep(0.5))
        c.members[0].crash()
        c.run(c.members[1].group.wait_for_view(lambda view: len(view) == 2))
        c.partition(c.members[:2], c.members[2:])
        c.run(asyncio.sleep(5))
        c.heal()
        c.run(asyncio.sleep(10))
    assert len(log.rows) > 300
    return log.digest


def test_members_are_in_one_view_when_the_block_starts() -> None:
    with cluster(4, seed=3, loss=0.3) as c:
        for member in c.members:
            names = {other.name for other in member.group.view}
            assert names == {"m0", "m1", "m2", "m3"}


def test_everything_arrives_in_order_whatever_the_network_loses_and_copies() -> None:
    log = Log()
    with cluster(3, seed=1, loss=0.3, duplicates=0.3, delay_s=0.02) as c:
        c.start(log.follow)
        c.start(count)
        c.run(asyncio.sleep(60))
        stats = c.members[0].group.stats()
    for reader in ("m0", "m1", "m2"):
        for sender in ("m0", "m1", "m2"):
            assert log.payloads(reader, sender) == NUMBERS
    assert stats["transport"]["sent"] > 100  # type: ignore[index]


def test_a_minute_is_short() -> None:
    began = time.process_time()
    with cluster(3, seed=1, loss=0.1) as c:
        c.run(asyncio.sleep(60))
        assert c.now_s > 60
    assert time.process_time() - began < 10


def test_the_same_seed_is_the_same_run() -> None:
    first = busy_run(7)
    assert busy_run(7) == first
    assert busy_run(8) != first


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    program = "from sim.test_testing import busy_run; print(busy_run(7))"

    def run_with_hashes(seed: str) -> str:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    assert run_with_hashes("1") == run_with_hashes("2")


def test_a_send_that_waits_for_a_crashed_member_ends_with_the_view_without_it() -> None:
    """Not when the member is given up, a minute later."""
    ended: list[tuple[float, Undeliverable]] = []

    async def send_on(group: ringcast.Group, to: ringcast.Member) -> None:
        try:
            while True:
                await group.send(b"", to=to)
        except Undeliverable as refused:
            ended.append((asyncio.get_running_loop().time(), refused))

    with cluster(3, seed=1) as c:
        gone = c.members[2].group.me
        sender = c.members[0]
        c.members[2].crash(silently=True)
        sender.start(lambda group: send_on(group, gone))
        c.run(asyncio.sleep(0.1))
        assert any("send to m2 blocked" in reason for reason in sender.group.explain())
        c.run(sender.group.wait_for_view(lambda view: gone not in view))
        left_out_at = c.now_s
        c.run(asyncio.sleep(0.001))
        ((ended_at, refused),) = ended
        assert ended_at - left_out_at < 0.001
        assert refused.to == gone
        assert "m2 is not in the view" in str(refused)


def time_to_miss(c: Cluster, *, silently: bool) -> float:
    began = c.now_s
    c.members[0].crash(silently=silently)
    assert not c.members[0].is_running
    for member in c.members[1:]:
        c.run(member.group.wait_for_view(lambda view: len(view) == 2))
    return c.now_s - began


def test_a_crash_is_told_by_the_port_and_a_power_cut_by_silence() -> None:
    with cluster(3) as c:
        assert time_to_miss(c, silently=False) < 0.5
    with cluster(3) as c:
        assert 2.0 < time_to_miss(c, silently=True) < 4.0


def test_nothing_leaves_a_process_that_has_crashed() -> None:
    log, ended = Log(), []

    async def app(group: ringcast.Group) -> None:
        async def child() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                group.try_send(b"last words")
                ended.append(group.me.name)

        child_task = asyncio.create_task(child())
        await group.send(b"pong")
        await child_task

    with cluster(3) as c:
        c.start(log.follow)
        c.members[0].start(app)
        c.run(asyncio.sleep(1))
        c.members[0].crash()
        c.run(asyncio.sleep(10))
        assert ended == ["m0"]
        assert log.payloads("m1", "m0") == [b"pong"]
        with pytest.raises(UsageError, match="m0 is gone"):
            c.members[0].start(app)
        with pytest.raises(GroupClosed):
            c.run(c.members[0].group.send(b"from the grave"))


def test_parts_of_a_network_go_on_and_become_one_again() -> None:
    log = Log()
    with cluster(3) as c:
        a, b, d = c.members
        c.start(log.follow)
        c.partition([a], [b, d])
        c.run(a.group.wait_for_view(lambda view: len(view) == 1))
        c.run(b.group.wait_for_view(lambda view: len(view) == 2))
        c.run(b.group.send(b"only in our part"))
        c.run(asyncio.sleep(1))
        c.heal()
        for member in c.members:
            c.run(member.group.wait_for_view(lambda view: len(view) == 3))
        c.run(b.group.send(b"for all"))
        c.run(asyncio.sleep(1))
    assert log.payloads("m2", "m1") == [b"only in our part", b"for all"]
    assert log.payloads("m0", "m1") == [b"for all"]


def test_a_process_is_in_one_part() -> None:
    with cluster(2) as c, pytest.raises(UsageError, match="two parts"):
        c.partition(c.members, c.members[:1])


def test_a_joiner_has_options_of_its_own() -> None:
    total = {"old": 0, "new": 0}

    async def add_up(name: str, group: ringcast.Group) -> None:
        async for message in group:
            total[name] += int(message.payload)

    def give() -> Iterator[bytes]:
        yield str(total["old"]).encode()

    async def take(chunks: AsyncIterator[bytes]) -> None:
        total["new"] = int(b"".join([chunk async for chunk in chunks]))

    with cluster(0) as c:
        old = c.run(c.join("old", give_state=give, take_state=take))
        old.start(lambda group: add_up("old", group))
        c.run(old.group.send_many([b"40", b"1"]))
        c.run(old.group.flush())
        new = c.run(c.join("new", give_state=give, take_state=take))
        assert total["new"] == 41
        new.start(lambda group: add_up("new", group))
        c.run(new.group.send(b"1"))
        c.run(asyncio.sleep(1))
    assert total == {"old": 42, "new": 42}


def test_a_whole_program_runs_as_it_is() -> None:
    views: list[str] = []

    async def main() -> None:
        async with ringcast.join("orders", name="web") as group:
            await group.wait_for_view(lambda view: len(view) == 2)
            views.append(str(group.view))

    with cluster(1, group="orders") as c:
        web = c.launch(main, "web")
        c.run(asyncio.sleep(10))
        assert views == ["View 2: m0, web"]
        assert len(c.members[0].group.view) == 1, "main() has ended, so it has left"
        with pytest.raises(UsageError, match="has not joined here"):
            web.group  # noqa: B018
        with pytest.raises(UsageError, match="leaves when its main"):
            c.run(web.leave())


def test_who_leaves_has_left() -> None:
    with cluster(2) as c:
        c.run(c.members[0].group.send(b"bye"))
        log = Log()
        c.members[1].start(log.follow)
        c.run(c.members[0].leave())
        c.run(c.members[1].group.wait_for_view(lambda view: len(view) == 1))
        assert log.payloads("m1", "m0") == [b"bye"]
        assert not c.members[0].is_running
        again = c.run(c.join("m0"))
        assert len(again.group.view) == 2


def test_addresses_are_those_of_the_cluster() -> None:
    with cluster(1, listen="127.0.0.1:7801") as c:
        late = c.run(c.join("late", members=["127.0.0.1:7801"]))
        assert str(late.group.view) == "View 2: m0, late"
        with pytest.raises(UsageError, match="another member does"):
            c.run(c.join("third", listen="127.0.0.1:7801"))
        with pytest.raises(UsageError, match="already"):
            c.run(c.join("late"))


def test_what_an_application_raises_is_raised_by_run() -> None:
    async def fail(group: ringcast.Group) -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError(group.me.name)

    with cluster(2) as c:
        c.members[1].start(fail)
        with pytest.raises(ZeroDivisionError) as raised:
            c.run(asyncio.sleep(60))
        assert c.now_s < 10
        assert "raised in m1 after 1." in raised.value.__notes__[0]


def test_a_wait_that_does_not_end_says_what_members_wait_for() -> None:
    with cluster(2) as c:
        c.run(c.members[0].group.send(b"nobody reads this"))
        with pytest.raises(TimeoutError, match=r"(?s)within 20 virtual seconds.*m0: .*m1") as late:
            c.run(c.members[0].group.flush(), limit_s=20)
        assert c.now_s > 20
        assert "m1: " in str(late.value)


def test_who_cannot_join_is_told_why() -> None:
    with cluster(0) as c, pytest.raises(ringcast.JoinTimeout, match="nobody answered"):
        c.run(c.join(must_exist=True))


def test_joining_from_outside_of_a_process_is_refused() -> None:
    async def main() -> None:
        async with ringcast.join("test"):
            raise AssertionError

    with cluster(1) as c, pytest.raises(UsageError, match="virtual time"):
        c.run(main())


def test_a_cluster_is_not_for_a_running_loop() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="plain function"), cluster(1):
            raise AssertionError

    asyncio.run(main())

    with cluster(1) as c:

        async def nested() -> None:
            with pytest.raises(UsageError, match="await this"):
                c.run(asyncio.sleep(1))

        c.run(nested())


@pytest.mark.parametrize(
    "options", [{"loss": 1.0}, {"loss": -0.1}, {"duplicates": 1.0}, {"delay_s": -1.0}]
)
def test_options_are_checked(options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))), cluster(1, **options):
        raise AssertionError
    with pytest.raises(ConfigError, match="members"), cluster(-1):
        raise AssertionError


def test_options_are_those_of_join() -> None:
    theirs = signature(ringcast.join).parameters.keys() - {"group"}
    assert MemberOptions.__annotations__.keys() == theirs
    for taker in (cluster, Cluster.join, Cluster.restart):
        assert signature(taker).parameters["options"].annotation == "Unpack[MemberOptions]"
    assert signature(Space.join).parameters["options"].annotation == "Unpack[JoinOptions]"
    with cluster(0) as c:
        process = c.run(c.join(name="one"))
        assert process.name == process.group.me.name == "one"
        with pytest.raises(UsageError, match="a process 'one' already"):
            c.run(c.join("one"))
        assert c.run(c.restart(process)).name == "one"


def run_guide(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    (path / "test_counter.py").write_text(program)
    command = [sys.executable, "-W", "error", path / "test_counter.py"]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)


def test_the_example_of_the_guide_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/testing.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    ended = run_guide(tmp_path, program)
    assert ended.returncode == 0, ended.stderr
    plain = program.replace(', guarantee="uniform"', "").replace("range(5)", "range(100)")
    assert "survivors differ" in run_guide(tmp_path, plain).stderr
