"""The audit: every rule of docs/properties.md that a trace can decide, in one pass.

`rules/findings.py` says what a rule is. An audit hands each row to the rules that asked for its
event. Rules can also be fed apart, one per member or per segment, and merged.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.rules.connections import (
    ExpiresInTime,
    LateIsNothing,
    NothingLostInSilence,
    StateMachine,
    WindowsOpenRight,
)
from ringcast.rules.delivery import (
    InOrder,
    JoinerServed,
    NothingOfTheDeparted,
    PrefixOfTheDead,
)
from ringcast.rules.everywhere import (
    AtMostOnce,
    BoundedMemory,
    Integrity,
    SilentDead,
    ViewOrder,
)
from ringcast.rules.findings import Rule, Verdict, Violation
from ringcast.rules.flow import (
    AckersAreMembers,
    AckHonesty,
    FlowControl,
    PurgedByAll,
    SameBytesAgain,
    WindowHonoured,
)
from ringcast.rules.liveness import (
    CalmUnderOverload,
    DeliveredInTime,
    Drained,
    Quiet,
    UnblockedAtOnce,
    ViewsPass,
)
from ringcast.rules.membership import (
    Agreement,
    JoinedInTime,
    LeftInTime,
    OneView,
    ServedByItsView,
)
from ringcast.rules.merging import BeginsWhereNamed, Restful, WindowsStay
from ringcast.rules.replay import Replay
from ringcast.rules.retained import (
    only_what_was_left,
    same_prefix,
    unblocked_by_stability,
)
from ringcast.rules.sequential import Sequential
from ringcast.rules.state import (
    AsItsProviderHadIt,
    LostOnlyIfNobodyHasIt,
    OnceBehindItsState,
    StateInTime,
    StateIsWhatWasHanded,
)
from ringcast.rules.sync import (
    DeliveredBeforePurged,
    NoEndlessRepair,
    OnceAcrossSyncs,
    OneConnectionPerDrop,
    OneDirection,
)
from ringcast.rules.sync_liveness import FlowsAgain, SyncEnds, SyncIsCheap
from ringcast.rules.unicast import Acknowledged, HighestAgain, InTurn, Selective
from ringcast.rules.unicast_liveness import (
    AckedInTime,
    AcksSoon,
    DeliveredToOne,
    GivenUpInTime,
    HighestSoonAgain,
    IdleIsGone,
    QuietPairs,
)
from ringcast.rules.uniform import (
    Agreed,
    AllOrNone,
    OnlyTargets,
    OnStream,
    ReceivedByAll,
)
from ringcast.rules.uniform_liveness import (
    LeavesSoon,
    NothingLeft,
    Resolved,
    ThreeDelays,
    Valid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringcast.trace.rows import Facts, Row, Trace

__all__ = [
    "ALL",
    "GROUP",
    "STATE",
    "UNICAST",
    "UNIFORM",
    "Rule",
    "Verdict",
    "Violation",
    "audit",
    "feed_all",
]

ALL: tuple[Callable[[], Rule], ...] = (
    Integrity,
    AtMostOnce,
    SilentDead,
    ViewOrder,
    BoundedMemory,
    Quiet,
    InOrder,
    partial(Sequential, FlowControl()),
    WindowHonoured,
    PurgedByAll,
    partial(Sequential, AckHonesty()),
    partial(Sequential, AckersAreMembers()),
    partial(Sequential, NothingOfTheDeparted()),
    JoinerServed,
    SameBytesAgain,
    PrefixOfTheDead,
    DeliveredInTime,
    Drained,
    partial(Sequential, UnblockedAtOnce()),
    partial(Sequential, ViewsPass()),
    CalmUnderOverload,
)
"""Makers of the rules for multicast, G1 to N-L5."""

UNICAST: tuple[Callable[[], Rule], ...] = (
    AtMostOnce,
    SilentDead,
    ViewOrder,
    BoundedMemory,
    QuietPairs,
    InTurn,
    partial(Replay, Acknowledged),
    partial(Replay, HighestAgain),
    partial(Replay, Selective),
    partial(Replay, StateMachine),
    partial(Replay, WindowsOpenRight),
    partial(Replay, LateIsNothing),
    partial(Replay, NothingLostInSilence),
    partial(Replay, ExpiresInTime),
    DeliveredToOne,
    AckedInTime,
    partial(Replay, AcksSoon),
    partial(Replay, IdleIsGone),
    partial(Replay, GivenUpInTime),
    partial(Replay, HighestSoonAgain),
    DeliveredBeforePurged,
    NoEndlessRepair,
    partial(Replay, OnceAcrossSyncs),
    partial(Replay, OneConnectionPerDrop),
    partial(Replay, OneDirection),
    FlowsAgain,
    partial(Replay, SyncIsCheap),
    partial(Replay, SyncEnds),
)
"""Makers of the rules for unicast, G2 to Y-L3."""

GROUP: tuple[Callable[[], Rule], ...] = (
    Integrity,
    AtMostOnce,
    SilentDead,
    ViewOrder,
    BoundedMemory,
    Quiet,
    InOrder,
    partial(Sequential, FlowControl()),
    WindowHonoured,
    PurgedByAll,
    partial(Sequential, AckHonesty()),
    partial(Sequential, AckersAreMembers()),
    partial(Sequential, NothingOfTheDeparted()),
    ServedByItsView,
    SameBytesAgain,
    PrefixOfTheDead,
    DeliveredInTime,
    Drained,
    partial(Sequential, UnblockedAtOnce()),
    CalmUnderOverload,
    InTurn,
    partial(Replay, Acknowledged),
    partial(Replay, NothingLostInSilence),
    WindowsStay,
    Agreement,
    BeginsWhereNamed,
    OneView,
    JoinedInTime,
    LeftInTime,
    Restful,
)
"""Makers of the rules for whole nodes that make their own views, G1 to V-L4."""

STATE: tuple[Callable[[], Rule], ...] = (
    AsItsProviderHadIt,
    OnceBehindItsState,
    StateIsWhatWasHanded,
    LostOnlyIfNobodyHasIt,
    StateInTime,
)
"""Makers of the rules for groups whose applications have a state, T1 to T-L1."""

_TIMED = (DeliveredInTime, Drained)
"""Uniform messages wait for commits, and have bounds of their own."""

UNIFORM: tuple[Callable[[], Rule], ...] = (
    *(make for make in GROUP if make not in _TIMED),
    *(partial(OnStream, make, Stream.FIFO) for make in _TIMED),
    Agreed,
    OnlyTargets,
    ReceivedByAll,
    partial(
        OnStream,
        InOrder,
        Stream.UNIFORM,
        id="U4",
        title="uniform messages of one sender are delivered in order, also those of a departed one",
    ),
    Valid,
    AllOrNone,
    NothingLeft,
    ThreeDelays,
    Resolved,
    LeavesSoon,
)
"""Makers of the rules for groups with the uniform stream: those of a group, and U1 to U-L3."""

BY_PROTOCOL = {"multicast": ALL, "unicast": UNICAST, "group": (*GROUP, *STATE), "uniform": UNIFORM}


def rules_for(facts: Facts) -> list[Rule]:
    """One for every rule of this run's protocol, in the order of its tuple above. Where
    members report, or retain messages, some are judged otherwise."""
    rules = {rule.id: rule for rule in (make() for make in BY_PROTOCOL[facts.protocol])}
    others: tuple[Rule, ...] = ()
    if facts.purge != "acks":
        others = (unblocked_by_stability(),)
    if facts.is_retained:
        others += (only_what_was_left(), same_prefix(), Resolved())
    return list({**rules, **{rule.id: rule for rule in others}}.values())


def audit(trace: Trace) -> list[Verdict]:
    """What every rule of the trace's protocol says."""
    rules = rules_for(trace.facts)
    feed_all(rules, trace.rows)
    return [rule.finish(trace.facts) for rule in rules]


def feed_all(rules: Iterable[Rule], rows: Iterable[Row]) -> None:
    """Hand each row to the rules that want its event."""
    routes: defaultdict[str, list[Callable[[Row], None]]] = defaultdict(list)
    for rule in rules:
        for event in rule.events:
            routes[event].append(rule.feed)
    for row in rows:
        for feed in routes.get(row.event, ()):
            feed(row)
