"""Every script has the answers that stand in it, and a planted defect changes them.

`pytest tests/test_scripts.py --rewrite` fills in the answers: read the diff before you keep it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.core.effects import Effects
from ringcast.core.shared import Phase
from ringcast.model import Address
from ringcast.node import Node
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.stream import Timer
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views import change, discovery
from ringcast.protocols.views.agreement import Agreement
from ringcast.protocols.views.change import ViewChange
from ringcast.protocols.views.discovery import Meeting
from ringcast.protocols.views.election import Rank
from ringcast.protocols.views.follower import Follower
from ringcast.protocols.views.greetings import Greetings
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.proposals import Proposals
from ringcast.protocols.views.proposer import Proposer
from ringcast.protocols.views.reading import Reading
from ringcast.protocols.views.requests import Pairs, Requests
from ringcast.protocols.views.streams import ViewStreams
from ringcast.protocols.views.timing import PATIENCE_NS
from ringcast.settings import Settings
from ringcast.window.fragmenter import Fragmenter
from support.script import run_script
from support.total_defects import DEFECTS as ORDER_DEFECTS

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from ringcast.core.view_change import Begin
    from ringcast.events import Event
    from ringcast.model import Member, Origin, View, ViewId
    from ringcast.protocols.views.frames import Wishes
    from ringcast.wire.changes import Complain, Hello, Install
    from ringcast.wire.frames import Ack

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.txt"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    text = path.read_text("utf-8")
    assert re.match(r"# [A-Z]+(-L)?\d+", text), "its first comment names the guarantee it is about"
    answered, violations = run_script(text)
    assert violations == []
    if request.config.getoption("--rewrite"):
        path.write_text(answered, "utf-8")
    else:
        assert answered == text


# A planted defect for each: what it does wrong, and where


def silent(self: object, *arguments: object, **options: object) -> None:
    """Does nothing."""


def counts_received_as_delivered(
    self: MulticastSender, source: Member, ack: Ack, now: int, out: Effects
) -> None:
    ON_ACK(self, source, replace(ack, delivered=ack.received), now, out)


def sends_nothing_on_a_late_timer(
    self: MulticastReceiver, now: int, allowance: int, out: Effects
) -> None:
    is_late = any(self._timers.lateness(timer, now) for timer in Timer)
    RECEIVER_TIMEOUT(self, now, allowance, Effects() if is_late else out)


def asks_for_nothing(self: MulticastReceiver, now: int, out: Effects) -> None:
    ASK(self, now, Effects())


def suspects_nobody(self: FailureDetector, now: int, out: Effects) -> None:
    for _ in self._timers.take_due(now):
        self._arm_heartbeat(now)


def opens_windows_at_the_start(self: ViewStreams, origin: Origin, _: int, now: int) -> None:
    OPEN(self, origin, 0, now)


def tells_nobody(self: MulticastSender, now: int, out: Effects) -> None:
    PROBE(self, now, Effects())


def closes_at_once(self: Node, now: int, by: int | None = None) -> None:
    self.close(now)


def needs_no_commit(
    self: ViewStreams, limit: int, now: int, out: Effects, **options: bool
) -> list[Event]:
    for receiver in self.receivers.values():
        receiver.window.open_gate(receiver.window.received)
        self._note_ready(receiver)
    return TAKE_READY(self, limit, now, out, **options)


# In views


def has_patience_for_ever(self: ViewChange, now: int, out: Effects) -> None:
    self._timers.arm(change.Timer.SILENT, now + PATIENCE_NS)


def sees_to_nothing_while_frozen(self: GroupViews, now: int, out: Effects) -> None:
    if not self.change.is_frozen:
        ADVANCE(self, now, out)


def waits_for_ever(self: ViewChange, now: int, out: Effects) -> None:
    self._timers.arm(change.Timer.STALLED, now + PATIENCE_NS)


def nobody_is_behind(self: Proposer) -> dict[Member, ViewId]:
    return {}


def commits_nothing_by_the_cut(self: ViewStreams, begin: Begin, now: int, out: Effects) -> None:
    cuts = dict(begin.cut.part_of(self.me).cuts)
    for origin, receiver in self.receivers.items():
        if receiver.is_gated:
            cuts[origin] = receiver.window.gate
    part = begin.cut.part_of(self.me)._replace(cuts=cuts)
    BEGIN(self, replace(begin, cut=replace(begin.cut, parts=(part,))), now, out)


def meets_who_looks_and_nobody_else(
    self: Greetings, source: Member, hello: Hello, *rest: Any
) -> None:
    if hello.coordinator is None or self._owner.phase is Phase.LOOKING:
        MEET(self, source, hello, *rest)


def believes_every_complaint(
    self: Requests, source: Member, complain: Complain, now: int, out: Effects
) -> None:
    self.suspect(complain.member, "somebody says so", now, out)


def starts_over_in_every_view(
    self: MulticastSender, view: View, together: Collection[Member], now: int, out: Effects
) -> None:
    self.fragments.start_over()
    SENDER_BEGIN(self, view, together, now, out)


def installs_again(self: Follower, source: Member, install: Install, out: Wishes) -> None:
    kept = self.__dict__.setdefault("kept", [])
    kept += self._flushed
    ON_INSTALL(self, source, install, out)
    again = [each for each in kept if each.proposal.id == install.id]
    if again and self.view.id != install.id:
        self._install(again[0], out)


def ties(coordinator: Member, size: int, *, has_state: bool, is_given: bool) -> Rank:
    """Of two parts that are as large each takes the other for the greater one."""
    return Rank(not has_state, -size, not is_given, Address("", 0), 0)


ON_ACK = MulticastSender.on_ack
ADVANCE = GroupViews.advance
BEGIN = ViewStreams._begin
MEET = Greetings._meet
SENDER_BEGIN = MulticastSender.begin
ON_INSTALL = Follower.on_install
NOBODY_IS_MISSED = (FailureDetector, "handle_timeout", suspects_nobody)
MEETS_JOINERS = (Greetings, "_meet", meets_who_looks_and_nobody_else)
LEAD_AT_ONCE = [(Meeting, "give_way", silent), (Greetings, "_ask_others", silent)]
RECEIVER_TIMEOUT = MulticastReceiver.handle_timeout
ASK = MulticastReceiver._ask
OPEN = ViewStreams._open
PROBE = MulticastSender.handle_timeout
TAKE_READY = ViewStreams.take_ready

DEFECTS: dict[str, list[tuple[type | ModuleType, str, object]]] = {
    "multicast/backpressure.txt": [(MulticastSender, "_use_room", silent)],
    "multicast/first_message_lost.txt": [(MulticastReceiver, "_ask", asks_for_nothing)],
    "multicast/last_message_lost.txt": [(MulticastSender, "handle_timeout", tells_nobody)],
    "multicast/late_timers.txt": [
        (MulticastReceiver, "handle_timeout", sends_nothing_on_a_late_timer)
    ],
    "multicast/middle_message_lost.txt": [(MulticastSender, "on_nack", silent)],
    "multicast/slow_reader.txt": [(MulticastSender, "on_ack", counts_received_as_delivered)],
    "total/carried.txt": ORDER_DEFECTS["13 carries nothing"],
    "total/change_frames_lost.txt": ORDER_DEFECTS["10 submits nothing anew"],
    "total/joiner_amid_commit.txt": ORDER_DEFECTS["16 stands at what is taken"],
    "total/joiner_goes_first.txt": ORDER_DEFECTS["restores nothing"],
    "total/joiner_is_told_where.txt": ORDER_DEFECTS["14 counts by itself"],
    "total/known_when_back.txt": ORDER_DEFECTS["7 marks of the departed"],
    "total/large_message.txt": ORDER_DEFECTS["17 parts count"],
    "total/large_message_and_joiners.txt": ORDER_DEFECTS["18 unfinished tails stay"],
    "total/merge_three.txt": ORDER_DEFECTS["6 nobody may skip"],
    "total/one_order.txt": ORDER_DEFECTS["counts batches"],
    "total/origin_back_to_joiners.txt": ORDER_DEFECTS["4 marks of a joiner"],
    "total/origin_leaves.txt": ORDER_DEFECTS["waits for none of its own"],
    "total/origin_left_out_and_back.txt": ORDER_DEFECTS["keeps what is taken"],
    "total/origin_takes_apart.txt": ORDER_DEFECTS["6 nobody may skip"],
    "total/origins_take_turns.txt": ORDER_DEFECTS["22 serves one origin"],
    "total/reader_stops.txt": ORDER_DEFECTS["15 view before the rest"],
    "total/second_change.txt": ORDER_DEFECTS["10 submits nothing anew"],
    "total/seen_in_a_later_view.txt": ORDER_DEFECTS["sees in one view"],
    "total/sequencer_alone.txt": ORDER_DEFECTS["sees nothing"],
    "total/sequencer_and_origin_die.txt": ORDER_DEFECTS["cut at what each has"],
    "total/sequencer_dies_after_commit_at_one.txt": ORDER_DEFECTS["takes no cut"],
    "total/sequencer_dies_after_its_own_take.txt": ORDER_DEFECTS["takes no cut"],
    "total/sequencer_dies_before_it_hears.txt": ORDER_DEFECTS["9 drops when it submits"],
    "total/sequencer_dies_heard_by_one.txt": ORDER_DEFECTS["cut at what each has"],
    "total/sequencer_dies_held_by_all.txt": ORDER_DEFECTS["takes no cut"],
    "total/sequencer_dies_unheard.txt": ORDER_DEFECTS["9 drops when it submits"],
    "total/sequencer_excluded_alive.txt": ORDER_DEFECTS["10 submits nothing anew"],
    "total/sequencer_leaves.txt": ORDER_DEFECTS["11 submits the newest anew"],
    "total/skips_a_view.txt": ORDER_DEFECTS["20 gone by lists"],
    "total/submit_before_install.txt": ORDER_DEFECTS["keeps nothing early"],
    "total/submit_replayed.txt": [(Follower, "on_install", installs_again)],
    "total/window_of_one.txt": ORDER_DEFECTS["keeps what is taken"],
    "unicast/message_lost.txt": [(UnicastSender, "_resend", silent)],
    "uniform/received_by_all.txt": [(ViewStreams, "take_ready", needs_no_commit)],
    "views/all_suspect_all.txt": [MEETS_JOINERS],
    "views/broken_pair.txt": [(Pairs, "broken", silent)],
    "views/committed_elsewhere.txt": [(ViewStreams, "_begin", commits_nothing_by_the_cut)],
    "views/crash.txt": [NOBODY_IS_MISSED, (Requests, "unreachable", silent)],
    "views/cut_off_member.txt": [MEETS_JOINERS],
    "views/equal_parts_meet.txt": [(change, "rank", ties), (discovery, "rank", ties)],
    "views/finish.txt": [(ViewChange, "on_tag", silent), (Proposer, "_behind", nobody_is_behind)],
    "views/finish_in_change.txt": [(Proposer, "_behind", nobody_is_behind)],
    "views/greeting.txt": [(ViewStreams, "_open", silent)],
    "views/heal_four_parts.txt": [*LEAD_AT_ONCE],
    "views/heal_three_singles.txt": [*LEAD_AT_ONCE],
    "views/heal_three_sizes.txt": [*LEAD_AT_ONCE],
    "views/heal_two_pairs_and_one.txt": [*LEAD_AT_ONCE],
    "views/join.txt": [(ViewStreams, "_open", opens_windows_at_the_start)],
    "views/joiner_silent.txt": [(Proposals, "lose_patience", has_patience_for_ever)],
    "views/joiner_unreachable.txt": [
        (Proposals, "lose_patience", has_patience_for_ever),
        (GroupViews, "advance", sees_to_nothing_while_frozen),
    ],
    "views/endless_joins.txt": [(Meeting, "spare", silent)],
    "views/large_joins.txt": [(Fragmenter, "start_over", silent)],
    "views/large_leave.txt": [(MulticastSender, "begin", starts_over_in_every_view)],
    "views/large_sender_dies.txt": [(FailureDetector, "transport_hint", silent)],
    "views/leave_all_but_one.txt": [(Node, "leave", closes_at_once)],
    "views/leave_coordinator.txt": [(Node, "leave", closes_at_once)],
    "views/leave_unread.txt": [(Node, "leave", closes_at_once)],
    "views/one_way_from_coordinator.txt": [(Pairs, "broken", silent)],
    "views/one_way_pair.txt": [(Pairs, "broken", silent)],
    "views/one_way_to_all.txt": [NOBODY_IS_MISSED],
    "views/one_way_to_coordinator.txt": [NOBODY_IS_MISSED],
    "views/partition_and_heal.txt": [MEETS_JOINERS],
    "views/reader_stops.txt": [(Reading, "is_due", property(lambda reading: bool(reading.unread)))],
    "views/replay.txt": [(Follower, "on_install", installs_again)],
    "views/restart.txt": [NOBODY_IS_MISSED],
    "views/settings.txt": [(Settings, "against", lambda *settings: [])],
    "views/suspected_by_all.txt": [MEETS_JOINERS],
    "views/suspected_by_coordinator.txt": [MEETS_JOINERS],
    "views/suspected_by_one.txt": [(Requests, "on_complain", believes_every_complaint)],
    "views/three_proposers.txt": [
        (ViewChange, "_on_stalled", waits_for_ever),
        (ViewChange, "on_later_view", silent),
    ],
    "views/two_groups_meet.txt": [(ViewStreams, "_open", silent)],
    "views/two_proposers.txt": [(Proposals, "on_refuse", silent)],
    "views/unretained.txt": [(Agreement, "is_kept", lambda self, stream: True)],
}


MORE = {
    "5 marks higher than the cut's": "total/sequencer_alone.txt",
    "8 known stays pending": "total/known_when_back.txt",
    "12 minds no tag": "total/submit_before_install.txt",
    "27 cut without order": "total/joiner_amid_commit.txt",
}
"""What else may be wrong with one order, and the script that shows it."""
SIMULATED = ("1 ", "2 ", "3 ")
"""What simulations show."""

PLANTED = [*DEFECTS.items(), *((script, ORDER_DEFECTS[name]) for name, script in MORE.items())]


def test_every_script_has_a_defect_and_every_defect_of_the_order_a_script() -> None:
    assert sorted(DEFECTS) == SCRIPTS
    planted = [each for _, each in PLANTED]
    left = {name for name, each in ORDER_DEFECTS.items() if each not in planted}
    assert {name for name in left if not name.startswith(SIMULATED)} == set()


@pytest.mark.parametrize(("name", "defects"), PLANTED, ids=[*DEFECTS, *MORE])
def test_a_planted_defect_changes_the_answers(
    name: str, defects: list[tuple[Any, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, attribute, defect in defects:
        monkeypatch.setattr(owner, attribute, defect)
    text = (FOLDER / name).read_text("utf-8")
    group, _, rest = text.partition("\n----\n")
    # The group itself forms: it is what the script is about that differs.
    first, _, _ = rest.partition("\n\n")
    formed = f"{group}\n----\n{first}\n"
    assert run_script(formed) == (formed, [])
    try:
        answered, _ = run_script(text)
    except AssertionError:
        return  # an invariant of the nodes shows it
    assert answered != text
