"""Real members on a network that breaks: both sides go on, and when it is whole they are one group.

Each has a process of its own, and all that they send to each other passes a proxy (support.proxy).
What they record is judged by the same audit as everything else.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster_traces import Cluster, read_traces
from cluster_traces import members as cluster_members

from ringcast.rules.table import audit as audit_in_process
from ringcast.sim.processes import hear, tell
from ringcast.spark.audit import audit
from ringcast.spark.report import IF_ANY, NEED_FULL, RECORDED
from ringcast.trace.rows import DELIVER, OPEN, Facts, Trace
from support.proxy import Link, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster_traces import Traces


PROGRAM = Path(__file__).with_name("partition_member.py")

SOON = {"heartbeat_s": 0.2, "suspect_after_s": 1.5, "verify_s": 0.5}
"""Who is cut off is to be missed in a few seconds; nobody else stops for so long, it is hoped."""

PATIENT = {"suspect_after_s": 600.0, "verify_s": 60.0}

LIMIT_S = 150.0
"""After this all members are killed, so that no test waits for ever for an answer."""

A_WHILE = 50
"""Messages of each member that make one."""


class Members:
    """Processes by name, in one view in the order of their names."""

    def __init__(self, names: str, directory: Path, membership: dict[str, float]) -> None:
        self.names = list(names)
        self.proxy = Proxy(self.names)
        self._directory = directory
        self._membership = membership
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stack = ExitStack()
        self._watchdog = threading.Timer(LIMIT_S, self._kill_all)

    @property
    def traces(self) -> Path:
        return self._directory / "traces"

    def __enter__(self) -> Members:
        with ExitStack() as stack:
            stack.enter_context(self.proxy)
            self._watchdog.start()
            stack.callback(self._watchdog.cancel)
            for name in self.names:
                self._processes[name] = stack.enter_context(start_process())
            for at, name in enumerate(self.names, 1):  # one after the other: the order is known
                self._let_in(name)
                assert hear(self._processes[name])["view"] == self.names[:at]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        self._stack.close()
        if kind is None:
            assert {process.returncode for process in self._processes.values()} == {0}

    def _let_in(self, name: str) -> None:
        is_first = name == self.names[0]
        place = {
            "name": name,
            "listen": self.proxy.listen[name],
            "advertise": self.proxy.advertise[name],
            "meet": str(self._directory / "meet"),
            "membership": {**self._membership, "discovery_wait_s": 0.1 if is_first else 60.0},
            "record": str(self.traces),
        }
        tell(self._processes[name], place)

    def ask(self, whom: str | list[str], op: str, **task: Any) -> dict[str, dict[str, Any]]:
        """What each of these answers, when it has done it."""
        for name in whom:
            tell(self._processes[name], {"op": op, **task})
        answers = {name: hear(self._processes[name]) for name in whom}
        assert not [answer["error"] for answer in answers.values() if "error" in answer]
        return answers

    def ask_all(self, op: str, **task: Any) -> dict[str, dict[str, Any]]:
        return self.ask(self.names, op, **task)

    def trade_a_while(self) -> None:
        self.ask_all("more", count=A_WHILE)

    def await_view(self, *sides: str) -> None:
        """Each of these sides has come to a view of its own."""
        for side in sides:
            self.ask(side, "view", names=list(side))

    def read_all(self) -> dict[str, dict[str, Any]]:
        """Send no more, and what each of them has seen when all have read all."""
        last = {name: answer["sent"] for name, answer in self.ask_all("quiet").items()}
        answers = self.ask_all("read", expect=last)
        assert {name: answer["sent"] for name, answer in answers.items()} == last
        return answers

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        self.names.remove(name)
        process.kill()
        process.wait()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()


def start_process() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def check_audit(directory: Path, killed: str = "") -> None:
    """No violation, nothing incomplete, nothing that could not be judged."""
    report = audit(None, directory)
    assert report.exit_status == 0, report.to_json()
    for verdict in report.verdicts:
        if verdict.id in RECORDED and (verdict.premises or verdict.id not in IF_ANY):
            assert verdict.status in ("ok", "unknown tail"), verdict
        assert verdict.unknown <= set(killed), verdict
    found = {verdict.id: verdict.premises for verdict in report.verdicts}
    due = ("G1", "G2 N2", "N1", "N3", "N4", "N6", "N7", "N8", "VS1", "VS2", "VS3", "VS4", "VS5")
    assert all(found[name] for name in due)


def incarnations(answers: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: answer["incarnation"] for name, answer in answers.items()}


def check_reading(answers: dict[str, dict[str, Any]], merged: dict[str, int], *sides: str) -> None:
    """Everything of one's own side, and of the other what was sent before and what was sent since:
    all of it that was sent when everybody had come together, where each was at `merged`."""
    for reader, answer in answers.items():
        for sender, last in ((name, each["sent"]) for name, each in answers.items()):
            ranges = answer["read"][sender]
            if any(reader in side and sender in side for side in sides):
                assert ranges == [[1, last]], (reader, sender)
                continue
            before, since = ranges
            assert before[0] == 1
            assert before[1] + A_WHILE < since[0] <= merged[sender] + 1, (reader, sender)
            assert since[1] == last


def test_a_parted_group_goes_on_on_both_sides_and_becomes_one_again(tmp_path: Path) -> None:
    with Members("ABCDE", tmp_path, SOON) as members:
        members.ask_all("send")
        members.trade_a_while()
        before = members.ask_all("more", count=0)
        members.proxy.part("AB", "CDE")
        members.await_view("AB", "CDE")
        members.trade_a_while()
        members.proxy.heal()
        merged = members.ask_all("view", names=members.names)
        members.trade_a_while()
        answers = members.read_all()
    sent = {name: answer["sent"] for name, answer in merged.items()}
    check_reading(answers, sent, "AB", "CDE")
    assert incarnations(answers) == incarnations(before)
    for answer in answers.values():
        assert answer["view"] == ["C", "D", "E", "A", "B"]  # the larger side leads
        assert answer["views"][-1]["parts"] == [["C", "D", "E"], ["A", "B"]]
        # Those before brought one member in, or left some out.
        assert all(len(view["parts"]) in (0, 2) for view in answer["views"])
        assert all(len(view["parts"][-1]) == 1 for view in answer["views"][:-1] if view["parts"])
    check_audit(members.traces)


@pytest.mark.proof
def test_a_group_in_three_parts_on_bad_links_becomes_one_again(tmp_path: Path) -> None:
    with Members("ABCD", tmp_path, SOON) as members:
        before = members.ask_all("send")
        members.trade_a_while()
        members.proxy.part("A", "B", "CD")
        members.await_view("A", "B", "CD")
        members.trade_a_while()
        members.proxy.heal()
        members.proxy.set("ABCD", "ABCD", Link(loss=0.1, delay_s=0.02))
        merged = members.ask_all("view", names=members.names)
        members.trade_a_while()
        answers = members.read_all()
    for reader, answer in answers.items():
        for sender in members.names:
            first, last = answer["read"][sender][-1]
            assert first <= merged[sender]["sent"] + 1, (reader, sender)
            assert last == answers[sender]["sent"]
    assert incarnations(answers) == incarnations(before)
    assert members.proxy.dropped["C", "D"] > 0
    check_audit(members.traces)


@pytest.mark.proof
def test_a_cut_shorter_than_suspicion_changes_no_view_and_loses_nothing(tmp_path: Path) -> None:
    with Members("ABC", tmp_path, PATIENT) as members:
        before = members.ask_all("send")
        members.trade_a_while()
        members.proxy.part("A", "BC")
        members.trade_a_while()
        members.proxy.heal()
        members.trade_a_while()
        answers = members.read_all()
    assert min(members.proxy.dropped["A", "B"], members.proxy.dropped["B", "A"]) > 0
    for answer in answers.values():
        assert answer["read"] == {name: [[1, answers[name]["sent"]]] for name in "ABC"}
        assert answer["views"][-1]["names"] == ["A", "B", "C"]
        assert len(answer["views"]) <= 3  # as they came
    assert incarnations(answers) == incarnations(before)
    check_audit(members.traces)


@pytest.mark.proof
def test_a_member_that_is_deaf_parts_from_the_others_and_comes_back_as_itself(
    tmp_path: Path,
) -> None:
    """It misses them, and they hear that it has gone on without them."""
    with Members("ABC", tmp_path, SOON) as members:
        before = members.ask_all("send")
        members.trade_a_while()
        members.proxy.cut("AB", "C")
        members.await_view("C", "AB")
        members.trade_a_while()
        members.proxy.heal()
        merged = members.ask_all("view", names=members.names)
        members.trade_a_while()
        answers = members.read_all()
    check_reading(answers, {name: each["sent"] for name, each in merged.items()}, "AB", "C")
    assert incarnations(answers) == incarnations(before)
    for answer in answers.values():
        assert answer["views"][-1] == {"names": ["A", "B", "C"], "parts": [["A", "B"], ["C"]]}
    check_audit(members.traces)


@pytest.mark.proof
def test_a_member_that_is_mute_is_excluded_and_comes_back_as_itself(tmp_path: Path) -> None:
    """It hears that the others have gone on without it, and goes on alone."""
    with Members("ABC", tmp_path, SOON) as members:
        before = members.ask_all("send")
        members.trade_a_while()
        members.proxy.cut("C", "AB")
        members.await_view("AB", "C")
        members.trade_a_while()
        members.proxy.heal()
        merged = members.ask_all("view", names=members.names)
        members.trade_a_while()
        answers = members.read_all()
    assert incarnations(answers) == incarnations(before)
    for reader, answer in answers.items():
        for sender in members.names:
            first, last = answer["read"][sender][-1]
            assert first <= merged[sender]["sent"] + 1, (reader, sender)
            assert last == answers[sender]["sent"]
    check_audit(members.traces)


@pytest.mark.proof
@pytest.mark.parametrize(
    "is_merged",
    [False, True],
    ids=["at once", "when one has merged"],
)
def test_who_leads_the_merge_is_killed(tmp_path: Path, is_merged: bool) -> None:
    with Members("ABCDE", tmp_path, SOON) as members:
        before = members.ask_all("send")
        members.trade_a_while()
        members.proxy.part("AB", "CDE")
        members.await_view("AB", "CDE")
        members.trade_a_while()
        members.proxy.heal()
        if is_merged:
            members.ask("C", "view", names=members.names)
        members.kill("C")
        merged = members.ask_all("view", names=members.names)
        members.trade_a_while()
        answers = members.read_all()
    check_reading(answers, {name: each["sent"] for name, each in merged.items()}, "AB", "DE")
    del before["C"]
    assert incarnations(answers) == incarnations(before)
    assert len({tuple(answer["view"]) for answer in answers.values()}) == 1
    check_audit(members.traces, killed="C")


# The audit, on what recorders write of members that part and come back as themselves


@pytest.fixture(scope="module")
def reunion(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """a and b part from c, both sides go on, and all come together again."""
    directory = tmp_path_factory.mktemp("reunion")
    a, b, c = members = cluster_members("abc")
    cluster = Cluster(directory)
    cluster.install(*members)
    for sender in members:
        cluster.send(sender, 50)
    cluster.install(a, b)
    cluster.send(a, 30)
    cluster.install(c)
    cluster.send(c, 15)
    cluster.install(*members)
    for sender in members:
        cluster.send(sender, 50)
    cluster.stop()
    return read_traces(directory)


def test_members_that_come_back_as_themselves_raise_no_alarm(
    reunion: Traces, tmp_path: Path
) -> None:
    reunion.write(tmp_path)
    report = audit(None, tmp_path)
    assert report.exit_status == 0, report.to_json()
    for verdict in report.verdicts:
        is_due = verdict.premises or verdict.id not in IF_ANY
        if is_due and verdict.id in set(RECORDED) - set(NEED_FULL):
            assert verdict.status == "ok", verdict
    assert order_in_process(reunion) == "held"


def open_elsewhere(traces: Traces) -> None:
    at = traces.find("b", event=OPEN, peer="c", stream=0, seqno=65)
    traces.change("b", at, seqno=64, seqno2=64)


def open_below(traces: Traces) -> None:
    at = traces.find("b", event=OPEN, peer="c", stream=0, seqno=65)
    traces.change("b", at, seqno=40, seqno2=40)


def deliver_from_the_time_apart(traces: Traces) -> None:
    at = traces.find("c", event=DELIVER, peer="a", seqno=81)
    traces.change("c", at, seqno=80)


def hide_that_it_opened_again(traces: Traces) -> None:
    del traces.rows["a"][traces.find("a", event=OPEN, peer="c", stream=0, seqno=65)]
    traces.number("a")


@pytest.mark.parametrize(
    ("plant", "violated", "text"),
    [
        (open_elsewhere, {"N1", "VS3"}, "b opens c at 64 with view 4, when that one had sent 65"),
        (open_below, {"N1", "VS3"}, "b opens c at 40 and has delivered 50"),
        (
            deliver_from_the_time_apart,
            {"N1", "VS2"},
            "c delivers a:80..130, its window begins at 81",
        ),
        (hide_that_it_opened_again, {"N1"}, "a delivers c:66..115, due was 51"),
    ],
)
def test_what_is_wrong_with_a_window_that_opens_again_is_found(
    reunion: Traces,
    tmp_path: Path,
    plant: Callable[[Traces], None],
    violated: set[str],
    text: str,
) -> None:
    traces = reunion.copy()
    plant(traces)
    traces.write(tmp_path)
    report = audit(None, tmp_path)
    found = {verdict.id: verdict for verdict in report.verdicts if verdict.violation_count}
    assert set(found) == violated
    shown = {each.text: each.rows for verdict in found.values() for each in verdict.violations}
    assert text in shown
    assert shown[text]
    assert order_in_process(traces) == "violated"


def order_in_process(traces: Traces) -> str:
    """What the fold of the light core says of the same rows."""
    (verdict,) = (
        verdict
        for verdict in audit_in_process(Trace(traces.all_rows(), Facts()))
        if verdict.id == "N1"
    )
    return verdict.status
