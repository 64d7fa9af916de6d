"""Plan: one seed's options.

Each fault class is on or off by the toss of a coin and has an intensity of its own: a run with
every fault all the time would hide what needs a quiet channel. Each protocol draws from a
generator of its own.

Members of "multicast" and "unicast" know each other's addresses and learn at once who has crashed:
short runs with many views. Those of "group" and "uniform" find out by themselves, with timing that
is shorter than what a view change waits for (half a second), longer, or the default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ringcast.config import MembershipConfig
from ringcast.sim.mishaps import Dice, Mishaps, in_order, stretched, with_partitions
from ringcast.sim.network import CHANGE_KINDS, RETAINED_KINDS, STABILITY_KINDS
from ringcast.sim.options import FAULTS, MEMBERSHIP, Incident, Options

TARGETS = ("ack", "nack", "watermark", "every second data", "last data", *CHANGE_KINDS)
UNICAST_TARGETS = (
    *("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"),
    *("every second data", "last data", "first data"),
)
GROUP_TARGETS = (*TARGETS, "heartbeat", "ping", "pong", "system")
UNIFORM_TARGETS = ("commit", "commit", "ack", "watermark", "data", "last data", *CHANGE_KINDS)


def expand(
    seed: int, protocol: str = "multicast", *, partitions: bool = False, purge: str = "acks"
) -> Options:
    """The options of this seed; with `partitions`, those of a group that falls apart."""
    options = _expand(seed, protocol, partitions=partitions)
    if purge == "acks":
        return options
    return _with_stability(options, Dice(f"stability {protocol} {partitions} {seed}"))


def _expand(seed: int, protocol: str, *, partitions: bool) -> Options:
    name = f"{protocol} partitions" if partitions else protocol
    dice = Dice(f"{name} {seed}")
    if protocol == "unicast":
        return _unicast_options(seed, dice)
    if protocol == "multicast":
        return _options(seed, dice)
    options = _group_options(seed, dice)
    if protocol in ("uniform", "total"):
        options = _with_second(options, protocol, dice)
    if partitions:
        options = with_partitions(options, dice)
    return _with_state(options, dice) if protocol == "group" else options


def _options(seed: int, dice: Dice) -> Options:
    """What all protocols have in common; and short runs whose members learn who has crashed."""
    faults = tuple(fault for fault in FAULTS if dice.random() < 0.5)
    nodes = dice.choice((2, 3, 3, 4, 4, 5, 6)) if dice.random() < 0.95 else dice.randint(7, 10)
    initial = max(1, nodes - dice.choice((0, 0, 0, 1, 2)))
    datagram = dice.choice((512, 512, 900, 1400))
    tau, taus = _taus(20, 400, nodes, faults, dice)
    capacity = _capacity(dice)
    capacities = (capacity,) * nodes
    if "F20" in faults:
        capacities = tuple(dice.choice((capacity, _capacity(dice))) for _ in range(nodes))
    safety = dice.between(300, 1000)
    mishaps = Mishaps(dice, faults, nodes, safety, 150.0, tau)
    mishaps.usual(initial)
    return Options(
        seed=seed,
        nodes=nodes,
        initial=initial,
        capacities=capacities,
        datagram_bytes=datagram,
        window_bytes=datagram * dice.choice((4, 8, 16, 64, 64)),
        tau_ms=taus,
        ack_delay_ms=round(min(taus) * dice.choice((0.0, 0.025, 0.1, 0.49)), 3),
        ack_threshold=dice.choice((None, None, 1)),
        repair_to_all=dice.random() < 0.3,
        discovery_ms=dice.between(25, 60),
        detect_ms=dice.log_uniform(2, 100),
        leave_ms=dice.between(100, 800),
        start_ms=dice.choice((0.0, 0.0, 20.0)),
        senders=_senders(nodes, dice),
        messages=_fewer(dice.choice((30, 80, 150, 250, 300)), nodes),
        burst=dice.choice((2, 5, 20, 50, 100)),
        sizes=_sizes(datagram, dice),
        late_messages=dice.choice((1, 3, 10)),
        take_limit=dice.choice((1, 3, 1000, 1000)),
        stopped=dice.randrange(nodes) if dice.random() < 0.04 else -1,
        delay=dice.choice(("const", "uniform", "lognormal")),
        delay_ms=dice.log_uniform(0.05, 4),
        delta_ms=dice.between(0.5, 8),
        warm_ms=dice.choice((1.0, dice.between(80, 200), dice.between(80, 200))),
        safety_ms=safety,
        faults=faults,
        loss=dice.log_uniform(0.02, 0.5),
        loss_burst=dice.choice((0.0, 0.0, dice.log_uniform(2, 50))),
        target=dice.choice(TARGETS),
        target_loss=dice.choice((1.0, dice.between(0.3, 1.0))),
        duplicates=dice.log_uniform(0.01, 0.5),
        copies=dice.choice((1, 1, 2, 5)),
        copy_late_ms=dice.log_uniform(0.1, 300),
        reorder=dice.log_uniform(0.02, 0.6),
        reorder_ms=dice.log_uniform(0.5, 50),
        spikes=dice.log_uniform(0.001, 0.05),
        spike_ms=dice.log_uniform(10, 300),
        asymmetry=dice.log_uniform(1, 10),
        corruption=dice.log_uniform(0.005, 0.1),
        stale=dice.log_uniform(0.01, 0.1),
        stale_ms=dice.log_uniform(50, 3000),
        incidents=mishaps.drawn(),
        hold_ms=dice.choice((0.0, 0.0, dice.log_uniform(0.01, 1))),
        poll_ms=dice.choice((0.0, 0.0, dice.log_uniform(0.01, 1))),
    )


def _taus(
    low: float, high: float, nodes: int, faults: tuple[str, ...], dice: Dice
) -> tuple[float, tuple[float, ...]]:
    """The repair tick, and each node's."""
    tau = dice.log_uniform(low, high)
    if "F20" not in faults:
        return tau, (tau,) * nodes
    return tau, tuple(round(tau * dice.between(0.5, 1.0), 3) for _ in range(nodes))


