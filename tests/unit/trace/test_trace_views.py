"""What recorded members tell of view changes: enough for the rules of views, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from ringcast.model import Stream
from ringcast.rules.table import VIEWS, verdicts
from ringcast.rules.views import uniform_in_all
from ringcast.trace.observe.observer import TraceObserver
from ringcast.trace.recorder import Recorder
from ringcast.trace.rows import DELIVER, FREEZE, OPEN, SEND, SHOWN, VIEW, Facts, member_key
from ringcast.trace.segments import Segment, segment_paths
from support.view_group import ViewGroup

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast.node import Node
    from ringcast.rules.findings import Verdict
    from ringcast.trace.rows import Row


class Recorded(ViewGroup):
    """A group whose members record."""

    def __init__(self, directory: Path, names: str, level: str = "deliveries") -> None:
        super().__init__(names)
        self._directory = directory
        self._level = level
        self.observers: dict[str, TraceObserver] = {}

    def start(self, name: str) -> Node:
        node = super().start(name)
        number = self._incarnations[name]
        recorder = Recorder(self._directory / f"{name}{number}", "run", node.me, level=self._level)
        observer = node.observer = TraceObserver(node, recorder)
        self.observers[f"{name}{number}"] = observer
        observer.start(self.world.clock.now)
        return node

    def rows(self) -> list[Row]:
        """Of all that live, and as far as they were written of others."""
        for observer in self.observers.values():
            if observer._node.multicast.senders:
                observer.stop(self.world.clock.now)
            else:
                observer.recorder.close()
        found: list[Row] = []
        for path in segment_paths(self._directory):
            with Segment(path) as segment:
                found += segment.rows()
        return found


def judged(rows: list[Row]) -> dict[str, Verdict]:
    found = verdicts((*VIEWS, uniform_in_all), rows, Facts())
    return {verdict.id: verdict for verdict in found}


def told(rows: list[Row], name: str) -> list[str]:
    """Of views and messages, in words."""
    events = (FREEZE, VIEW, SHOWN, OPEN, SEND, DELIVER)
    return [
        f"{row.event} {row.view}" + f" {row.peer} {row.seqno2}" * (row.stream >= 0)
        for row in rows
        if row.node == name and row.event in events
    ]


def test_a_view_tells_who_comes_together_and_where_the_last_one_ends(tmp_path: Path) -> None:
    group = Recorded(tmp_path, "ABC").form("AB")
    group.send("A", 3)
    group.run(100)
    group.form("C")
    a, b, c = (member_key(group.node(name).me) for name in "ABC")
    rows = group.rows()
    by_node = {row.node: row for row in rows if row.event == VIEW}
    assert by_node["A"].members == by_node["C"].members == (a, b, c)
    assert (by_node["A"].part, by_node["B"].part, by_node["C"].part) == ((a, b), (a, b), (c,))
    assert by_node["A"].cut == by_node["B"].cut
    assert set(by_node["A"].cut) == {f"{a} 0 3", f"{a} 1 0", f"{b} 0 0", f"{b} 1 0"}
    freezes = {row.view_key: row.members for row in rows if row.event == FREEZE}
    assert freezes[by_node["A"].view_key] == (a, b, c)
    opened = [row for row in rows if (row.event, row.node, row.peer) == (OPEN, "C", "A")]
    assert [(row.stream, row.seqno, row.view) for row in opened] == [
        (Stream.FIFO, 3, by_node["C"].view),
        (Stream.UNIFORM, 0, by_node["C"].view),
    ]


def test_messages_stand_before_the_view_that_they_are_read_before(tmp_path: Path) -> None:
    """B has left and C has come before A reads what B sent."""
    group = Recorded(tmp_path, "ABC").form("AB")
    group.read("A", 0)
    group.send("B", 2)
    group.run(50)
    group.leave("B")
    group.run(200)
    group.form("C")
    group.send("C", 1)
    group.run(50)
    group.read("A")
    group.run(50)
    rows = group.rows()
    last = [row for row in rows if row.event == VIEW and row.node == "A"][-3:]
    before, gone, come = (row.view for row in last)
    words = told(rows, "A")
    assert words[words.index(f"view {before}") :] == [
        *(f"view {before}", f"open {before} B 0", f"open {before} B 0", f"shown {before}"),
        *(f"view_freeze {gone}", f"view {gone}", f"view_freeze {come}", f"view {come}"),
        *(f"open {come} C 0", f"open {come} C 0"),
        *(f"deliver {before} B 2", f"shown {gone}", f"shown {come}", f"deliver {come} C 1"),
    ]


def test_who_comes_back_before_its_messages_are_read_opens_behind_them(tmp_path: Path) -> None:
    group = Recorded(tmp_path, "AB").form("AB")
    group.read("A", 0)
    group.send("B", 2)
    group.run(50)
    group.suspect("A", "B")
    group.run(20)
    assert group.view("A") == "A"
    assert group.run_until(group.is_one, 20_000)
    group.send("B", 1)
    group.run(100)
    group.read("A")
    group.run(50)
    rows = group.rows()
    words = [word for word in told(rows, "A") if " B " in word and not word.endswith("B 0")]
    views = [row.view for row in rows if row.event == VIEW and row.node == "A"]
    assert words == [
        f"deliver {views[-3]} B 2",
        f"open {views[-1]} B 2",
        f"deliver {views[-1]} B 3",
    ]
    assert not any(verdict.violations for verdict in judged(rows).values())


@pytest.mark.parametrize("level", ["deliveries", "full"])
def test_what_members_record_is_enough_for_the_rules(tmp_path: Path, level: str) -> None:
    """One joins, one is killed, one leaves, the network parts and heals, one restarts."""
    group = Recorded(tmp_path, "ABCDE", level).form("ABC")

    def talk() -> None:
        for process in group.living():
            name = process.node.me.name
            if group.node(name).view is not None:
                group.send(name, 3)
                group.send(name, 2, Stream.UNIFORM)
        group.run(30)

    talk()
    group.start("D")
    for _ in range(10):
        talk()
    group.weather.part("AB", "CD")
    group.run(100)
    for _ in range(60):
        talk()
    group.weather.cuts.clear()
    assert group.run_until(group.is_one, 20_000)
    talk()
    group.leave("B")
    talk()
    group.send("C", 5, Stream.UNIFORM)
    group.crash("C")
    for _ in range(60):
        talk()
    group.start("C")
    assert group.run_until(group.is_one, 20_000)
    talk()
    found = judged(group.rows())
    assert {id: verdict.violations for id, verdict in found.items() if verdict.violations} == {}
    assert {id for id, verdict in found.items() if not verdict.premises} <= {"VS7"}


def test_a_large_message_that_starts_over_is_told_as_one(tmp_path: Path) -> None:
    """Somebody comes while it is under way: its fragments take further seqnos."""
    group = Recorded(tmp_path, "ABC", "full").form("AB")
    size = group.config.multicast.window_bytes * 3
    group.node("A").send([bytes(size)], group.process("A").now)
    group.process("A").turn()
    group.start("C")
    assert group.run_until(group.is_one, 5000)
    group.run(2000)
    rows = group.rows()
    sent = [row for row in rows if (row.event, row.node) == (SEND, "A")]
    assert sum(row.kind != "fragment" for row in sent) == 1
    assert sent[-1].seqno2 > -(-size // group.node("A").codec.payload_bytes_max)
    blocks = {
        (row.node, row.kind, row.block): row.block_hash for row in rows if row.event == "block"
    }
    delivered = [key for key in blocks if key[1] == "delivered"]
    assert {blocks[key] for key in delivered} <= {
        hash for key, hash in blocks.items() if key[1] == "sent"
    }
    assert not any(verdict.violations for verdict in judged(rows).values())
