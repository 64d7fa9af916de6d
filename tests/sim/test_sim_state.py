"""Groups whose applications have a state: whoever takes one gets it, and then all that is not in
it, once. Broken nodes are caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import pytest

from ringcast.protocols.views import parts as views_parts
from ringcast.protocols.views.state import StateTransfer
from ringcast.protocols.views.taking import CatchUp, Taking
from ringcast.rules.table import STATE
from ringcast.sim.options import Incident, Options
from ringcast.sim.plan import expand
from ringcast.sim.runner import Tally, run
from ringcast.sim.workload import dump_entries, load_entries
from ringcast.trace import rows as trace
from ringcast.trace.rows import split_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ringcast.protocols.views.taking import Outcome
    from ringcast.trace.rows import MemberKey, Row

SEEDS = 24
IDS = [rule.id for rule in STATE]


@cache
def runs(*, partitions: bool) -> tuple[Tally, Counter[str]]:
    """What the runs with a state said, and what happened in them."""
    tally = Tally()
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        options = expand(seed, "group", partitions=partitions)
        if options.state:
            result = run(options)
            tally.add(result.summary)
            seen.update(happenings(result.trace.rows))
            seen["runs"] += 1
    return tally, seen


def happenings(rows: list[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    begun: Counter[MemberKey] = Counter()
    waiting: set[MemberKey] = set()
    for row in rows:
        member = (row.node, row.inc)
        match row.event:
            case trace.STATE_WAIT:
                waiting.add(member)
            case trace.STATE_BEGUN:
                begun[member] += 1
                found["another provider"] += begun[member] == 2
            case trace.STATE_RECEIVED | trace.STATE_LOST:
                waiting.discard(member)
                found[row.event] += 1
            case trace.DELIVER if row.detail == trace.ASIDE:
                found["kept"] += 1
            case trace.HANDED:
                found["handed"] += 1
            case trace.WIN if member in waiting and row.kind == "receive" and row.received > row.hd:
                found["held up"] += 1
            case trace.STATE_REFUSED:
                found["refused"] += 1
    return found


@pytest.mark.proof  # the seeds of groups, parted or not, have a state every other time
def test_the_runs_show_what_they_should() -> None:
    tally, seen = runs(partitions=False)
    parted, seen_parted = runs(partitions=True)
    both = seen + seen_parted
    judged = [tally.judged[id].premises + parted.judged[id].premises for id in IDS]
    assert all(judged)
    assert both["state_received"] >= both["runs"]
    for often in ("kept", "handed", "held up"):
        assert both[often] >= both["runs"], often
    for rare in ("another provider", "state_lost", "refused"):
        assert both[rare] >= 0.1 * both["runs"], rare


def test_a_state_survives_its_journey() -> None:
    entries = load_entries(b"A 1 0 3 5 77\nB 2 1 0 0 0\n")
    assert dump_entries(entries) == b"A 1 0 3 5 77\nB 2 1 0 0 0\n"
    for broken in (b"A 1 0 3 5\n", b"A 1 0 3 5 x\n", b"\xff"):
        with pytest.raises(ValueError, match=r"unpack|invalid|decode"):
            load_entries(broken)


# Single runs


def quiet(**changes: object) -> Options:
    """Three nodes that send all the time; D joins late, and its state takes a while."""
    options = Options(
        seed=1,
        protocol="group",
        nodes=4,
        initial=3,
        capacities=(16,) * 4,
        tau_ms=(100.0,) * 4,
        warm_ms=300.0,
        safety_ms=1500.0,
        messages=100,
        state=True,
        ballast=500,
        give_ms=100.0,
        give_chunks=1,
        incidents=(Incident(fault="join", at_ms=200.0, nodes=(3,)),),
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def states_of(rows: list[Row], node: str) -> list[tuple[str, str]]:
    """What became of this node's state, and with whom."""
    events = (trace.STATE_WAIT, trace.STATE_BEGUN, trace.STATE_RECEIVED, trace.STATE_LOST)
    return [(row.event, row.peer) for row in rows if row.node == node and row.event in events]


def test_a_joiner_gets_the_state_and_what_comes_meanwhile() -> None:
    result = run(quiet())
    assert result.failures == ()
    rows = result.trace.rows
    assert states_of(rows, "D") == [
        (trace.STATE_WAIT, ""),
        (trace.STATE_BEGUN, "A"),
        (trace.STATE_RECEIVED, "A"),
    ]
    assert happenings(rows)["handed"] > 0


def second_of(rows: list[Row]) -> str:
    """Who comes after A in the view of all, and gives the state when A is gone."""
    view = next(row for row in rows if row.event == trace.VIEW and len(row.members) == 4)
    return split_key(view.members[1])[0]


