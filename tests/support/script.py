"""Scripts: commands, `----`, and what happened. A group of whole nodes on the virtual world.

A script's first comment names the guarantee that it is about. Each block of commands is followed
by its answers, which `pytest --rewrite` fills in. Commands, with members as single letters:

    group A B C [capacity=4] [tau=500ms] [suspect=2s] [uniform] [total]   one view of these
    join D [suspect=3s] [defaults]     with other times than the group, or none that were asked for
    leave A · crash A · restart A · pause A · resume A · late A 300ms
    send A 1..3 [to=B] [uniform|total] [size=5000]   messages, named by numbers
    greet A [uniform]                  A's application answers every view with its next message
    stop B · take B [2]                B's application delivers nothing; so many more; all again
    drop A>B data [2] [count=1]        lose datagrams with such a frame, or with this message
    hold A>B install · release         keep such datagrams back; let go of all that were
    replay                             every datagram of the group so far comes once more
    cut A>B · cut AB|C|D · heal A|C    one way, all ways; some links again
    heal                               all of them; nothing is lost or kept back any more
    suspect A B · suspect A *          A suspects B, or everybody else in its view
    advance 500ms [show=wire] · run [show=wire] · until A AB [within=5s]   and how long that took
    windows A · explain A · settings A

At the end, and after every input, the nodes' invariants hold; and virtual synchrony does
(virtual_synchrony.py). What is sent to one member is delivered as it was sent (S1).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, UnicastConfig
from ringcast.core.effects import Suspected
from ringcast.events import Closed, Delivered, ViewInstalled, Writable
from ringcast.explore.view_watch import watch
from ringcast.model import SYSTEM_EPOCH, Address, Member, Stream
from ringcast.node import build_node
from ringcast.rules.table import ORDER
from ringcast.sim.plain import FixedDelay, LoseWhere, begin, plain_world
from ringcast.wire.changes import (
    Complain,
    Cut,
    Finish,
    Flushed,
    Forwarded,
    Hello,
    Install,
    Installed,
    Propose,
    Refuse,
    State,
    Want,
)
from ringcast.wire.frames import (
    Ack,
    Commit,
    Data,
    Leave,
    LogCommit,
    Nack,
    UnicastAck,
    UnicastData,
    UnicastNack,
    Watermark,
)
from support.virtual_synchrony import JUDGED, Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringcast.events import Event
    from ringcast.node import Node
    from ringcast.sim.plain import PlainMember
    from ringcast.sim.world import Flight, Process
    from ringcast.wire.frames import Frame

NAMES = "ABCDEFGHIJ"
DELAY_NS = 1_000_000
UNITS = {"ms": 1.0, "s": 1000.0}
RUN_MS = 1000.0
PADDING = b"."
HELD_MAX = 1000
FORM_MS = 20_000.0
TAKE_MAX = 1000
REPEATABLE = frozenset(
    [
        "data",
        "system",
        "ack",
        "commit",
        "propose",
        "state",
        "refuse",
        "finish",
        "cut",
        "want",
        "forwarded",
        "flushed",
        "install",
        "installed",
    ]
)
"""What may come late, and then must have no effect."""


class Happened(NamedTuple):
    who: str
    what: str


class Script:
    """One group and what happens to it. `answer` takes the commands of one block."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._world = plain_world(hint_ms=0.0, start=1_000_000_000)
        self._world.driving.random = Random(1)
        self._world.network.faults = [LoseWhere(self._is_lost), FixedDelay(DELAY_NS)]
        self._happened: list[Happened] = []
        self._shows_wire = False
        self._cuts: set[tuple[str, str]] = set()
        self._drops: list[Drop] = []
        self._holds: list[Drop] = []
        self._held: list[Flight] = []
        self._flown: list[Flight] = []
        self._incarnations: Counter[str] = Counter()
        self._config = GroupConfig(group="script")
        self._streams: tuple[Stream, ...] = (Stream.FIFO,)
        self._unicast = UnicastRule(self.violations)
        self._observed = Observed()
        self._greeters: dict[str, Stream] = {}
        self._numbers: Counter[tuple[str, Stream]] = Counter()

    def answer(self, commands: Sequence[str]) -> list[str]:
        """What happened; in the order it began to, with those together to whom the same did."""
        self._happened.clear()
        self._shows_wire = any("show=wire" in command for command in commands)
        for command in commands:
            name, *words = command.split()
            getattr(self, f"_do_{name}")(*words)
        return merged(self._happened, keeps_order=self._shows_wire)

    def end(self) -> None:
        for process in self._living():
            process.node.check_invariants()
        order = ORDER if Stream.TOTAL in self._streams else ()
        self.violations += self._observed.violations((*JUDGED, *order))

    # Commands

    def _do_group(self, *words: str) -> None:
        names = [word for word in words if word in NAMES]
        options = dict(word.split("=") for word in words if "=" in word)
        capacity = int(options.get("capacity", 64))
        tau_s = milliseconds(options.get("tau", "500ms")) / 1000
        streams = (stream for stream in Stream if stream.name.lower() in words)
        self._streams = (Stream.FIFO, *streams)
        suspect_s = milliseconds(options.get("suspect", "2s")) / 1000
        self._config = GroupConfig(
            group="script",
            multicast=MulticastConfig(
                capacity=capacity,
                xmit_interval_s=tau_s,
                datagram_bytes=1000,
                window_bytes=1 << 20,
            ),
            unicast=UnicastConfig(capacity=capacity, xmit_interval_s=tau_s, window_bytes=1 << 20),
            membership=MembershipConfig(suspect_after_s=suspect_s),
        )
        for name in names:
            self._do_join(name)
            assert self._world.run_until(self._is_one, FORM_MS), f"{name} is not let in"
        self._world.run_for(RUN_MS)
        view = self._process(names[0]).node.view
        self._happened = [Happened(name, f"view {labels(view or ())}") for name in names]

    def _do_join(self, name: str, *options: str) -> None:
        self._incarnations[name] += 1
        me = Member(address_of(name), self._incarnations[name], name)
        config = replace(self._config, name=name)
        for word in options:
            is_default = word == "defaults"
            suspect_s = 0.0 if is_default else milliseconds(word.partition("=")[2]) / 1000
            times = (
                MembershipConfig() if is_default else MembershipConfig(suspect_after_s=suspect_s)
            )
            config = replace(config, membership=times)
        node = build_node(
            *(me, config),
            streams=self._streams,
        )
        member = watch(node, self._observed.rows, self._see)
        member.before_sending = lambda node: node.check_invariants()
        begin(self._world, member, [address_of(each) for each in NAMES])

    def _do_leave(self, name: str) -> None:
        process = self._process(name)
        process.node.leave(process.now)
        process.turn()

    def _do_crash(self, name: str) -> None:
        self._process(name).crash()

    def _do_restart(self, name: str) -> None:
        self._do_crash(name)
        self._do_join(name)

    def _do_pause(self, name: str) -> None:
        self._process(name).pause()

    def _do_resume(self, name: str) -> None:
        self._process(name).resume()

    def _do_late(self, name: str, late: str) -> None:
        process = self._process(name)
        process.timer_fault, process.timer_late = "late", round(milliseconds(late) * 1e6)

    def _do_send(self, name: str, numbers: str, *options: str) -> None:
        process = self._process(name)
        first, _, last = numbers.partition("..")
        size = next((int(word[5:]) for word in options if word.startswith("size=")), 0)
        numbered = range(int(first), int(last or first) + 1)
        payloads = [(b"%d" % number).ljust(size, PADDING) for number in numbered]
        stream = stream_in(options)
        dest = next((word[3:] for word in options if word.startswith("to=")), None)
        to = None if dest is None else self._process(dest).node.me
        accepted = process.node.send(payloads, process.now, stream=stream, to=to)
        self._unicast.sent(process.node.me, to, payloads[:accepted])
        self._numbers[name, stream] = int(first) + accepted - 1
        if accepted < len(payloads):
            self._note(name, f"backpressure, {accepted} of {len(payloads)} accepted")
        process.turn()

    def _do_stop(self, name: str) -> None:
        self._process(name).resident.take_limit = 0

    def _do_take(self, name: str, limit: str = "") -> None:
        process = self._process(name)
        process.resident.take_limit = int(limit or TAKE_MAX)
        process.turn()
        if limit:
            process.resident.take_limit = 0

    def _do_greet(self, name: str, *options: str) -> None:
        self._greeters[name] = stream_in(options)

    def _do_drop(self, link: str, kind: str, *options: str) -> None:
        self._drops.append(which(link, kind, options, 1))

    def _do_hold(self, link: str, kind: str, *options: str) -> None:
        self._holds.append(which(link, kind, options, HELD_MAX))

    def _do_release(self) -> None:
        held, self._held = self._held, []
        self._holds.clear()
        for flight in held:
            self._world.clock.after(DELAY_NS / 1e6, self._world.deliver, flight)

    def _do_replay(self) -> None:
        for flight in list(self._flown):
            self._world.clock.after(DELAY_NS / 1e6, self._world.deliver, flight)

    def _do_cut(self, link: str) -> None:
        self._cuts |= links(link)

    def _do_heal(self, link: str = "") -> None:
        if link:
            self._cuts -= links(link)
            return
        self._cuts.clear()
        self._drops.clear()
        self._do_release()

    def _do_suspect(self, name: str, whom: str) -> None:
        process = self._process(name)
        node = process.node
        for member in node.view or ():
            if member != node.me and whom in ("*", label(member)):
                node.effects.signal(Suspected(member, "as the script says"))
        node.handle_timeout(process.now)
        process.turn()

    def _do_advance(self, time: str, *options: str) -> None:
        self._world.run_for(milliseconds(time))

    def _do_until(self, name: str, members: str, *options: str) -> None:
        within = next((word[7:] for word in options if word.startswith("within=")), "10s")
        if not self._world.run_until(
            lambda: labels(self._process(name).node.view or (), "") == members, milliseconds(within)
        ):
            self._note(name, f"not {members} within {within}")

    def _do_run(self, *options: str) -> None:
        self._do_advance(f"{RUN_MS}ms", *options)

    def _do_windows(self, name: str) -> None:
        for origin, window in self._process(name).node.multicast.windows().items():
            self._note(name, f"window of {origin}: {window.low}..{window.high}")

    def _do_explain(self, name: str) -> None:
        process = self._process(name)
        for reason in process.node.explain(process.now) or ["waits for nothing"]:
            self._note(name, reason)

    def _do_settings(self, name: str) -> None:
        membership = self._process(name).node.config.membership
        self._note(name, f"suspects after {membership.suspect_after_s:g} s")

    # What happens

    def _note(self, who: str, what: str) -> None:
        self._happened.append(Happened(who, what))

    def _see(self, me: Member, event: Event) -> None:
        self._observed.see(me, event)
        name = label(me)
        match event:
            case Delivered(sender, run):
                way = " unicast" if event.epoch else way_of(run.stream)
                way += " carried" * event.carried + " seen" * event.seen
                self._unicast.delivered(me, event)
                for step, payload in enumerate(run.payloads):
                    number = payload.rstrip(PADDING).decode()
                    at = f" at {event.position + step}" * bool(event.position)
                    self._note(name, f"deliver {label(sender)} {number}{way}{at}")
            case ViewInstalled(view, parts):
                origins = " from " * bool(parts) + " | ".join(map(labels, parts))
                self._note(name, f"view {labels(view)}{origins}{self._place_of(event)}")
                if me.name in self._greeters:
                    self._greet(me.name)
            case Writable(to):
                self._note(name, "writable" if to is None else f"writable to {label(to)}")
            case Closed(reason):
                self._note(name, f"closed: {reason}")

    def _place_of(self, event: ViewInstalled) -> str:
        """Where it stands in the one order, if there is one."""
        if Stream.TOTAL not in self._streams:
            return ""
        gone = f", gone {labels(event.gone)}" * bool(event.gone)
        came = f", came {labels(event.came)}" * bool(event.came)
        lost = [
            f", unconfirmed {first}..{last}"
            for stream, first, last in event.unconfirmed
            if stream is Stream.TOTAL
        ]
        return f" at {event.position}{gone}{came}{''.join(lost)}"

    def _greet(self, name: str) -> None:
        """From inside the application, which has just seen a view."""
        process, stream = self._process(name), self._greeters[name]
        number = self._numbers[name, stream] + 1
        accepted = process.node.send([b"%d" % number], process.now, stream=stream)
        self._numbers[name, stream] += accepted

    def _is_lost(self, flight: Flight) -> bool:
        source, dest = name_of(flight.link.source), name_of(flight.link.dest)
        words = self._words(self._world.processes[flight.link.source].node, flight.datagram)
        is_cut = (source, dest) in self._cuts
        is_lost = is_cut or bool([drop for drop in self._drops if drop.hits(source, dest, words)])
        is_held = not is_lost and any(hold.hits(source, dest, words) for hold in self._holds)
        if self._shows_wire:
            for word in words:
                self._note(f"{source}>{dest}", word + " lost" * is_lost + " held" * is_held)
        if is_held:
            self._held.append(flight)
        if any(word.split()[0] in REPEATABLE for word in words):
            self._flown.append(flight)
        return is_lost or is_held

    def _words(self, source: Node, datagram: bytes) -> list[str]:
        """What it says; members of a proposal are told by their places in some view."""
        _, frames = source.codec.unpack(datagram, overhear=True)
        assert source.membership is not None
        proposal = source.membership.change.proposer.proposal
        asked = "" if proposal is None else labels(proposal.members, "")
        words = [
            f"propose {asked}" if isinstance(frame, Propose) else in_words(frame)
            for frame in frames
        ]
        return [word for word in words if word]

    def _process(self, name: str) -> Process[PlainMember]:
        return self._world.processes[address_of(name)]

    def _living(self) -> list[Process[PlainMember]]:
        return [process for process in self._world.processes.values() if process.is_up]

    def _is_one(self) -> bool:
        nodes = [process.node for process in self._living()]
        view = nodes[0].view
        is_same = all(node.view == view for node in nodes)
        return is_same and view is not None and set(view) == {node.me for node in nodes}


