"""The audit: every rule of docs/properties.md that a trace can decide.

`rules/findings.py` says what a rule is, `rules/evidence.py` what it judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.rules import (
    connections,
    delivery,
    everywhere,
    flow,
    liveness,
    membership,
    state,
    sync,
    unicast,
    unicast_liveness,
    uniform,
    views,
)
from ringcast.rules.evidence import Run
from ringcast.rules.findings import Rule, Verdict, Violation, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringcast.trace.rows import Facts, Row, Trace

__all__ = [
    "GROUP",
    "MULTICAST",
    "STATE",
    "UNICAST",
    "UNIFORM",
    "VIEWS",
    "Rule",
    "Verdict",
    "Violation",
    "audit",
    "verdicts",
]

VIEWS: tuple[Rule, ...] = (
    views.view_order,
    views.sent_in_its_view,
    views.prefix_of_the_view,
    views.all_of_who_goes_along,
    views.same_together,
    views.no_needless_loss,
    views.silent_while_frozen,
)
"""About views, of whatever is sent in them."""

MEMBERSHIP: tuple[Rule, ...] = (
    membership.one_view,
    membership.joined_in_time,
    membership.left_in_time,
    membership.restful,
    membership.changes_end,
    membership.rarely_at_will,
)
"""How soon views come."""

MULTICAST: tuple[Rule, ...] = (
    everywhere.integrity,
    everywhere.at_most_once,
    everywhere.silent_dead,
    everywhere.BoundedMemory,
    liveness.quiet,
    delivery.in_order,
    flow.flow_control,
    flow.WindowHonoured,
    flow.purged_by_all,
    flow.AckHonesty,
    flow.AckersAreMembers,
    delivery.InItsView,
    flow.SameBytesAgain,
    delivery.prefix_of_the_dead,
    liveness.delivered_in_time,
    liveness.drained,
    liveness.unblocked,
    liveness.calm_under_overload,
    *VIEWS,
    *MEMBERSHIP,
)
"""For messages to the group, and for its views."""

UNICAST: tuple[Rule, ...] = (
    everywhere.at_most_once,
    everywhere.silent_dead,
    views.view_order,
    everywhere.BoundedMemory,
    unicast_liveness.quiet_pairs,
    unicast.in_turn,
    unicast.Acknowledged,
    unicast.HighestAgain,
    unicast.Selective,
    connections.StateMachine,
    connections.WindowsOpenRight,
    connections.LateIsNothing,
    connections.NothingLostInSilence,
    connections.ExpiresInTime,
    unicast_liveness.delivered_to_one,
    unicast_liveness.acked_in_time,
    unicast_liveness.AcksSoon,
    unicast_liveness.IdleIsGone,
    unicast_liveness.GivenUpInTime,
    unicast_liveness.HighestSoonAgain,
    sync.delivered_before_purged,
    sync.no_endless_repair,
    sync.once_across_syncs,
    sync.OneConnectionPerDrop,
    sync.OneDirection,
    sync.flows_again,
    sync.SyncIsCheap,
    sync.SyncEnds,
)
"""For unicast, G2 to Y-L3."""

GROUP: tuple[Rule, ...] = (
    *MULTICAST,
    unicast.in_turn,
    unicast.Acknowledged,
    connections.NothingLostInSilence,
)
"""For whole nodes: the same, and that messages to one member come too."""

STATE: tuple[Rule, ...] = (
    state.as_its_provider_had_it,
    state.once_behind_its_state,
    state.state_is_what_was_handed,
    state.lost_only_if_nobody_has_it,
    state.state_in_time,
)
"""For groups whose applications have a state, T1 to T-L1."""

UNIFORM: tuple[Rule, ...] = (
    *GROUP,
    views.uniform_in_all,
    uniform.received_by_all,
    uniform.valid,
    uniform.nothing_left,
    uniform.three_delays,
)
"""For groups with the uniform stream."""

BY_PROTOCOL = {
    "multicast": MULTICAST,
    "unicast": UNICAST,
    "group": (*GROUP, *STATE),
    "uniform": UNIFORM,
}


def verdicts(rules: Iterable[Rule], rows: Iterable[Row], facts: Facts) -> list[Verdict]:
    """What these rules say of a run."""
    run = Run(rows, facts)
    return [verdict_of(rule, run) for rule in rules]


def audit(trace: Trace) -> list[Verdict]:
    """What every rule of the trace's protocol says."""
    return verdicts(BY_PROTOCOL[trace.facts.protocol], trace.rows, trace.facts)
