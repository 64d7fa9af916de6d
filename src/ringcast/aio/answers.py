"""What a member tells about itself when its user asks: as plain values, for JSON.

Counters only grow while a member is in its group; who asks twice makes rates of them. Members are
told apart by address and incarnation: names are labels, and two may bear the same.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ringcast.core.shared import Phase
from ringcast.errors import RingcastError, UsageError

if TYPE_CHECKING:
    from ringcast.aio.driver import Driver
    from ringcast.aio.group import Group
    from ringcast.aio.probe import Question
    from ringcast.events import Closed
    from ringcast.model import Member, View
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.protocols.stream import SendStream

ASKS = ("view", "health", "explain", "stats", "top", "sync")


def answer(question: Question, group: Group, driver: Driver) -> dict[str, object]:
    """`{"ask": …}` is one of ASKS; "sync" also has the `peer` that is meant."""
    who: dict[str, object] = {
        "group": driver.node.config.group,
        "member": tell_member(group.me),
        "pid": os.getpid(),
        **_view(driver),
    }
    match question:
        case {"ask": "view"}:
            return who
        case {"ask": "health"}:
            return {**who, **group.health()._asdict()}
        case {"ask": "explain"}:
            return {**who, "reasons": group.explain()}
        case {"ask": "stats"}:
            return {**who, "stats": group.stats()}
        case {"ask": "top"}:
            return {**who, **_top(group, driver)}
        case {"ask": "sync", "peer": str(peer)}:
            return {**who, **_sync(group, driver, peer)}
    raise UsageError(f"not a question: ask for one of {', '.join(ASKS)}; for sync, name the peer")


def _sync(group: Group, driver: Driver, name: str) -> dict[str, object]:
    """That a member has nothing to ask is no reason not to say who it is."""
    try:
        peer = _find(driver.node.view, name)
        if peer == group.me:
            raise UsageError("it is the one that is meant")
        group.sync(peer)
    except RingcastError as error:
        return {"peer": None, "refusal": str(error)}
    return {"peer": tell_member(peer), "refusal": ""}


def tell_member(member: Member) -> dict[str, object]:
    return {
        "name": str(member),
        "address": str(member.address),
        "incarnation": f"{member.incarnation:016x}",
    }


def _view(driver: Driver) -> dict[str, object]:
    """Who is in the group; nobody, while this member is looking for it."""
    view = driver.node.view
    return {
        "phase": driver.membership.phase.value,
        "view": 0 if view is None else view.counter,
        "members": list(map(tell_member, view or ())),
    }


def _find(view: View | None, text: str) -> Member:
    """By name or by address."""
    found = [member for member in view or () if text in (member.name, str(member.address))]
    if len(found) != 1:
        count = "no member" if not found else f"{len(found)} members"
        hint = ": give the address" if found else ""
        raise UsageError(f"{count} named {text!r} in {view or 'no view'}{hint}")
    return found[0]


def _top(group: Group, driver: Driver) -> dict[str, object]:
    now = time.monotonic_ns()
    node, stats = driver.node, group.stats()
    return {
        "at_ns": now,
        "sent": [
            {"stream": stream.name.lower(), **_sent(sending, now)}
            for stream, sending in node.multicast.senders.items()
        ],
        "received": [
            {
                "sender": tell_member(origin.sender),
                "stream": origin.stream.name.lower(),
                "delivered": receiver.window.delivered,
                "received": receiver.window.received,
                "high": receiver.window.high,
                "capacity": receiver.window.capacity,
                "gaps": receiver.repair.gap_count,
                "nack_sent": receiver.stream.nack_sent,
            }
            for origin, receiver in node.multicast.receivers.items()
        ],
        "to": [
            {
                "member": tell_member(peer),
                "low": sender.window.low,
                "high": sender.window.high,
                "capacity": sender.window.capacity,
                "retransmitted": sender.stream.retransmitted,
                "blocked_s": _blocked_s(sender.stream, now),
            }
            for peer, sender in node.unicast.senders.items()
        ],
        "rejected": stats["rejected"],
        "transport": stats["transport"],
        "reasons": group.explain(),
    }


def _blocked_s(stream: SendStream, now: int) -> float | None:
    return (now - stream.blocked_since) / 1e9 if stream.is_blocked else None


def _sent(sending: MulticastSender, now: int) -> dict[str, object]:
    window, acks = sending.window, sending.acks
    slowest = acks.slowest() if sending.is_behind else []
    return {
        "low": window.low,
        "delivered": window.delivered,
        "high": window.high,
        "capacity": window.capacity,
        "bytes": window.charged,
        "bytes_max": window.max_bytes,
        "retransmitted": sending.stream.retransmitted,
        "blocked_s": _blocked_s(sending.stream, now),
        "waits_for": [
            {
                **tell_member(member),
                "taken": acks.min_delivered,
                "last_ack_s": _age(sending.heard.get(member), now),
            }
            for member in slowest
        ],
    }


def _age(when: int | None, now: int) -> float | None:
    return None if when is None else (now - when) / 1e9


class Health(NamedTuple):
    """Whether a member can do its work now, for probes and load balancers.

    Ready is a member that is in its group, has as many others there as it needs, and has its state.
    A member that is slow, or waits for somebody, is ready: `explain` tells of that. That an answer
    comes at all shows that its loop is alive.
    """

    is_ready: bool
    reasons: list[str]
    """Why it is not."""


def health_of(driver: Driver, closed: Closed | None, *, has_state_to_take: bool) -> Health:
    reasons = []
    if closed is not None:
        reasons.append(f"out of its group: {closed.reason}")
    elif driver.membership.phase is not Phase.MEMBER:
        reasons.append("looking for its group")
    few = driver.node.minimum.too_few(driver.now())
    if few is not None:
        reasons.append(f"{few.have} of {few.need} members are here")
    if has_state_to_take:
        reasons.append("has not taken the state of its group")
    return Health(not reasons, reasons)