class Drop:
    """Loses the first so many datagrams that match."""

    def __init__(self, source: str, dest: str, kind: str, numbers: list[int], times: int) -> None:
        self._source, self._dest, self._kind = source, dest, kind
        self._numbers = numbers
        self._left = times

    def hits(self, source: str, dest: str, words: list[str]) -> bool:
        is_here = self._source in ("*", source) and self._dest in ("*", dest)
        if not self._left or not is_here:
            return False
        is_hit = any(map(self._is_meant, words))
        self._left -= is_hit
        return is_hit

    def _is_meant(self, word: str) -> bool:
        kind, *numbers = word.split()
        if kind != self._kind:
            return False
        first, _, last = (numbers or ["0"])[0].partition("..")
        return not self._numbers or int(first) <= self._numbers[0] <= int(last or first)


def links(text: str) -> set[tuple[str, str]]:
    """From whom to whom: `AB>C`, or all ways between sides, `AB|C|D`."""
    if ">" in text:
        sources, _, dests = text.partition(">")
        return {(a, b) for a in sources for b in dests}
    side = {name: n for n, names in enumerate(text.split("|")) for name in names}
    return {(a, b) for a in side for b in side if side[a] != side[b]}


def which(link: str, kind: str, options: Iterable[str], times: int) -> Drop:
    """Of this kind on this link, and with this number; so many, unless it is said how many."""
    source, _, dest = link.partition(">")
    counts = [int(word[6:]) for word in options if word.startswith("count=")]
    numbers = [int(word) for word in options if word.isdigit()]
    return Drop(source, dest, kind, numbers, counts[0] if counts else times)