def _fewer(messages: int, nodes: int) -> int:
    """Many nodes have as much to do with fewer messages of each."""
    return messages if nodes <= 6 else messages // 4


# Messages to one member


def _unicast_options(seed: int, dice: Dice) -> Options:
    """Like multicast's, but for who sends to whom, connections that end, and their faults."""
    options = _options(seed, dice)
    nodes = options.nodes
    tau, taus = _taus(10, 120, nodes, options.faults, dice)
    safety = dice.between(400, 1200)
    pairs = _pairs(nodes, dice)
    own = _unicast_incidents(options.has("F18"), nodes, safety, pairs, dice)
    return replace(
        options,
        protocol="unicast",
        tau_ms=taus,
        ack_delay_ms=round(min(taus) * dice.choice((0.0, 0.05, 0.2, 0.49)), 3),
        # Short enough to close and open again during the run, or too long to matter.
        expiry_ms=dice.choice((0.0, 10_000.0, *[tau * dice.between(2, 5)] * 3)),
        close_ms=dice.choice((0.0, tau * dice.between(0.2, 3), tau * dice.between(0.2, 3))),
        max_retransmit_ms=dice.choice(
            (tau * dice.between(4, 8), *[1000 + tau * dice.between(10, 20)] * 3)
        ),
        senders=(),
        pairs=pairs,
        messages=max(3, dice.choice((100, 300, 800)) // len(pairs)),
        burst=dice.choice((1, 3, 10, 50)),
        spells=dice.choice((1, 2, 3, 5)),
        safety_ms=safety,
        target=dice.choice(UNICAST_TARGETS),
        copy_late_ms=dice.log_uniform(0.1, 800),
        incidents=in_order(*stretched(options, safety), *own),
    )


def _pairs(nodes: int, dice: Dice) -> tuple[tuple[int, int], ...]:
    """One pair, both ways between two, everybody with everybody, or any; oneself included."""
    two = tuple(dice.sample(range(nodes), 2))
    match dice.randrange(5):
        case 0:
            return ((two[0], two[1]),)
        case 1:
            return ((two[0], two[1]), (two[1], two[0]))
        case 2:
            return tuple((a, b) for a in range(nodes) for b in range(nodes) if a != b)
    return _any_pairs(nodes, 2, nodes**2, dice)


def _any_pairs(nodes: int, least: int, most: int, dice: Dice) -> tuple[tuple[int, int], ...]:
    every = [(a, b) for a in range(nodes) for b in range(nodes)]
    return tuple(sorted(dice.sample(every, dice.randint(least, most))))


def _unicast_incidents(
    has_drops: bool, nodes: int, safety: float, pairs: tuple[tuple[int, int], ...], dice: Dice
) -> list[Incident]:
    """What befalls one connection. Its receiver forgets it, its sender closes it, …"""
    found = []
    drops = [("F18", "drop", (0, 1, 2))] if has_drops else []
    for fault, what, counts in (("close", "", (0, 0, 1, 3)), ("sync", "", (0, 0, 1, 3)), *drops):
        for _ in range(dice.choice(counts)):
            source, dest = dice.choice(pairs)
            if source == dest:
                dest = (source + 1) % nodes
            slots = (source, dest) if fault == "close" else (dest, source)
            at = dice.between(0, safety * 0.9)
            found.append(Incident(fault, at, nodes=slots, what=what))
    return found


# Whole groups


def _timing(dice: Dice) -> dict[str, Any]:
    """How long members wait: shorter than a change waits for an answer, about as long, longer, or
    the default."""
    kind = dice.random()
    if kind < 0.6:
        heartbeat = dice.log_uniform(20, 80)
        return {
            "discovery_ms": dice.log_uniform(25, 300),
            "heartbeat_ms": heartbeat,
            "suspect_ms": round(heartbeat * dice.between(4, 8), 3),
            "verify_ms": dice.log_uniform(20, 150),
            "leave_ms": dice.between(100, 800),
            "safety_ms": dice.between(1500, 3500),
        }
    safety = dice.between(4000, 9000)
    if kind < 0.8:
        default = MembershipConfig()
        defaults = {name: getattr(default, s) * 1000 for name, s in MEMBERSHIP.items()}
        return {**defaults, "safety_ms": safety}
    suspect = dice.log_uniform(300, 3000)
    return {
        "discovery_ms": dice.log_uniform(25, 1000),
        "heartbeat_ms": round(suspect / dice.between(3, 8), 3),
        "suspect_ms": suspect,
        "verify_ms": dice.log_uniform(50, 1000),
        "leave_ms": dice.between(300, 5000),
        "safety_ms": safety,
    }


def _group_options(seed: int, dice: Dice) -> Options:
    """Nodes that find out by themselves who is there and who is gone."""
    options = _options(seed, dice)
    nodes, faults = options.nodes, options.faults
    tau, taus = _taus(20, 150, nodes, faults, dice)
    timing = _timing(dice)
    initial = max(1, nodes - dice.choice((0, 1, 1, 2)))
    mishaps = Mishaps(dice, faults, nodes, timing["safety_ms"], timing["suspect_ms"], tau)
    mishaps.usual(initial)
    if "F10" in faults and dice.random() < 0.5:
        # Whoever makes a view for another one dies of it.
        before = dice.choice(mishaps.found or [Incident("F10", 0.0)])
        mishaps.add("F10", what="coordinator", amount=dice.randint(1, 2 * nodes))
        at = round(before.at_ms + dice.between(0, 50), 3)
        mishaps.found[-1] = replace(mishaps.found[-1], at_ms=at)
    return replace(
        options,
        protocol="group",
        initial=initial,
        tau_ms=taus,
        ack_delay_ms=round(min(taus) * dice.choice((0.0, 0.05, 0.2, 0.49)), 3),
        max_retransmit_ms=dice.choice((tau * dice.between(4, 8), 60_000.0)),
        **timing,
        start_ms=dice.choice((0.0, dice.log_uniform(1, 50), dice.between(50, 800))),
        told=dice.choice((1.0, 1.0, 0.5)),
        told_ms=dice.between(10, 1500),
        hints=dice.random() < 0.4,
        pairs=_any_pairs(nodes, 0, 4, dice),
        messages=_fewer(dice.choice((20, 50, 100)), nodes),
        warm_ms=dice.choice((1.0, dice.between(300, 1200), dice.between(300, 1200))),
        target=dice.choice(GROUP_TARGETS),
        copy_late_ms=dice.log_uniform(0.1, 1000),
        incidents=mishaps.drawn(),
        hold_ms=dice.choice((0.0, 0.0, dice.log_uniform(0.01, 0.5))),
        poll_ms=dice.choice((0.0, 0.0, dice.log_uniform(0.01, 0.5))),
    )


def _with_second(options: Options, protocol: str, dice: Dice) -> Options:
    """A group in which part of the messages is uniform, or total, and senders die of them."""
    nodes, safety = options.nodes, options.safety_ms
    faults, found = options.faults, list(options.incidents)
    if dice.random() < 0.6:
        faults = _with_crashes(faults)
        for _ in range(dice.choice((1, 1, 2))):
            # With some copies of what it sends gone, or all of them and some of the commit.
            at, who = dice.between(safety * 0.1, safety * 0.9), (dice.randrange(nodes),)
            what = dice.choice(("sending", "sending", "sending coordinator"))
            found.append(Incident("F10", at, 0.0, who, what, dice.randint(0, 3 * (nodes - 1))))
        if dice.random() < 0.5:
            # Whoever makes the view without the dead dies of that.
            after = options.suspect_ms + options.verify_ms + dice.between(0, 100)
            at = round(min(found[-1].at_ms + after, safety), 3)
            amount = dice.randint(0, 2 * nodes)
            found.append(replace(found[-1], at_ms=at, what="coordinator", amount=amount))
    return replace(
        options,
        protocol=protocol,
        uniform=dice.choice((0.3, 0.6, 1.0)),
        faults=faults,
        target=dice.choice(UNIFORM_TARGETS),
        late_leaver=dice.randrange(nodes) if dice.random() < 0.25 else -1,
        incidents=in_order(*found),
    )


def _with_crashes(faults: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fault for fault in FAULTS if fault in (*faults, "F10"))


# What a run may have on top


def _with_stability(options: Options, dice: Dice) -> Options:
    """The same run, in which members report what they have delivered. In half of the runs receivers
    retain messages until then."""
    retain, safety = dice.random() < 0.5, options.safety_ms
    interval = dice.log_uniform(5, 60)
    targets = (*STABILITY_KINDS, *(RETAINED_KINDS if retain else ()))
    target = dice.choice((options.target, *dice.sample(targets, 2)))
    crashes = _sending_crashes(options, dice)
    calls = [
        Incident("stabilize", dice.between(0, safety), nodes=(dice.randrange(options.nodes),))
        for _ in range(dice.choice((0, 0, 1, 3)))
    ]
    return replace(
        options,
        purge="stability",
        retain=retain,
        # No shorter than a message takes: a round would not end before the next begins.
        stability_ms=max(interval, options.delta_ms),
        threshold_bytes=dice.choice((None, None, 1, options.datagram_bytes)),
        grow=dice.choice((1, 2, 4)),
        faults=_with_crashes(options.faults) if crashes else options.faults,
        # Plain messages have no acks.
        target="stability_report" if target == "ack" and options.second is None else target,
        incidents=in_order(*options.incidents, *crashes, *calls),
    )


def _sending_crashes(options: Options, dice: Dice) -> list[Incident]:
    """Some die in the middle of what they send: it reaches some of the others, and not all."""
    if dice.random() < 0.3 or options.initial < 3:
        return []
    found, safety = [], options.safety_ms
    for _ in range(dice.choice((1, 1, 2))):
        at, who = dice.between(safety * 0.1, safety * 0.9), (dice.randrange(options.initial),)
        amount = dice.randint(1, options.initial - 1)
        found.append(Incident("F10", at, 0.0, who, "sending plain", amount))
    return found


def _with_state(options: Options, dice: Dice) -> Options:
    """In half of the runs of a group, applications have a state for joiners."""
    if dice.random() < 0.5:
        return options
    datagram = options.datagram_bytes
    return replace(
        options,
        state=True,
        # Something is always under way, to be kept while a state is.
        messages=_fewer(dice.choice((50, 100, 200)), options.nodes),
        burst=dice.choice((1, 2, 5)),
        initial=min(options.nodes, max(2, options.initial)),
        # None at all, a few messages, or as many as come.
        join_buffer_bytes=dice.choice((0, 8 * datagram, 1 << 20, 1 << 20, 1 << 20)),
        ballast=dice.choice((0, 300, 800, 3 * datagram, 20 * datagram)),
        chunk_bytes=dice.choice(
            ((50,), (1, 7, 100), (16, 64), (100,), (2 * datagram, 10), (datagram,))
        ),
        give_ms=dice.choice((0.0, 20.0, 50.0, 100.0, 200.0)),
        give_chunks=dice.choice((1, 1, 1, 3, 100)),
        refuse=dice.choice((0.0, 0.0, 0.0, 0.1, 0.4)),
        stalled=dice.choice((-1, -1, -1, dice.randrange(options.nodes))),
        # Whoever takes nothing, for ever, gives nothing either.
        stopped=-1,
        incidents=_with_providers_gone(options, dice),
    )


def _with_providers_gone(options: Options, dice: Dice) -> tuple[Incident, ...]:
    """Whoever lets somebody in is gone before its state is through: it leaves, or dies."""
    fault = "F10" if options.has("F10") else "leave"
    found = list(options.incidents)
    for before in options.incidents:
        if before.fault in ("join", "F11") and dice.random() < 0.6:
            at = before.at_ms + before.ms + dice.uniform(20, 500)
            found.append(Incident(fault, round(at, 3), nodes=(0,), what="coordinator"))
    return in_order(*found)


# The applications


def _capacity(dice: Dice) -> int:
    if dice.random() < 0.3:
        return dice.randint(1, 4)
    return dice.choice((5, 8, 16, 31, 32, 64, 64))


def _senders(nodes: int, dice: Dice) -> tuple[int, ...]:
    count = dice.choice((1, nodes, nodes, dice.randint(1, nodes)))
    return tuple(sorted(dice.sample(range(nodes), count)))


def _sizes(datagram: int, dice: Dice) -> tuple[int, ...]:
    return dice.choice(
        (
            (0, 1),
            (100,),
            (100,),
            (0, 1, 10, 100, 300),
            (1, 100, 100, 100, 100, 100, 100, 3 * datagram),
            (datagram, 10),
        )
    )
