"""Dice: one seed's options. The same on every machine, and for ever.

Each fault class is on or off by the toss of a coin and has an intensity of its own: a run with
every fault all the time would hide what needs a quiet channel. Each protocol draws from a
generator of its own, so that what one needs does not change the seeds of another.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from random import Random

from ringcast.sim.network import RETAINED_KINDS, STABILITY_KINDS
from ringcast.sim.options import FAULTS, Incident, Options
from ringcast.sim.partitions import with_partitions

TARGETS = ("ack", "nack", "watermark", "every second data", "last data")
UNICAST_TARGETS = (
    *("udata", "uack", "unack", "close", "sync", "sync_ok", "sync_ack"),
    *("every second data", "last data", "first data"),
)
UNIFORM_TARGETS = (
    *("commit", "commit_wanted", "takeover", "standing", "system", "ack", "watermark", "data"),
    *("view_is", "view_ack", "welcome", "last data"),
)
GROUP_TARGETS = (
    *(
        "discover",
        "discover_reply",
        "join",
        "view_is",
        "view_ack",
        "welcome",
        "half_wanted",
        "half",
    ),
    *("leave", "suspect", "heartbeat", "ping", "pong", "ack", "watermark", "last data"),
)


def expand(
    seed: int, protocol: str = "multicast", *, partitions: bool = False, purge: str = "acks"
) -> Options:
    """The options of this seed; with `partitions`, those of a group that falls apart."""
    options = _expand(seed, protocol, partitions=partitions)
    if purge == "acks":
        return options
    return _with_stability(options, Random(f"stability {protocol} {partitions} {seed}"))


def _expand(seed: int, protocol: str, *, partitions: bool) -> Options:
    if partitions:
        dice = _Dice(seed, Random(f"partitions {seed}"))
        group = dice.uniform_options() if protocol == "uniform" else dice.group_options()
        parted = with_partitions(replace(group, protocol=protocol), Random(f"cuts {seed}"))
        return _with_state(parted, Random(f"parted state {seed}"))
    if protocol == "unicast":
        return _Dice(seed, Random(f"unicast {seed}")).unicast_options()
    if protocol == "group":
        group = _Dice(seed, Random(f"group {seed}")).group_options()
        return _with_state(group, Random(f"state {seed}"))
    if protocol == "uniform":
        return _Dice(seed, Random(f"uniform {seed}")).uniform_options()
    return _Dice(seed, Random(seed)).options()


def _with_stability(options: Options, random: Random) -> Options:
    """The same run, in which members report what they have delivered. In half of the runs receivers
    retain messages until then."""
    retain = random.random() < 0.5
    interval = exp(random.uniform(log(5), log(60)))
    targets = (*STABILITY_KINDS, *(RETAINED_KINDS if retain else ()))
    target = random.choice((options.target, *random.sample(targets, 2)))
    faults, crashes = options.faults, _sending_crashes(options, random)
    if crashes:
        faults = tuple(fault for fault in FAULTS if fault in (*faults, "F10"))
    calls = [
        Incident(
            fault="stabilize",
            at_ms=round(random.uniform(0, options.safety_ms), 3),
            nodes=(random.randrange(options.nodes),),
        )
        for _ in range(random.choice((0, 0, 1, 3)))
    ]
    incidents = sorted((*options.incidents, *crashes, *calls), key=lambda item: item.at_ms)
    return replace(
        options,
        purge="stability",
        retain=retain,
        # No shorter than a message takes: a round would not end before the next begins.
        stability_ms=round(max(interval, options.delta_ms), 3),
        threshold_bytes=random.choice((None, None, 1, options.datagram_bytes)),
        grow=random.choice((1, 2, 4)),
        faults=faults,
        # Whoever takes nothing, for ever, leaves what the departed left as it is.
        stopped=-1 if retain else options.stopped,
        # Plain messages have no acks.
        target="stability_report" if target == "ack" and options.protocol != "uniform" else target,
        incidents=tuple(incidents),
    )


def _sending_crashes(options: Options, random: Random) -> list[Incident]:
    """Some die in the middle of what they send: it reaches some of the others, and not all."""
    if random.random() < 0.3 or options.initial < 3:
        return []
    return [
        Incident(
            fault="F10",
            at_ms=round(random.uniform(options.safety_ms * 0.1, options.safety_ms * 0.9), 3),
            nodes=(random.randrange(options.initial),),
            what="sending plain",
            amount=random.randint(1, options.initial - 1),
        )
        for _ in range(random.choice((1, 1, 2)))
    ]


def _with_state(options: Options, random: Random) -> Options:
    """In half of the runs of a group, applications have a state for joiners."""
    if options.protocol != "group" or random.random() < 0.5:
        return options
    datagram = options.datagram_bytes
    return replace(
        options,
        state=True,
        # Something is always under way, to be kept while a state is.
        messages=random.choice((50, 100, 200)),
        burst=random.choice((1, 2, 5)),
        initial=min(options.nodes, max(2, options.initial)),
        # None at all, a few messages, or as many as come.
        join_buffer_bytes=random.choice((0, 8 * datagram, 1 << 20, 1 << 20, 1 << 20)),
        ballast=random.choice((0, 300, 800, 3 * datagram, 20 * datagram)),
        chunk_bytes=random.choice(
            ((50,), (1, 7, 100), (16, 64), (100,), (2 * datagram, 10), (datagram,))
        ),
        give_ms=random.choice((0.0, 20.0, 50.0, 100.0, 200.0)),
        give_chunks=random.choice((1, 1, 1, 3, 100)),
        refuse=random.choice((0.0, 0.0, 0.0, 0.1, 0.4)),
        stalled=random.choice((-1, -1, -1, random.randrange(options.nodes))),
        # What other runs lose as well gives way.
        target=random.choice((options.target, "system"))
        if options.target in TARGETS
        else options.target,
        # Whoever takes nothing, for ever, gives nothing either.
        stopped=-1,
        incidents=_with_providers_gone(options, random),
    )


def _with_providers_gone(options: Options, random: Random) -> tuple[Incident, ...]:
    """Whoever lets somebody in is gone before its state is through: it leaves, or dies."""
    fault = "F10" if options.has("F10") else "leave"
    found = list(options.incidents)
    for before in options.incidents:
        if before.fault in ("join", "F11") and random.random() < 0.6:
            at = before.at_ms + before.ms + random.uniform(20, 500)
            gone = Incident(fault=fault, at_ms=round(at, 3), nodes=(0,), what="coordinator")
            found.append(gone)
    return tuple(sorted(found, key=lambda incident: incident.at_ms))


class _Dice:
    """Draws one seed's options."""

    def __init__(self, seed: int, random: Random) -> None:
        self._seed = seed
        self._random = random

    def _log_uniform(self, low: float, high: float) -> float:
        return round(exp(self._random.uniform(log(low), log(high))), 6)

    def _between(self, low: float, high: float) -> float:
        return round(self._random.uniform(low, high), 3)

    def options(self) -> Options:
        random = self._random
        faults = tuple(fault for fault in FAULTS if random.random() < 0.5)
        nodes = random.choice((2, 3, 3, 4, 4, 5, 6))
        initial = max(1, nodes - random.choice((0, 0, 0, 1, 2)))
        datagram = random.choice((512, 512, 900, 1400))
        tau = self._log_uniform(20, 400)
        taus = (tau,) * nodes
        if "F20" in faults:
            taus = tuple(round(tau * self._between(0.5, 1.0), 3) for _ in range(nodes))
        capacity = self._capacity()
        capacities = (capacity,) * nodes
        if "F20" in faults:
            capacities = tuple(random.choice((capacity, self._capacity())) for _ in range(nodes))
        safety = self._between(250, 900)
        delay = self._log_uniform(0.05, 4)
        return Options(
            seed=self._seed,
            nodes=nodes,
            initial=initial,
            capacities=capacities,
            datagram_bytes=datagram,
            window_bytes=datagram * random.choice((4, 8, 16, 64, 64)),
            tau_ms=taus,
            ack_delay_ms=round(min(taus) * random.choice((0.0, 0.025, 0.1, 0.49)), 3),
            ack_threshold=random.choice((None, None, 1)),
            repair_to_all=random.random() < 0.3,
            senders=self._senders(nodes),
            messages=random.choice((30, 80, 150, 250, 300)),
            burst=random.choice((2, 5, 20, 50, 100)),
            sizes=self._sizes(datagram),
            late_messages=random.choice((1, 3, 10)),
            take_limit=random.choice((1, 3, 1000, 1000)),
            stopped=random.randrange(nodes) if random.random() < 0.04 else -1,
            delay=random.choice(("const", "uniform", "lognormal")),
            delay_ms=delay,
            delta_ms=self._between(0.5, 8),
            detect_ms=self._log_uniform(2, 100),
            view_ms=self._log_uniform(0.5, 100),
            warm_ms=self._between(20, 100),
            safety_ms=safety,
            faults=faults,
            loss=self._log_uniform(0.02, 0.5),
            loss_burst=random.choice((0.0, 0.0, self._log_uniform(2, 50))),
            target=random.choice(TARGETS),
            target_loss=random.choice((1.0, self._between(0.3, 1.0))),
            duplicates=self._log_uniform(0.01, 0.5),
            copies=random.choice((1, 1, 2, 5)),
            copy_late_ms=self._log_uniform(0.1, 300),
            reorder=self._log_uniform(0.02, 0.6),
            reorder_ms=self._log_uniform(0.5, 50),
            spikes=self._log_uniform(0.001, 0.05),
            spike_ms=self._log_uniform(10, 300),
            asymmetry=self._log_uniform(1, 10),
            corruption=self._log_uniform(0.005, 0.1),
            incidents=self._incidents(faults, nodes, initial, safety, tau),
            hold_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 1))),
            poll_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 1))),
        )

    def unicast_options(self) -> Options:
        """Like multicast's, but for who sends to whom, connections that end, and their faults."""
        random = self._random
        options = self.options()
        nodes = options.nodes
        tau = self._log_uniform(10, 120)
        taus = (tau,) * nodes
        if options.has("F20"):
            taus = tuple(round(tau * self._between(0.5, 1.0), 3) for _ in range(nodes))
        safety = self._between(400, 1200)
        pairs = self._pairs(nodes)
        common = [
            replace(incident, at_ms=round(incident.at_ms * safety / options.safety_ms, 3))
            for incident in options.incidents
            if incident.fault != "F18"
        ]
        own = self._unicast_incidents(options.has("F18"), nodes, safety, pairs)
        return replace(
            options,
            protocol="unicast",
            tau_ms=taus,
            ack_delay_ms=round(min(taus) * random.choice((0.0, 0.05, 0.2, 0.49)), 3),
            # Short enough to close and open again during the run, or too long to matter.
            expiry_ms=random.choice((0.0, 10_000.0, *[tau * self._between(2, 5)] * 3)),
            close_ms=random.choice((0.0, tau * self._between(0.2, 3), tau * self._between(0.2, 3))),
            max_retransmit_ms=random.choice(
                (tau * self._between(4, 8), *[1000 + tau * self._between(10, 20)] * 3)
            ),
            senders=(),
            pairs=pairs,
            messages=max(3, random.choice((100, 300, 800)) // len(pairs)),
            burst=random.choice((1, 3, 10, 50)),
            spells=random.choice((1, 2, 3, 5)),
            safety_ms=safety,
            target=random.choice(UNICAST_TARGETS),
            copy_late_ms=self._log_uniform(0.1, 800),
            incidents=tuple(sorted((*common, *own), key=lambda incident: incident.at_ms)),
        )

    def _pairs(self, nodes: int) -> tuple[tuple[int, int], ...]:
        """One pair, both ways between two, everybody with everybody, or any; oneself included."""
        random = self._random
        two = tuple(random.sample(range(nodes), 2))
        match random.randrange(5):
            case 0:
                return ((two[0], two[1]),)
            case 1:
                return ((two[0], two[1]), (two[1], two[0]))
            case 2:
                return tuple((a, b) for a in range(nodes) for b in range(nodes) if a != b)
        every = [(a, b) for a in range(nodes) for b in range(nodes)]
        return tuple(sorted(random.sample(every, random.randint(2, len(every)))))

    def _unicast_incidents(
        self, has_chaos: bool, nodes: int, safety: float, pairs: tuple[tuple[int, int], ...]
    ) -> list[Incident]:
        """What befalls one connection. Its receiver forgets it, its sender closes it, …"""
        random = self._random
        found = []

        def incident(fault: str, what: str = "", ms: float = 0.0, *, at_receiver: bool) -> None:
            source, dest = random.choice(pairs)
            if source == dest:
                dest = (source + 1) % nodes
            slots = (dest, source) if at_receiver else (source, dest)
            at = self._between(0, safety * 0.9)
            found.append(Incident(fault=fault, at_ms=at, ms=ms, nodes=slots, what=what))

        for _ in range(random.choice((0, 0, 1, 3))):
            incident("close", at_receiver=False)
        for _ in range(random.choice((0, 0, 1, 3))):
            incident("sync", at_receiver=True)
        for _ in range(random.randint(1, 4) if has_chaos else 0):
            match random.randrange(6):
                case 0 | 1:
                    incident("F18", "drop", at_receiver=True)
                case 2 | 3:
                    incident("F18", "split", self._log_uniform(5, 300), at_receiver=True)
                case 4:
                    incident("F18", "again", at_receiver=True)
                case _:
                    incident("F18", "swap", at_receiver=True)
        return found

    def group_options(self) -> Options:
        """Nodes that make their own views: slower, because membership's repetitions are."""
        random = self._random
        options = self.options()
        nodes = options.nodes
        faults = tuple(fault for fault in options.faults if fault != "F18")
        tau = self._log_uniform(20, 150)
        taus = (tau,) * nodes
        if "F20" in faults:
            taus = tuple(round(tau * self._between(0.5, 1.0), 3) for _ in range(nodes))
        heartbeat = self._log_uniform(20, 80)
        suspect = round(heartbeat * self._between(4, 8), 3)
        safety = self._between(1500, 3500)
        initial = max(1, nodes - random.choice((0, 1, 1, 2)))
        every = [(a, b) for a in range(nodes) for b in range(nodes)]
        return replace(
            options,
            protocol="group",
            initial=initial,
            tau_ms=taus,
            ack_delay_ms=round(min(taus) * random.choice((0.0, 0.05, 0.2, 0.49)), 3),
            max_retransmit_ms=random.choice((tau * self._between(4, 8), 60_000.0)),
            # More than a round trip: whoever starts alone before it can hear of others always does.
            discovery_ms=self._log_uniform(25, 300),
            heartbeat_ms=heartbeat,
            suspect_ms=suspect,
            verify_ms=self._log_uniform(20, 150),
            leave_ms=self._between(100, 800),
            start_ms=random.choice((0.0, self._log_uniform(1, 50), self._between(50, 800))),
            told=random.choice((1.0, 1.0, 0.5)),
            told_ms=self._between(10, 1500),
            hints=random.random() < 0.4,
            pairs=tuple(sorted(random.sample(every, random.randint(0, min(4, len(every)))))),
            messages=random.choice((20, 50, 100)),
            warm_ms=random.choice((1.0, self._between(300, 1200), self._between(300, 1200))),
            safety_ms=safety,
            faults=faults,
            target=random.choice(GROUP_TARGETS),
            copy_late_ms=self._log_uniform(0.1, 1000),
            incidents=self._group_incidents(faults, nodes, initial, safety, tau, suspect),
            hold_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 0.5))),
            poll_ms=random.choice((0.0, 0.0, self._log_uniform(0.01, 0.5))),
        )

    def _group_incidents(
        self,
        faults: tuple[str, ...],
        nodes: int,
        initial: int,
        safety: float,
        tau: float,
        suspect: float,
    ) -> tuple[Incident, ...]:
        """What befalls members that find each other. Nobody is cut off for so long that the group
        falls apart; but members sleep for longer than they are waited for."""
        random = self._random
        milder = tuple(fault for fault in faults if fault not in ("F10", "F11", "F12"))
        found = [
            replace(incident, ms=min(incident.ms, suspect / 2))
            if incident.fault in ("F7", "F8", "F9")
            else incident
            for incident in self._incidents(milder, nodes, initial, safety, tau)
        ]

        def incident(fault: str, ms: float = 0.0, what: str = "", amount: float = 0.0) -> None:
            slot = random.randrange(nodes)
            at = self._between(0, safety * 0.9)
            found.append(
                Incident(fault=fault, at_ms=at, ms=ms, nodes=(slot,), what=what, amount=amount)
            )

        def some(fault: str, most: int) -> range:
            return range(random.randint(1, most) if fault in faults else 0)

        def whom() -> str:
            return random.choice(("", "", "coordinator"))

        for _ in range(random.choice((0, 1, 1, 2))):
            # Some come back, at the same address.
            incident("leave", random.choice((0.0, self._log_uniform(1, 1000))), whom())
        for _ in some("F10", max(1, nodes - 2)):
            incident("F10", what=whom(), amount=random.randint(0, nodes))
        if "F10" in faults and random.random() < 0.5:
            # Whoever makes a view for a joiner dies of it.
            before = random.choice(found)
            at = before.at_ms + self._between(0, 50)
            incident("F10", what="coordinator", amount=random.randint(1, 2 * nodes))
            found[-1] = replace(found[-1], at_ms=round(at, 3))
        for _ in some("F11", 2):
            down = random.choice((0.0, self._log_uniform(1, 2 * suspect)))
            incident("F11", down, whom(), random.randint(0, nodes))
        for _ in some("F12", 3):
            long = suspect * self._between(1.5, 4)
            incident("F12", random.choice((self._log_uniform(1, suspect), long)), whom())
        return tuple(sorted(found, key=lambda item: item.at_ms))

    def uniform_options(self) -> Options:
        """A group in which part of the messages is uniform, and senders die of them."""
        random = self._random
        options = self.group_options()
        nodes, safety = options.nodes, options.safety_ms
        faults, found = options.faults, list(options.incidents)
        if random.random() < 0.6:
            if "F10" not in faults:
                faults = tuple(fault for fault in FAULTS if fault in (*faults, "F10"))
            for _ in range(random.choice((1, 1, 2))):
                # With some copies of what it sends gone, or all of them and some of the commit.
                copies = random.randint(0, 3 * (nodes - 1))
                what = random.choice(("sending", "sending", "sending coordinator"))
                slot, at = random.randrange(nodes), self._between(safety * 0.1, safety * 0.9)
                found.append(
                    Incident(fault="F10", at_ms=at, nodes=(slot,), what=what, amount=copies)
                )
            if random.random() < 0.5:
                # Whoever sees to what the dead have left behind dies of that.
                after = options.suspect_ms + options.verify_ms + self._between(0, 100)
                copies = random.randint(0, 2 * nodes)
                found.append(
                    replace(
                        found[-1],
                        at_ms=round(min(found[-1].at_ms + after, safety), 3),
                        what="coordinator",
                        amount=copies,
                    )
                )
        return replace(
            options,
            protocol="uniform",
            uniform=random.choice((0.3, 0.6, 1.0)),
            faults=faults,
            target=random.choice(UNIFORM_TARGETS),
            # Whoever takes nothing, for ever, keeps everybody from being let in.
            stopped=-1,
            late_leaver=random.randrange(nodes) if random.random() < 0.25 else -1,
            incidents=tuple(sorted(found, key=lambda item: item.at_ms)),
        )

    def _capacity(self) -> int:
        if self._random.random() < 0.3:
            return self._random.randint(1, 4)
        return self._random.choice((5, 8, 16, 31, 32, 64, 64))

    def _senders(self, nodes: int) -> tuple[int, ...]:
        count = self._random.choice((1, nodes, nodes, self._random.randint(1, nodes)))
        return tuple(sorted(self._random.sample(range(nodes), count)))

    def _sizes(self, datagram: int) -> tuple[int, ...]:
        return self._random.choice(
            (
                (0, 1),
                (100,),
                (100,),
                (0, 1, 10, 100, 300),
                (1, 100, 100, 100, 100, 100, 100, 3 * datagram),
                (datagram, 10),
            )
        )

    def _incidents(
        self, faults: tuple[str, ...], nodes: int, initial: int, safety: float, tau: float
    ) -> tuple[Incident, ...]:
        random = self._random
        found = [
            Incident(fault="join", at_ms=self._between(0, safety * 0.7), nodes=(slot,))
            for slot in range(initial, nodes)
        ]

        def at() -> float:
            return self._between(0, safety * 0.9)

        def some(fault: str, most: int) -> range:
            return range(random.randint(1, most) if fault in faults else 0)

        def node() -> int:
            return random.randrange(nodes)

        for _ in some("F7", 3):
            side = tuple(sorted(random.sample(range(nodes), random.randint(1, nodes - 1))))
            found.append(Incident(fault="F7", at_ms=at(), ms=self._log_uniform(5, 300), nodes=side))
        for _ in some("F8", 2):
            side = tuple(sorted(random.sample(range(nodes), random.randint(1, nodes - 1))))
            found.append(Incident(fault="F8", at_ms=at(), ms=self._log_uniform(5, 300), nodes=side))
        for _ in some("F9", 2):
            pair = tuple(random.sample(range(nodes), 2))
            found.append(Incident(fault="F9", at_ms=at(), ms=self._log_uniform(5, 300), nodes=pair))
        for _ in some("F10", max(1, nodes - 2)):
            copies = random.randint(0, nodes)
            found.append(Incident(fault="F10", at_ms=at(), nodes=(node(),), amount=copies))
        for _ in some("F11", 2):
            down = random.choice((0.0, self._log_uniform(1, 200)))
            found.append(Incident(fault="F11", at_ms=at(), ms=down, nodes=(node(),), amount=node()))
        found += [
            Incident(fault="F12", at_ms=at(), ms=self._log_uniform(1, 300), nodes=(node(),))
            for _ in some("F12", 3)
        ]
        for _ in some("F13", 3):
            what = random.choice(("drift", "jump", "freeze"))
            amount = {"drift": random.choice((0.9, 1.1)), "jump": self._log_uniform(1, 60_000)}
            found.append(
                Incident(
                    fault="F13",
                    at_ms=at(),
                    ms=0.0 if what == "jump" else self._log_uniform(10, 400),
                    nodes=(node(),),
                    what=what,
                    amount=amount.get(what, 0.0),
                )
            )
        for _ in some("F14", 2):
            rate = random.choice((0.0, self._log_uniform(10, 1000)))
            found.append(
                Incident(
                    fault="F14",
                    at_ms=at(),
                    ms=self._log_uniform(20, 500),
                    nodes=(node(),),
                    what="takes per s",
                    amount=rate,
                )
            )
        for _ in some("F18", 3):
            what = random.choice(("again", "exclude", "swap", "flap"))
            found.append(
                Incident(
                    fault="F18",
                    at_ms=at(),
                    ms=self._log_uniform(1, 200),
                    nodes=(node(),),
                    what=what,
                    amount=random.randint(1, 5) if what == "flap" else 0.0,
                )
            )
        for _ in some("F19", 3):
            what = random.choice(("late", "twice", "bursts", "never"))
            found.append(
                Incident(
                    fault="F19",
                    at_ms=at(),
                    ms=self._log_uniform(10, 400),
                    nodes=(node(),),
                    what=what,
                    amount=round(tau * self._between(0.1, 2.0), 3) if what == "late" else 0.0,
                )
            )
        return tuple(sorted(found, key=lambda incident: incident.at_ms))
