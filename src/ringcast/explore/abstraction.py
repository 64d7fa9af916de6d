"""Copies of state machines, and their canonical form: what exhaustive exploration needs.

`clone` copies what can change and shares what cannot. What several machines share, such as the
table of deadlines, is copied once, and their copies share it.

`canonical` turns a machine into nested tuples that are equal when the machines behave alike from
now on. It leaves out what does not matter for that: configurations, by their type, and what
LEFT_OUT names. Machines know nothing of it. An attribute that is not named here counts as state:
that is safe, it only makes more states; a test asks for each to be classified.

This is `copy.deepcopy` without its protocol: several times faster, which is the difference between
minutes and hours of exploration.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import MethodType
from typing import Any, NamedTuple, TypeVar

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, UnicastConfig
from ringcast.core.shared import Deadlines, GroupState, Timers
from ringcast.core.view_change import Part
from ringcast.datagrams import Datagrams
from ringcast.errors import Undeliverable
from ringcast.node import Node
from ringcast.protocols.connection import Tail
from ringcast.protocols.early import Early, Strangers
from ringcast.protocols.limits import Limits
from ringcast.protocols.memory import Memory
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_receiver import MulticastReceiver
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.protocols.repair import Gap, Repair, Request
from ringcast.protocols.stack import Stack
from ringcast.protocols.stream import ReceiveStream, SendStream
from ringcast.protocols.total.history import Entries
from ringcast.protocols.total.order import TotalOrder
from ringcast.protocols.total.pending import Pending
from ringcast.protocols.total.queues import Queues
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.unicast_receiver import Tombstone, UnicastReceiver
from ringcast.protocols.unicast_receiving import SyncRequest, UnicastReceiving
from ringcast.protocols.unicast_sender import UnicastSender
from ringcast.protocols.views.fetch import Fetch
from ringcast.protocols.views.reading import UnreadView
from ringcast.window.fragmenter import Fragmenter
from ringcast.window.receive import ReceiveWindow
from ringcast.wire.codec import Codec
from ringcast.wire.seal import Passage

T = TypeVar("T")


class LeftOut(NamedTuple):
    """Attributes of one class that do not tell its machines apart, separated by spaces."""

    terms: str = ""  # fixed when the machine is made, or by its driver
    counters: str = ""  # for people; and numbers that only grow
    instants: str = ""  # clocks, durations, and who is first to be served
    elsewhere: str = ""  # what other attributes, or other machines, tell as well

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for words in self for name in words.split())


_PARTS = "multicast unicast membership detector state channel observer"

LEFT_OUT: dict[type, LeftOut] = {
    Node: LeftOut("me codec memory", "_receipts_asked", "", _PARTS + " effects minimum unsaid"),
    Datagrams: LeftOut("codec passage _bytes_max _tells_purged", "rejected", "", "stack"),
    Stack: LeftOut("me _owner _channel_at _before_change _divide _reject", "", "_turn", _PARTS),
    ReliableMulticast: LeftOut(
        "me streams receive_buffer _fragment_bytes _datagram_bytes _datagram_room"
        " allowed_bytes _slow_member_timeout_s _tau",
        "generation refused early_dropped peer_repaired _peer_repaired_to _last_sent _datagram",
        "_turn _said_in",
        "ready",
    ),
    MulticastSender: LeftOut(
        "origin _me _stream _tau _slow_after _commits",
        "",
        "heard _quota _probe_interval _ack_time _timed _stuck_since _probed_since",
        # The last one is for who leaves by itself, receipts for who asks: nobody explored does.
        "window fragments _delivered_by_others",
    ),
    # Capacities are set where anything is explored: windows do not grow.
    Limits: LeftOut(
        "_me _assumed _state _messages _bytes _before _patience _rounds _why",
        instants="is_timed look_at _halved_at _quickest _round_began _round_low _round_end",
        elsewhere="window widest",
    ),
    MulticastReceiver: LeftOut(
        "origin helpers _grows _ack_every _ack_delay _ack_datagrams _ample",
        "acks_sent",
        "last_data _turn",
        "window assembler repair",
    ),
    SendStream: LeftOut("frame _dest", "retransmitted", "blocked_since", "window _own receipts"),
    ReceiveStream: LeftOut(counters="nack_sent"),
    Repair: LeftOut(
        instants="_answered_at _not_before _patience _round_trip is_repeated _datagram",
        elsewhere="_awaited",
    ),
    Gap: LeftOut(instants="since asked is_doubtful"),
    Request: LeftOut(instants="asked_at"),
    ReceiveWindow: LeftOut(counters="duplicates dropped_low dropped_high dropped_bytes"),
    Fragmenter: LeftOut("largest", "starts"),  # nothing explored starts over three times
    UnicastReceiving: LeftOut(
        "me receive_buffer _datagram_bytes _is_system _first_epoch _max_message_bytes _tau",
        "stale refused _datagram",
        elsewhere="ready",
    ),
    ReliableUnicast: LeftOut("_fragment_bytes", "ticks", "_turn", "_receipts"),
    UnicastSender: LeftOut(
        "peer _datagram_bytes _expiry _linger _give_up_after",
        "tail_retransmitted",
        *("used_at heard_at _answer_ticks", "window fragments"),
    ),
    UnicastReceiver: LeftOut(
        "peer _ack_interval _ack_every _expiry _linger",
        # The last three decide when 64 messages or 64 KiB have come: nobody explored sends those.
        "acks_sent _allowed _delivered_bytes _datagrams",
        "used_at last_data",
        "window assembler repair",
    ),
    Tombstone: LeftOut(elsewhere="size"),
    Tail: LeftOut(
        "_tau _ack_interval", instants="pause _is_retransmitted _round_trip _start _timed"
    ),
    Fetch: LeftOut("me _half_of", instants="_tries _interval"),
    TotalOrder: LeftOut(
        "me _fragment_bytes", "refused", "_blocked_since _sent_at _interval", "view entries"
    ),
    Pending: LeftOut("capacity", elsewhere="size _ahead"),
    Queues: LeftOut(counters="overdrawn", elsewhere="_sizes"),
    Entries: LeftOut(elsewhere="log _view"),
}

TOLD_BY: dict[type, Callable[[Any], Any]] = {
    # When one is due is left to whoever explores all orders.
    Timers: lambda timers: frozenset(timers.by_key),
    # Ticks are not counted where clocks do not count; whether it was ever asked matters.
    SyncRequest: lambda sync_request: (
        sync_request.conn,
        sync_request.nonce,
        sync_request.asked > 0,
    ),
    # The halves themselves are told by the streams that they belong to.
    UnreadView: lambda view: (
        len(view.events),
        {half.origin: cut for half, cut in view.cuts.items()},
        view.has_new,
        view.pauses,
        view.start and (view.start.position, dict(view.start.seen)),
    ),
    Part: lambda part: (part.view, part.members, dict(part.cuts), dict(part.sources)),
    Early: lambda early: {
        peer: (kept.conn, {first: run.payloads for first, run in kept.runs.items()})
        for peer, kept in early._kept.items()
    },
    Strangers: lambda strangers: {
        peer: [(run.conn, run.first, run.payloads) for run in kept.items.values()]
        for peer, kept in strangers._kept.items()
    },
}
"""Machines that are told in another way than by their attributes."""

_TERMS = (GroupConfig, MulticastConfig, UnicastConfig, MembershipConfig)
_TOLD_ELSEWHERE = (Deadlines, GroupState)  # by the owners of timers; once, for the whole machine

# A tuple counts as shared: machines keep only immutable things in tuples.
_PLAIN = (int, str, bytes, float, bool, type(None), range, frozenset, Enum, tuple)
_SHARED = (*_PLAIN, Codec, Memory, Passage, Undeliverable)


def clone(value: T) -> T:
    """An independent copy of a machine or of plain containers of machines."""
    return _clone(value, {})  # type: ignore[no-any-return]


def _clone(value: Any, copies: dict[int, Any]) -> Any:
    kind: Any = type(value)
    if kind is dict or kind is Counter:
        return kind(
            {
                key if isinstance(key, _PLAIN) else _clone(key, copies): _clone(item, copies)
                for key, item in value.items()
            }
        )
    if kind is list:
        return [_clone(item, copies) for item in value]
    if kind is deque:
        return deque([_clone(item, copies) for item in value], value.maxlen)
    if kind is set or kind is bytearray:
        return value.copy()
    if kind is MethodType:
        return MethodType(value.__func__, _clone(value.__self__, copies))
    if isinstance(value, _SHARED) or callable(value) or _is_frozen(kind):
        return value
    if isinstance(value, list | dict | set):
        raise TypeError(f"cannot clone a {kind.__qualname__}: use the plain container")
    copy = copies.get(id(value))
    if copy is None:
        copy = copies[id(value)] = object.__new__(kind)
        for name in attributes(value):
            object.__setattr__(copy, name, _clone(getattr(value, name), copies))
    return copy


def canonical(value: Any) -> Any:
    """Nested tuples, hashable, the same for machines that cannot be told apart."""
    group = getattr(value, "group", None)
    if not isinstance(group, GroupState):
        return _canonical(value)
    return _canonical(value), _canonical(group.view)


def _canonical(value: Any) -> Any:
    kind: Any = type(value)
    if kind is tuple:
        return tuple(map(_canonical, value))
    if kind in TOLD_BY:
        return _canonical(TOLD_BY[kind](value))
    if isinstance(value, _PLAIN) or callable(value):
        return value
    if kind is dict or kind is Counter:
        return frozenset([(key, _canonical(item)) for key, item in value.items()])
    if kind is list or kind is deque:
        return tuple(map(_canonical, value))
    if kind is set:
        return frozenset(value)
    if kind is bytearray:
        return bytes(value)
    if kind in _TERMS or kind in _TOLD_ELSEWHERE:
        return ()
    hidden = left_out(kind)
    return (
        kind.__name__,
        *(_canonical(getattr(value, name)) for name in attributes(value) if name not in hidden),
    )


@cache
def left_out(kind: type) -> frozenset[str]:
    """What does not tell machines of this class apart, as its bases have it."""
    found = (LEFT_OUT[base].names for base in kind.__mro__ if base in LEFT_OUT)
    return frozenset[str]().union(*found)


def attributes(value: Any) -> list[str]:
    """The instance attributes that are set, slots of all classes first."""
    kind: Any = type(value)
    return [*_slots(kind), *getattr(value, "__dict__", ())]


@cache
def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The slots of a class and its bases; our machines set all of them at construction."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
