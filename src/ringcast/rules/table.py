"""The audit: every rule of docs/properties.md that a trace can decide, in one pass.

`rules/findings.py` says what a rule is. An audit hands each row to the rules that asked for its
event. Rules can also be fed apart, one per member or per segment, and merged.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from ringcast.rules.changes import ChangesEnd, RarelyAtWill
from ringcast.rules.connections import (
    ExpiresInTime,
    LateIsNothing,
    NothingLostInSilence,
    StateMachine,
    WindowsOpenRight,
)
from ringcast.rules.delivery import InItsView, InOrder, PrefixOfTheDead
from ringcast.rules.everywhere import AtMostOnce, BoundedMemory, Integrity, SilentDead
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
)
from ringcast.rules.membership import JoinedInTime, LeftInTime, OneView, Restful
from ringcast.rules.replay import Replay
from ringcast.rules.sequential import Sequential
from ringcast.rules.stability import UnblockedByStability
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
from ringcast.rules.uniform import NothingLeft, ReceivedByAll, ThreeDelays, Valid
from ringcast.rules.views import (
    AllOfWhoGoesAlong,
    NoNeedlessLoss,
    PrefixOfTheView,
    SameTogether,
    SentInItsView,
    SilentWhileFrozen,
    UniformInAll,
    ViewOrder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    "feed_all",
]

VIEWS: tuple[Callable[[], Rule], ...] = (
    ViewOrder,
    SentInItsView,
    PrefixOfTheView,
    AllOfWhoGoesAlong,
    SameTogether,
    NoNeedlessLoss,
    SilentWhileFrozen,
)
"""Makers of the rules about views, of whatever is sent in them."""

MEMBERSHIP: tuple[Callable[[], Rule], ...] = (
    OneView,
    JoinedInTime,
    LeftInTime,
    Restful,
    ChangesEnd,
    RarelyAtWill,
)
"""How soon views come."""

MULTICAST: tuple[Callable[[], Rule], ...] = (
    Integrity,
    AtMostOnce,
    SilentDead,
    BoundedMemory,
    Quiet,
    InOrder,
    partial(Sequential, FlowControl()),
    WindowHonoured,
    PurgedByAll,
    partial(Sequential, AckHonesty()),
    partial(Sequential, AckersAreMembers()),
    partial(Sequential, InItsView()),
    SameBytesAgain,
    PrefixOfTheDead,
    DeliveredInTime,
    Drained,
    partial(Sequential, UnblockedAtOnce()),
    CalmUnderOverload,
    *VIEWS,
    *MEMBERSHIP,
)
"""Makers of the rules for messages to the group, and for its views."""

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
    *MULTICAST,
    InTurn,
    partial(Replay, Acknowledged),
    partial(Replay, NothingLostInSilence),
)
"""Makers of the rules for whole nodes: the same, and that messages to one member come too."""

STATE: tuple[Callable[[], Rule], ...] = (
    AsItsProviderHadIt,
    OnceBehindItsState,
    StateIsWhatWasHanded,
    LostOnlyIfNobodyHasIt,
    StateInTime,
)
"""Makers of the rules for groups whose applications have a state, T1 to T-L1."""

UNIFORM: tuple[Callable[[], Rule], ...] = (
    *GROUP,
    UniformInAll,
    ReceivedByAll,
    Valid,
    NothingLeft,
    ThreeDelays,
)
"""Makers of the rules for groups with the uniform stream."""

BY_PROTOCOL = {
    "multicast": MULTICAST,
    "unicast": UNICAST,
    "group": (*GROUP, *STATE),
    "uniform": UNIFORM,
}


def rules_for(facts: Facts) -> list[Rule]:
    """One for every rule of this run's protocol, in the order of its tuple above. Where members
    report what they have delivered, a sender is freed otherwise."""
    rules = {rule.id: rule for rule in (make() for make in BY_PROTOCOL[facts.protocol])}
    if facts.has_stability and UnblockedByStability.id in rules:
        rules[UnblockedByStability.id] = UnblockedByStability()
    return list(rules.values())


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