class UnicastRule:
    """What is delivered of one member's messages to another is what it sent, from the first on."""

    def __init__(self, violations: list[str]) -> None:
        self._violations = violations
        self._sent: dict[tuple[Member, Member], list[bytes]] = {}
        self._delivered: dict[tuple[Member, Member], list[bytes]] = {}

    def sent(self, me: Member, to: Member | None, payloads: Sequence[bytes]) -> None:
        if to is not None:
            self._sent.setdefault((me, to), []).extend(payloads)

    def delivered(self, me: Member, event: Delivered) -> None:
        if event.epoch:
            link = event.sender, me
            got = self._delivered.setdefault(link, [])
            got += event.run.payloads
            if got != self._sent.get(link, [])[: len(got)]:
                self._violations.append(f"S1: {label(me)} delivers {got} of {label(event.sender)}")


# In words


def merged(happened: Sequence[Happened], *, keeps_order: bool) -> list[str]:
    """Runs of numbers as one, and those together to whom the same happened; with `keeps_order`
    only what happened one after the other."""
    runs: list[tuple[str, str, list[int]]] = []
    for who, what in happened:
        found = re.fullmatch(r"(deliver \S+) (\d+)(.*)", what)
        text, number = (what, 0) if found is None else (f"{found[1]} #{found[3]}", int(found[2]))
        mine = [run for run in (runs[-1:] if keeps_order else runs) if run[:2] == (who, text)]
        if number and mine and mine[-1][2][-1] + 1 == number:
            mine[-1][2].append(number)
        else:
            runs.append((who, text, [number] * (number > 0)))
    lines: list[tuple[str, list[str]]] = []
    for who, text, numbers in runs:
        what = text.replace("#", span(numbers))
        same = [line for line in (lines[-1:] if keeps_order else lines) if line[0] == what]
        if same and who not in same[-1][1]:
            same[-1][1].append(who)
        else:
            lines.append((what, [who]))
    return [f"{', '.join(sorted(names))}: {what}" for what, names in lines]


