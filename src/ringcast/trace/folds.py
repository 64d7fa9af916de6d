"""The audit: every predicate of docs/properties.md that a trace can decide, in one pass.

Each predicate is a fold (`predicates/findings.py` says what that is). An audit hands each row to
the folds that asked for its event. Folds can also be fed apart, one per member or per segment,
and merged.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.trace.predicates.connections import (
    ExpiresInTime,
    LateIsNothing,
    NothingLostInSilence,
    StateMachine,
    WindowsOpenRight,
)
from ringcast.trace.predicates.delivery import (
    InOrder,
    JoinerServed,
    NothingOfTheDeparted,
    PrefixOfTheDead,
)
from ringcast.trace.predicates.everywhere import (
    AtMostOnce,
    BoundedMemory,
    Integrity,
    SilentDead,
    ViewOrder,
)
from ringcast.trace.predicates.findings import Fold, Verdict, Violation
from ringcast.trace.predicates.flow import (
    AckersAreMembers,
    AckHonesty,
    FlowControl,
    PurgedByAll,
    SameBytesAgain,
    WindowHonoured,
)
from ringcast.trace.predicates.liveness import (
    CalmUnderOverload,
    DeliveredInTime,
    Drained,
    Quiet,
    UnblockedAtOnce,
    ViewsPass,
)
from ringcast.trace.predicates.membership import (
    Agreement,
    JoinedInTime,
    LeftInTime,
    OneView,
    ServedByItsView,
)
from ringcast.trace.predicates.merging import BeginsWhereNamed, Restful, WindowsStay
from ringcast.trace.predicates.replay import Replay
from ringcast.trace.predicates.retained import (
    only_what_was_left,
    same_prefix,
    unblocked_by_votes,
)
from ringcast.trace.predicates.sequential import Sequential
from ringcast.trace.predicates.state import (
    AsItsProviderHadIt,
    LostOnlyIfNobodyHasIt,
    OnceBehindItsState,
    StateInTime,
    StateIsWhatWasHanded,
)
from ringcast.trace.predicates.sync import (
    NoEndlessRepair,
    OnceAcrossSyncs,
    OneConnectionPerDrop,
    OneDirection,
    TakenBeforePurged,
)
from ringcast.trace.predicates.sync_liveness import FlowsAgain, SyncEnds, SyncIsCheap
from ringcast.trace.predicates.unicast import Acknowledged, HighestAgain, InTurn, Selective
from ringcast.trace.predicates.unicast_liveness import (
    AckedInTime,
    AcksSoon,
    DeliveredToOne,
    GivenUpInTime,
    HighestSoonAgain,
    IdleIsGone,
    QuietPairs,
)
from ringcast.trace.predicates.uniform import (
    Agreed,
    AllOrNone,
    HeldByAll,
    OnlyTargets,
    OnStream,
)
from ringcast.trace.predicates.uniform_liveness import (
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
    "Fold",
    "Verdict",
    "Violation",
    "audit",
    "feed_all",
]

ALL: tuple[Callable[[], Fold], ...] = (
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
"""Makers of the folds for multicast, G1 to N-L5."""

UNICAST: tuple[Callable[[], Fold], ...] = (
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
    TakenBeforePurged,
    NoEndlessRepair,
    partial(Replay, OnceAcrossSyncs),
    partial(Replay, OneConnectionPerDrop),
    partial(Replay, OneDirection),
    FlowsAgain,
    partial(Replay, SyncIsCheap),
    partial(Replay, SyncEnds),
)
"""Makers of the folds for unicast, G2 to Y-L3."""

GROUP: tuple[Callable[[], Fold], ...] = (
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
"""Makers of the folds for whole nodes that make their own views, G1 to V-L4."""

STATE: tuple[Callable[[], Fold], ...] = (
    AsItsProviderHadIt,
    OnceBehindItsState,
    StateIsWhatWasHanded,
    LostOnlyIfNobodyHasIt,
    StateInTime,
)
"""Makers of the folds for groups whose applications have a state, T1 to T-L1."""

_TIMED = (DeliveredInTime, Drained)
"""Uniform messages wait for commits, and have bounds of their own."""

UNIFORM: tuple[Callable[[], Fold], ...] = (
    *(make for make in GROUP if make not in _TIMED),
    *(partial(OnStream, make, Stream.FIFO) for make in _TIMED),
    Agreed,
    OnlyTargets,
    HeldByAll,
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
"""Makers of the folds for groups with the uniform stream: those of a group, and U1 to U-L3."""

BY_PROTOCOL = {"multicast": ALL, "unicast": UNICAST, "group": (*GROUP, *STATE), "uniform": UNIFORM}


def folds_for(facts: Facts) -> list[Fold]:
    """One for every predicate of this run's protocol, in the order of its tuple above. Where
    members vote, or retain messages, some are judged otherwise."""
    folds = {fold.id: fold for fold in (make() for make in BY_PROTOCOL[facts.protocol])}
    others: tuple[Fold, ...] = ()
    if facts.purge != "acks":
        others = (unblocked_by_votes(),)
    if facts.is_retained:
        others += (only_what_was_left(), same_prefix(), Resolved())
    return list({**folds, **{fold.id: fold for fold in others}}.values())


def audit(trace: Trace) -> list[Verdict]:
    """What every predicate of the trace's protocol says."""
    folds = folds_for(trace.facts)
    feed_all(folds, trace.rows)
    return [fold.finish(trace.facts) for fold in folds]


def feed_all(folds: Iterable[Fold], rows: Iterable[Row]) -> None:
    """Hand each row to the folds that want its event."""
    routes: defaultdict[str, list[Callable[[Row], None]]] = defaultdict(list)
    for fold in folds:
        for event in fold.events:
            routes[event].append(fold.feed)
    for row in rows:
        for feed in routes.get(row.event, ()):
            feed(row)
