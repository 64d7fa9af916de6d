"""Who looks for its group: it comes in whatever the group has been through, and begins none."""

from __future__ import annotations

from ringcast.core.shared import Phase
from ringcast.model import Address, Member, ViewId
from ringcast.protocols.views.discovery import FRESH_NS, Meeting
from ringcast.wire.changes import Hello
from support.settings import PLAIN
from support.view_group import ViewGroup

A, B, C = (Member(Address("h", n), 1, name) for n, name in enumerate("ABC"))
SECOND = 1_000_000_000


def hello(who: Member, *, is_looking: bool) -> Hello:
    coordinator = None if is_looking else who
    return Hello(PLAIN, True, False, 3, coordinator, ViewId(who, 3), 1, (who,))


def test_who_joins_right_after_a_crash_comes_in_at_once_and_is_never_alone() -> None:
    group = ViewGroup("ABCDEFG").form("ABC")
    for dead, joiner in ("CD", "DE", "EF", "FG"):
        group.crash(dead)
        assert group.run_until(group.is_one, 3000)
        started = group.now_ms
        node = group.start(joiner)
        assert group.run_until(lambda node=node: node.view is not None, 3000)
        assert group.view(joiner) == f"AB{joiner}"
        assert group.now_ms - started < 300


def test_who_hears_a_group_that_makes_it_wait_does_not_begin_one() -> None:
    group = ViewGroup("ABC").form("AB")
    pause = 2 * SECOND
    group.layer("A").meeting.changed(
        *(group.layer("A").change.view, pause // 9, group.world.clock.now), is_merge=True
    )
    group.start("C")
    group.run(1500)
    assert group.layer("C").phase is Phase.LOOKING
    assert group.node("C").view is None
    assert group.run_until(group.is_one, 2000)


def test_who_hears_that_group_no_more_begins_one() -> None:
    group = ViewGroup("ABC").form("AB")
    group.weather.cuts = {("C", "A"), ("C", "B")}
    group.start("C")
    group.run(1000)
    group.weather.part("AB", "C")
    group.run(FRESH_NS / 1e6 + 600)
    assert group.view("C") == "C"


def test_who_is_heard_by_somebody_waits_for_what_that_one_says() -> None:
    """The group answers with a cookie, and what follows is late: a busy machine, a lost frame."""
    group = ViewGroup("AB").form("A")
    group.is_lost = lambda source, dest, kinds: (
        source == "B" and group.layer("B").meeting.is_answered(group.world.clock.now)
    )
    node = group.start("B")
    group.run(node.config.membership.discovery_wait_s * 1e3 + 100)
    assert group.layer("B").phase is Phase.LOOKING
    group.is_lost = None
    assert group.run_until(group.is_one, 3000)
    assert group.view("B") == "AB"


def test_after_a_loss_parts_wait_and_who_looks_does_not() -> None:
    meeting = Meeting()
    meeting.losses.lose(SECOND)
    meeting.note(B, hello(B, is_looking=False), SECOND)
    assert meeting.not_before(SECOND) == 2 * SECOND
    meeting.note(C, hello(C, is_looking=True), SECOND)
    assert meeting.not_before(SECOND) <= SECOND
    assert [list(met.view) for met in meeting.take([A], 10, SECOND)] == [[C]]


def test_joins_between_losses_do_not_make_the_wait_longer() -> None:
    meeting = Meeting()
    for is_looking, wait in ((True, 1), (True, 1), (False, 2)):
        now = 10 * SECOND
        meeting.note(B, hello(B, is_looking=is_looking), now)
        met = list(meeting.take([A], 10, now))
        meeting.changed(met[0].view, 0, now, is_merge=True)
        meeting.losses.lose(now)
        assert meeting.losses.waits(now) == wait * SECOND
        meeting.losses._not_before = 0
