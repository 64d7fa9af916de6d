"""Every script has the answers that stand in it, and a planted defect changes them.

`pytest tests/test_scripts.py --rewrite` fills in the answers: read the diff before you keep it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringcast.core.effects import Effects
from ringcast.explore.ablations import SilentMulticastSender, SilentSender
from ringcast.model import Digest
from ringcast.node import Node
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.membership import Membership
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver, Timer
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.unicast import ReliableUnicast
from support.script import run_script

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.model import Member
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


def silent(self: object, *arguments: object) -> None:
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


def opens_windows_at_the_start(self: ReliableMulticast) -> Digest:
    return Digest(dict.fromkeys(DIGEST(self).entries, 0))


def closes_at_once(self: Node, now: int, by: int | None = None) -> None:
    self.close(now)


def needs_no_commit(
    self: ReliableMulticast, limit: int, now: int, out: Effects, **options: bool
) -> list[Event]:
    for receiver in self._receivers.values():
        receiver.window.open_gate(receiver.window.received)
        self._note_ready(receiver)
    return TAKE_READY(self, limit, now, out, **options)


ON_ACK = MulticastSender.on_ack
RECEIVER_TIMEOUT = MulticastReceiver.handle_timeout
ASK = MulticastReceiver._ask
DIGEST = ReliableMulticast.digest
TAKE_READY = ReliableMulticast.take_ready

DEFECTS: dict[str, list[tuple[type, str, object]]] = {
    "membership/crash.txt": [(FailureDetector, "handle_timeout", suspects_nobody)],
    "membership/join.txt": [(ReliableMulticast, "digest", opens_windows_at_the_start)],
    "membership/leave.txt": [(Node, "leave", closes_at_once)],
    "membership/one_way_cut.txt": [(FailureDetector, "handle_timeout", suspects_nobody)],
    "membership/partition_and_heal.txt": [(Membership, "_on_merge_request", silent)],
    "membership/restart.txt": [(ReliableMulticast, "digest", opens_windows_at_the_start)],
    "multicast/backpressure.txt": [(MulticastSender, "_use_room", silent)],
    "multicast/first_message_lost.txt": [(MulticastReceiver, "_ask", asks_for_nothing)],
    "multicast/last_message_lost.txt": [(ReliableMulticast, "sending", SilentMulticastSender)],
    "multicast/late_timers.txt": [
        (MulticastReceiver, "handle_timeout", sends_nothing_on_a_late_timer)
    ],
    "multicast/middle_message_lost.txt": [(MulticastSender, "on_nack", silent)],
    "multicast/slow_reader.txt": [(MulticastSender, "on_ack", counts_received_as_delivered)],
    "unicast/message_lost.txt": [(ReliableUnicast, "sender", SilentSender)],
    "uniform/received_by_all.txt": [(ReliableMulticast, "take_ready", needs_no_commit)],
}


def test_every_script_has_a_defect() -> None:
    assert sorted(DEFECTS) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_planted_defect_changes_the_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, attribute, defect in DEFECTS[name]:
        monkeypatch.setattr(owner, attribute, defect)
    text = (FOLDER / name).read_text("utf-8")
    group, _, rest = text.partition("\n----\n")
    answered, _ = run_script(text)
    assert answered != text
    # The group itself forms: it is what the script is about that differs.
    first, _, _ = rest.partition("\n\n")
    assert answered.startswith(f"{group}\n----\n{first}\n")
