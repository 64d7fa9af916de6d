"""The audit: every rule of docs/properties.md that a trace can decide, by protocol.

`rules/findings.py` says what a rule is, `rules/evidence.py` what it judges.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from ringcast.rules import (
    connections,
    delivery,
    flow,
    liveness,
    membership,
    state,
    sync,
    total,
    unicast,
    unicast_liveness,
    views,
)
from ringcast.rules.evidence import Run
from ringcast.rules.findings import Rule, Verdict, verdict_of
from ringcast.trace.rows import Facts, Row, Trace


def _stated_in(*modules: ModuleType) -> dict[str, Rule]:
    """The rules of these modules, by id."""
    values = (value for module in modules for value in vars(module).values())
    return {each.id: each for each in values if isinstance(each, Rule)}


_BY_ID = _stated_in(delivery, flow, liveness, membership, state, total, views)
_OF_PAIRS = {**_BY_ID, **_stated_in(connections, sync, unicast, unicast_liveness)}
"""With those of messages to one member, in place of those of the group that have the same id."""


def _rules(ids: str, of: dict[str, Rule] = _BY_ID) -> tuple[Rule, ...]:
    return tuple(of[id] for id in ids.split())


VIEWS = _rules("VS1 VS2 VS3 VS4 VS5 VS7 VS9")
"""About views, of whatever is sent in them."""

MEMBERSHIP = _rules("V-L1 V-L2 V-L3 V-L4 V-L5 V-L6")
"""How soon views come."""

MULTICAST = (
    *_rules("G1 G2 G3 G5 G8 N1 N3 N4 N5 N6 N7 N8 N10 N11 N-L1 N-L2 N-L3 N-L5"),
    *VIEWS,
    *MEMBERSHIP,
)
"""For messages to the group, and for its views."""

UNICAST = _rules(
    "G2 G3 VS1 G5 G8 S1 S2 S3 S4 S5 S6 S7 S8 S9 S-L1 S-L2 S-L3 S-L4 S-L5 S-L6 "
    "Y1 Y2 Y3 Y4 Y5 Y-L1 Y-L2 Y-L3",
    _OF_PAIRS,
)
"""For unicast, G2 to Y-L3."""

GROUP = (*MULTICAST, *_rules("S1 S2 S8", _OF_PAIRS))
"""For whole nodes: the same, and that messages to one member come too."""

STATE = _rules("T1 T2 T3 T4 T5 T-L1")
"""For groups whose applications have a state."""

UNIFORM = (*GROUP, *_rules("VS6 U3 U5 U7 U-L1"))
"""For groups with the uniform stream."""

ORDER = _rules("O1 O2 O3 O4 O5 O6 O7 O8 O9 O-L1")
"""About one order of total messages."""

TOTAL = (*GROUP, *ORDER)
"""For groups with total messages."""

BY_PROTOCOL = {
    "multicast": MULTICAST,
    "unicast": UNICAST,
    "group": (*GROUP, *STATE),
    "uniform": UNIFORM,
    "total": TOTAL,
}


def verdicts(
    rules: Iterable[Rule],
    rows: Iterable[Row],
    facts: Facts,
    unrecorded: frozenset[str] = frozenset(),
) -> list[Verdict]:
    """What these rules say of a run, in which nothing follows from what these members lack."""
    run = Run(rows, facts, unrecorded)
    return [verdict_of(rule, run) for rule in rules]


def audit(trace: Trace) -> list[Verdict]:
    """What every rule of the trace's protocol says."""
    return verdicts(BY_PROTOCOL[trace.facts.protocol], trace.rows, trace.facts)