def span(numbers: Sequence[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    return f"{numbers[0]}..{numbers[-1]}"


def ranges(missing: Sequence[range]) -> str:
    return " ".join(span([each.start, each.stop - 1][: len(each)]) for each in missing)


def in_words(frame: Frame) -> str:
    """As scripts name it; empty: scripts do not."""
    way = way_of(getattr(frame, "stream", Stream.FIFO))
    match frame:
        case Data():
            return f"data {span(sorted({frame.first, frame.last}))}{way}"
        case Nack(_, missing):
            return f"nack {ranges(missing)}{way}"
        case Ack(_, received):
            return f"ack {received}{way}"
        case Watermark(_, seqno):
            return f"watermark {seqno}{way}"
        case Commit(seqno):
            return f"commit {seqno}"
        case LogCommit(seqno):
            return f"commit {seqno} total"
        case UnicastData():
            kind = "system" if frame.conn.epoch >= SYSTEM_EPOCH else "unicast"
            return f"{kind} {span(sorted({frame.first, frame.last}))}"
        case UnicastAck():
            return f"unicast-ack {frame.delivered}"
        case UnicastNack():
            return f"unicast-nack {ranges(frame.missing)}"
        case Want():
            return f"want {ranges(frame.missing)} of {label(frame.sender)}{way}"
        case Forwarded():
            return f"forwarded {in_words(frame.data)} of {label(frame.sender)}"
        case Hello() | State() | Refuse() | Finish() | Cut() | Flushed() | Install() | Installed():
            return type(frame).__name__.lower()
        case Leave() | Complain():
            return type(frame).__name__.lower()
        case _:
            return ""


def way_of(stream: Stream) -> str:
    return "" if stream is Stream.FIFO else f" {stream.name.lower()}"


def stream_in(options: Sequence[str]) -> Stream:
    named = (stream for stream in Stream if stream.name.lower() in options)
    return next(named, Stream.FIFO)


def label(member: Member) -> str:
    return member.name + "'" * (member.incarnation - 1)


def labels(members: Iterable[Member], between: str = " ") -> str:
    return between.join(map(label, members))


def address_of(name: str) -> Address:
    return Address("10.0.0.1", 7800 + NAMES.index(name))


def name_of(address: Address) -> str:
    return NAMES[address.port - 7800]


def milliseconds(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(ms|s)", text)
    assert found, f"{text!r} is no time: 500ms, 2s"
    return float(found[1]) * UNITS[found[2]]


# Files


def run_script(text: str) -> tuple[str, list[str]]:
    """The script with the answers that there are now, and what it violates."""
    script = Script()
    lines: list[str] = []
    for block in re.split(r"\n\n+", text.strip()):
        asked = block.partition("\n----")[0].splitlines()
        commands = [line for line in asked if line and not line.startswith("#")]
        if not commands:
            lines += [*asked, ""]
            continue
        lines += [*asked, "----", *script.answer(commands), ""]
    script.end()
    return "\n".join(lines), script.violations