def test_if_the_provider_dies_another_gives_it() -> None:
    crash = Incident(fault="F10", at_ms=300.0, nodes=(0,))
    result = run(quiet(faults=("F10",), hints=True, incidents=(*quiet().incidents, crash)))
    assert result.failures == ()
    heir = second_of(result.trace.rows)
    assert states_of(result.trace.rows, "D")[-2:] == [
        (trace.STATE_BEGUN, heir),
        (trace.STATE_RECEIVED, heir),
    ]


def test_a_small_buffer_holds_senders_up() -> None:
    def blocked(options: Options) -> int:
        result = run(options)
        assert result.failures == ()
        return sum(row.event == trace.SEND_BLOCK for row in result.trace.rows)

    assert blocked(quiet()) == 0
    assert blocked(quiet(join_buffer_bytes=0)) > 0


def test_whoever_falls_silent_is_asked_again() -> None:
    """Nobody else has a state; A's application gives none until the faults end."""
    result = run(quiet(stalled=0, safety_ms=13_000.0))
    assert result.failures == ()
    assert states_of(result.trace.rows, "D") == [
        (trace.STATE_WAIT, ""),
        (trace.STATE_BEGUN, "A"),
        (trace.STATE_BEGUN, "A"),
        (trace.STATE_RECEIVED, "A"),
    ]


def lagging() -> Options:
    """A lets D in and dies. The next has not taken what A had: its application sleeps."""
    heir = "ABCD".index(second_of(run(quiet()).trace.rows))
    sleep = Incident(fault="F14", at_ms=100.0, ms=1200.0, nodes=(heir,), what="takes per s")
    crash = Incident(fault="F10", at_ms=300.0, nodes=(0,))
    incidents = (sleep, *quiet().incidents, crash)
    return quiet(faults=("F10", "F14"), hints=True, incidents=incidents)


def test_a_provider_that_lags_behind_gives_it_when_it_has_come_far_enough() -> None:
    result = run(lagging())
    assert result.failures == ()
    heir = second_of(result.trace.rows)
    assert states_of(result.trace.rows, "D")[-1] == (trace.STATE_RECEIVED, heir)


def test_if_all_refuse_it_is_lost() -> None:
    result = run(quiet(refuse=1.0))
    assert result.failures == ()
    assert states_of(result.trace.rows, "D")[-1] == (trace.STATE_LOST, "")


# Broken on purpose


def keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatchUp, "keep", lambda self, events: None)


def loses_a_chunk(patch: pytest.MonkeyPatch) -> None:
    on_part = Taking._on_part

    def forgetful(self: Taking, *args: Any) -> Outcome:
        outcome = on_part(self, *args)
        if args[1].index == 1 and self.handover:
            self.handover.pop()
        return outcome

    patch.setattr(Taking, "_on_part", forgetful)


def gives_up_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who is refused once has lost its state."""
    patch.setattr(StateTransfer, "_give_up_on", lambda self, provider, out: self._lose(out))


def never_asks_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateTransfer, "_give_up_on", lambda self, provider, out: None)


def reads_ahead(patch: pytest.MonkeyPatch) -> None:
    """Who is to get a state reads on before it comes, and never comes to its cut."""
    take = StateTransfer.take_behind_view
    patch.setattr(StateTransfer, "take_behind_view", lambda self: (take(self)[0], False))


def who_lacks_it_gives(patch: pytest.MonkeyPatch) -> None:
    """The last of those who lack a state is to give it to the others."""
    share = views_parts.share_state

    def last(proposal: Any, parts: Any, states: Any) -> Any:
        provider, takers = share(proposal, parts, states)
        return (takers[-1], takers[:-1]) if takers else (provider, takers)

    patch.setattr(views_parts, "share_state", last)


def keeps_the_lesser_state(patch: pytest.MonkeyPatch) -> None:
    """Who is being given the state of a lesser part goes on with it."""
    share = views_parts.share_state

    def keep(proposal: Any, parts: Any, states: Any) -> Any:
        provider, takers = share(proposal, parts, states)
        given = {
            who
            for part in parts
            for who in part.members
            if states[who].standing.provider in part.members
        }
        return provider, tuple(who for who in takers if who not in given)

    patch.setattr(views_parts, "share_state", keep)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("breaks", "rules"),
    [
        (keeps_nothing, {"T2"}),
        (loses_a_chunk, {"T1"}),
        (gives_up_at_once, {"T4"}),
        (never_asks_another, {"T-L1"}),
        (reads_ahead, {"T4"}),
        (who_lacks_it_gives, {"T4"}),
        (keeps_the_lesser_state, {"T5"}),
    ],
)
def test_a_broken_node_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None],
    rules: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaks(monkeypatch)
    for seed, partitions in product(range(80), (False, True)):
        options = expand(seed, "group", partitions=partitions)
        if options.state and any(failure.rule in rules for failure in run(options).failures):
            return
    pytest.fail(f"80 seeds show no violation of {rules}")
