"""Uniform delivery under every order of events and every crash: the real code, all schedules.

Channels are ideal: in order, nothing lost, but for what a member that crashes had sent last: any
suffix of any of its channels. Views are one sequence, and each member installs the next one at any
later time. What is explored is `ReliableMulticast` with its uniform stream, driven directly: frames
and the system's messages take the same channel. Loss and repair are multicast's matter, and
explored there.

What can happen next: the first thing in any channel arrives, a member installs its next view, a
sender sends, somebody crashes, somebody joins or leaves, a coordinator takes a digest; and, where
nothing is under way, a member's timers fire. Applications take what is ready at once.

What must hold always: once, in order, nothing invented (U2, U4); nobody delivers what a member of
its view might never get (U1). From every state it stays possible to come to rest; and at rest all
who are left have delivered the same of everybody, at least what anybody has who is gone (U1, U5,
U6), and hold nothing more (U7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.config import MulticastConfig
from ringcast.core.effects import DigestTaken, DigestWanted, Effects, NewerView
from ringcast.events import Delivered
from ringcast.explore.abstraction import canonical, clone
from ringcast.explore.explorer import explore
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.frames import (
    Ack,
    Commit,
    CommitWanted,
    Data,
    EstateRun,
    EstateWanted,
    Frame,
    Standing,
    Takeover,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast.events import Event
    from ringcast.explore.explorer import Report
    from ringcast.wire.frames import SystemMessage

NAMES = "ABCDE"
MAX_STATES = 5_000_000
LONG = 1 << 50
"""Longer than any two of a member's timers are apart."""

THROWN_AWAY = "what a survivor received of a departed sender is thrown away (U6)"

GONE = -1
"""In place of a member's state: it has crashed, or left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Who is there, what they send, and what may happen to them."""

    name: str
    founders: int = 3
    senders: tuple[int, ...] = (1,)
    messages: int = 1
    """From each sender."""
    crashes: int = 1
    mortals: tuple[int, ...] = tuple(range(len(NAMES)))
    """Who may crash."""
    losses: int = 0
    """Of datagrams: what goes from one member to another in its turn is not lost."""
    joins: bool = False
    leaver: int | None = None
    opening: tuple[str, ...] = ()
    """What has happened already, each by how its label begins."""
    digest_first: bool = False
    """BROKEN on purpose: the digest is taken before all old members have the view."""

    @property
    def size(self) -> int:
        return self.founders + self.joins

    @property
    def description(self) -> str:
        senders = ", ".join(NAMES[place] for place in self.senders)
        extras = [f"{self.crashes} crash" if self.crashes > 1 else "one crashes"]
        if self.opening:
            extras.append(f"begins after: {', '.join(self.opening)}")
        if self.losses:
            extras.append(f"{self.losses} datagram{'s' * (self.losses > 1)} lost")
        if self.joins:
            extras.append(f"{NAMES[self.founders]} joins")
        if self.leaver is not None:
            extras.append(f"{NAMES[self.leaver]} leaves")
        each = " each" * (len(self.senders) > 1)
        members = f"{self.founders} member{'s' * (self.founders > 1)}"
        return f"{members}, {senders} sends {self.messages}{each}; {', '.join(extras)}"


CRASH = Scenario(name="crash")
TWO_CRASHES = Scenario(name="two crashes", crashes=2)
LOSS = Scenario(name="loss", losses=1)
JOIN = Scenario(name="join", founders=2, joins=True)
ALONE = Scenario(name="alone", founders=1, senders=(0,), messages=2, joins=True)
LAST_SURVIVOR = Scenario(name="last survivor", founders=2, crashes=2, joins=True)
LATE = Scenario(
    name="late",
    founders=4,
    crashes=2,
    mortals=(1, 3),
    opening=("B sends #1", "CRASH of B", "A installs", "C installs", "D installs"),
)
FOUR = Scenario(name="four", founders=4, crashes=2, opening=("B sends #1", "CRASH of B"))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        CRASH,
        Scenario(name="two messages", messages=2),
        TWO_CRASHES,
        Scenario(name="coordinator sends", senders=(0,), crashes=2),
        LOSS,
        Scenario(name="leave", leaver=1),
        Scenario(name="coordinator leaves", senders=(0,), leaver=0),
        LATE,
        Scenario(name="two senders", senders=(0, 1)),
        ALONE,
        JOIN,
        LAST_SURVIVOR,
        FOUR,
    )
}


def explore_uniform(
    scenario: Scenario,
    multicast: type[ReliableMulticast] = ReliableMulticast,
    *,
    max_seconds: float = math.inf,
    stop_at_violation: bool = False,
) -> Report:
    """Every state of the scenario, and whether rest stays reachable from each."""
    system = UniformSystem(scenario, multicast)
    return explore(
        system,
        goal=system.is_at_rest,
        is_chance=lambda label: isinstance(label, Chance),
        max_states=MAX_STATES,
        max_seconds=max_seconds,
        stop_at_violation=stop_at_violation,
    )


class Chance(str):
    """What may happen, and need not: nobody comes to rest by way of a crash."""

    __slots__ = ()


class State(NamedTuple):
    """Numbers only: members and what they say are kept by the system."""

    members: tuple[int, ...]
    channels: tuple[tuple[tuple[int, int], tuple[int, ...]], ...]
    """(source, dest) → what is under way, oldest first; ascending, none empty."""
    log: tuple[tuple[int, ...], ...]
    """Every view there was, by places."""
    installed: tuple[int, ...]
    """By member: which of them it has."""
    sent: tuple[int, ...]
    """By sender."""
    delivered: tuple[tuple[int, ...], ...]
    """By member, by sender: as its application counts. Those who are gone keep what they had."""
    heritage: tuple[tuple[int, ...], ...]
    """By member, by sender: what it received when it installed the view without that one."""
    opened: tuple[bool, ...]
    crashes: int
    losses: int
    is_asked: bool
    """The newest coordinator is to take a digest for the joiner."""
    welcomes: tuple[tuple[int, tuple[int, ...]], ...]
    """On their way to the joiner: for which view, and where its windows open."""
    heard: int
    """The newest view that the joiner has heard of: an older welcome counts no more."""
    has_left: bool
    wrong: tuple[str, ...]


class Step(NamedTuple):
    """What became of one member, and what it said and gave to its application."""

    after: int
    said: tuple[tuple[int, int], ...]
    """(dest, what)"""
    got: tuple[tuple[int, int, int], ...]
    """(sender, first, last)"""
    digest: tuple[int, ...] | None
    heard: int
    told: str
    is_accepted: bool
    wrong: tuple[str, ...]


class UniformSystem:
    """Everything that can happen in one scenario."""

    def __init__(
        self, scenario: Scenario, multicast: type[ReliableMulticast] = ReliableMulticast
    ) -> None:
        self.scenario = scenario
        self._multicast = multicast
        self._config = MulticastConfig(
            capacity=max(2, scenario.messages), datagram_bytes=512, window_bytes=4096
        )
        self._members = [
            Member(Address("explore", 1 + place), 1, NAMES[place]) for place in range(scenario.size)
        ]
        self._place = {member: place for place, member in enumerate(self._members)}
        self._layers: list[ReliableMulticast] = []
        self._numbers: dict[object, int] = {}
        self._words: list[Frame | SystemMessage] = []
        self._told: list[str] = []
        """The same in words."""
        self._word_numbers: dict[object, int] = {}
        self._steps: dict[object, Step] = {}

    # The system

    def initial(self) -> State:
        scenario = self.scenario
        founders = tuple(range(scenario.founders))
        members = [self._number(self._fresh(place)) for place in range(scenario.size)]
        state = State(
            members=tuple(members),
            channels=(),
            log=(founders,),
            installed=tuple(0 if place in founders else -1 for place in range(scenario.size)),
            sent=(0,) * len(scenario.senders),
            delivered=((0,) * len(scenario.senders),) * scenario.size,
            heritage=((0,) * len(scenario.senders),) * scenario.size,
            opened=tuple(place in founders for place in range(scenario.size)),
            crashes=0,
            losses=0,
            is_asked=False,
            welcomes=(),
            heard=0,
            has_left=False,
            wrong=(),
        )
        while (first := next(self._rest_actions(state), None)) is not None:
            _, state = first  # the first acks
        for happened in scenario.opening:
            actions = self.actions(state)
            state = next(after for label, after in actions if str(label).startswith(happened))
        return state

    def key(self, state: State) -> object:
        return tuple(state)

    def actions(self, state: State) -> Iterator[tuple[object, State]]:
        yield from self._arrivals(state)
        yield from self._views(state)
        yield from self._digests(state)
        yield from self._sends(state)
        yield from self._faults(state)
        if not any(dest_is_alive(state, dest) for (_, dest), _ in state.channels):
            yield from self._timeouts(state)

    def _rest_actions(self, state: State) -> Iterator[tuple[object, State]]:
        yield from self._arrivals(state)
        if not state.channels:
            for place, number in enumerate(state.members):
                if self._layers[number].deadlines.next() is not None:
                    yield self._timeout(state, place, number)

    def _arrivals(self, state: State) -> Iterator[tuple[object, State]]:
        for (source, dest), words in state.channels:
            if not dest_is_alive(state, dest):
                continue
            word = words[0]
            rest = _with_channel(state, source, dest, words[1:])
            step = self._hear(state.members[dest], source, word)
            label = f"{self._name(dest)} gets from {self._name(source)}: {self._told[word]}"
            yield label + step.told, self._after(rest, dest, step)

    def _views(self, state: State) -> Iterator[tuple[object, State]]:
        for place in self._alive(state):
            at = state.installed[place]
            if not 0 <= at < len(state.log) - 1:
                continue
            view = self._view(state, at + 1)
            joined = [who for who in state.log[at + 1] if who not in state.log[at]]
            step = self._step(
                state.members[place],
                ("view", view.id, view.members, tuple(joined)),
                partial(self._install, view, joined),
            )
            after = state._replace(
                installed=_replaced(state.installed, place, at + 1),
                heritage=_replaced(state.heritage, place, self._heritage(state, place, at + 1)),
            )
            label = f"{self._name(place)} installs {view}{step.told}"
            yield label, self._after(after, place, step)

    def _heritage(self, state: State, place: int, at: int) -> tuple[int, ...]:
        windows = self._layers[state.members[place]].windows()
        found = []
        for sender, before in zip(self.scenario.senders, state.heritage[place], strict=True):
            window = windows.get(Origin(self._members[sender], Stream.UNIFORM))
            if isinstance(window, ReceiveWindow) and sender not in state.log[at]:
                found.append(window.received)
            else:
                found.append(before)
        return tuple(found)

    def _digests(self, state: State) -> Iterator[tuple[object, State]]:
        joiner = self.scenario.founders
        newest = state.log[-1]
        if not self.scenario.joins or state.opened[joiner] or state.members[joiner] == GONE:
            return
        for at, offsets in state.welcomes:
            if at >= state.heard:
                yield self._open(state, joiner, at, offsets)
        if joiner not in newest or newest[0] == joiner:
            return
        coordinator = newest[0]
        if state.is_asked or state.members[coordinator] == GONE:
            return
        at = len(state.log) - 1
        olds = [who for who in newest if who != joiner]
        if self.scenario.digest_first:
            olds = [coordinator]
        if all(state.installed[who] == at for who in olds if state.members[who] != GONE):
            wanted = DigestWanted((self._members[joiner],))
            step = self._step(
                state.members[coordinator],
                "digest",
                lambda layer, out: layer.handle_signal(wanted, 0, out),
            )
            after = self._after(state._replace(is_asked=True), coordinator, step)
            yield f"{self._name(coordinator)} is to take the digest{step.told}", after

    def _open(
        self, state: State, joiner: int, at: int, offsets: tuple[int, ...]
    ) -> tuple[str, State]:
        view = self._view(state, at)
        digest = Digest(
            {Origin(member, Stream.UNIFORM): 0 for member in view}
            | {
                Origin(self._members[sender], Stream.UNIFORM): offset
                for sender, offset in zip(self.scenario.senders, offsets, strict=True)
                if self._members[sender] in view
            }
        )

        def enter(layer: ReliableMulticast, out: Effects) -> None:
            layer.group.change(view, [layer], 0, out)
            layer.install_digest(digest, 0, out)

        step = self._step(state.members[joiner], ("enter", view.id, view.members, offsets), enter)
        after = state._replace(
            installed=_replaced(state.installed, joiner, at),
            opened=_replaced(state.opened, joiner, True),
            delivered=_replaced(state.delivered, joiner, self._entered_with(state, at, offsets)),
        )
        label = f"{self._name(joiner)} enters {view} at {list(offsets)}{step.told}"
        return label, self._after(after, joiner, step)

    def _entered_with(self, state: State, at: int, offsets: tuple[int, ...]) -> tuple[int, ...]:
        """What the joiner counts as its own: of senders that are no more, all that there was."""
        view = state.log[at]
        by = state.delivered[view[0]]
        return tuple(
            offset if sender in view else count
            for sender, offset, count in zip(self.scenario.senders, offsets, by, strict=True)
        )

    def _sends(self, state: State) -> Iterator[tuple[object, State]]:
        for i, place in enumerate(self.scenario.senders):
            is_out = state.members[place] == GONE or (
                self.scenario.leaver == place and state.has_left
            )
            if is_out or state.sent[i] == self.scenario.messages:
                continue
            payload = _payload(place, state.sent[i] + 1)
            step = self._step(state.members[place], ("send", payload), partial(_send, payload))
            if step.after == state.members[place] or not step.is_accepted:
                continue  # the window is full
            after = state._replace(sent=_replaced(state.sent, i, state.sent[i] + 1))
            label = f"{self._name(place)} sends #{after.sent[i]}{step.told}"
            yield label, self._after(after, place, step)

    def _faults(self, state: State) -> Iterator[tuple[object, State]]:
        scenario = self.scenario
        for (source, dest), words in state.channels:
            if state.members[source] == GONE and dest_is_alive(state, dest):
                lost = f"LOST: all that {self._name(source)} had sent to {self._name(dest)}"
                yield Chance(lost), _with_channel(state, source, dest, ())
            elif state.losses < scenario.losses and isinstance(self._words[words[0]], Frame):
                lost = f"LOST: {self._name(source)} to {self._name(dest)}: {self._told[words[0]]}"
                after = _with_channel(state, source, dest, words[1:])
                yield Chance(lost), after._replace(losses=state.losses + 1)
        joiner = scenario.founders
        is_outside = scenario.joins and all(joiner not in view for view in state.log)
        if is_outside and state.members[joiner] != GONE and state.log[-1]:
            log = (*state.log, (*state.log[-1], joiner))
            joins = Chance(f"{self._name(joiner)} JOINS")
            yield joins, state._replace(log=log, is_asked=False)
        leaver = scenario.leaver
        if leaver is not None and state.members[leaver] != GONE:
            if not state.has_left:
                leaves = Chance(f"{self._name(leaver)} wants to LEAVE")
                yield leaves, state._replace(has_left=True)
            elif self._layers[state.members[leaver]].is_flushed:
                yield f"{self._name(leaver)} is gone", self._without(state, leaver)
        if state.crashes < scenario.crashes:
            for place in self._alive(state):
                if len(self._alive(state)) > 1 and place in scenario.mortals:
                    crashed = self._without(state, place)
                    crash = Chance(f"CRASH of {self._name(place)}")
                    yield crash, crashed._replace(crashes=state.crashes + 1)

    def _without(self, state: State, place: int) -> State:
        log = state.log
        if place in log[-1]:
            log = (*log, tuple(who for who in log[-1] if who != place))
        return state._replace(
            members=_replaced(state.members, place, GONE), log=log, is_asked=False
        )

    def _timeouts(self, state: State) -> Iterator[tuple[object, State]]:
        for place in self._alive(state):
            number = state.members[place]
            if state.opened[place] and self._layers[number].deadlines.next() is not None:
                yield self._timeout(state, place, number)

    def _timeout(self, state: State, place: int, number: int) -> tuple[str, State]:
        step = self._step(number, "timers", _fire)
        return f"{self._name(place)}: timers fire{step.told}", self._after(state, place, step)

    # What must hold

    def violations(self, state: State) -> Iterator[str]:
        yield from state.wrong
        if self.is_at_rest(state):
            yield from self._wrong_at_rest(state)

    def is_at_rest(self, state: State) -> bool:
        alive = self._alive(state)
        if any(dest_is_alive(state, dest) for (_, dest), _ in state.channels):
            return False
        if state.has_left and self.scenario.leaver in alive:
            return False
        joiner = self.scenario.founders
        for place in alive:
            if place == joiner and not state.opened[place]:
                if joiner in state.log[-1] and len(alive) > 1:
                    return False
                continue
            if state.installed[place] < len(state.log) - 1:
                return False
            layer = self._layers[state.members[place]]
            if layer.uniform.estates or not layer.is_flushed:
                return False
            window = layer.windows()[Origin(self._members[place], Stream.UNIFORM)]
            if window.low < window.high:
                return False
        return all(
            count == self.scenario.messages or place not in alive or state.has_left
            for place, count in zip(self.scenario.senders, state.sent, strict=True)
        )

    def _wrong_at_rest(self, state: State) -> Iterator[str]:
        alive = [place for place in self._alive(state) if state.opened[place]]
        for i, sender in enumerate(self.scenario.senders):
            counts = [state.delivered[place][i] for place in alive]
            if not counts:
                continue
            before = max(row[i] for row in state.delivered)
            if min(counts) < before:
                yield "delivered by somebody, and not by every survivor (U1)"
            if min(counts) < max(state.heritage[place][i] for place in alive):
                yield THROWN_AWAY
            if len(set(counts)) > 1:
                yield "survivors have delivered different messages (U6)"
            if sender in alive and min(counts) < state.sent[i]:
                yield "a live sender's message is not delivered by all (U5)"

    # Members

    def _fresh(self, place: int) -> ReliableMulticast:
        streams = (Stream.UNIFORM,)
        layer = self._multicast(self._members[place], self._config, 200, streams=streams)
        layer.receive_buffer = 1 << 20  # no share of it is ever too small
        if place < self.scenario.founders:
            founders = tuple(self._members[: self.scenario.founders])
            out = Effects()
            view = View(ViewId(founders[0], 1), founders)
            layer.group.change(view, [layer], 0, out)
            entries = {Origin(member, Stream.UNIFORM): 0 for member in founders}
            layer.install_digest(Digest(entries), 0, out)
        return layer

    def _number(self, layer: ReliableMulticast) -> int:
        key = canonical(layer)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._layers)
            self._layers.append(layer)
        return number

    def _install(
        self, view: View, joined: list[int], layer: ReliableMulticast, out: Effects
    ) -> None:
        layer.group.change(view, [layer], 0, out)
        if joined and not layer._is_closed:
            origins = [Origin(self._members[who], Stream.UNIFORM) for who in joined]
            layer.install_digest(Digest(dict.fromkeys(origins, 0)), 0, out)

    def _hear(self, number: int, source: int, word: int) -> Step:
        said = self._words[word]
        member = self._members[source]

        def hear(layer: ReliableMulticast, out: Effects) -> None:
            if isinstance(said, EstateWanted | EstateRun):
                layer.receive_message(member, said, 0, out)
            else:
                assert isinstance(said, Frame)
                layer.receive(member, [said], 0, out)

        return self._step(number, ("hear", source, word), hear)

    def _step(
        self, number: int, what: object, act: Callable[[ReliableMulticast, Effects], Any]
    ) -> Step:
        known = self._steps.get((number, what))
        if known is not None:
            return known
        layer = clone(self._layers[number])
        out = Effects()
        wrong = []
        result: object = None
        events: list[Event] = []
        try:
            result = act(layer, out)
            events = layer.take_ready(1000, 0, out)
            layer.check_invariants()
        except AssertionError as error:
            wrong.append(f"an invariant is broken: {extract_tb(error.__traceback__)[-1].line}")
        said = []
        for dest, word in (*out.frames, *out.messages):
            assert not isinstance(dest, Address)
            others = [member for member in layer.group.view or () if member != layer.me]
            said += [
                (self._place[member], self._word(word))
                for member in (others if dest is None else [dest])
            ]
        got = tuple(
            (self._place[event.sender], event.run.first, event.run.last)
            for event in events
            if isinstance(event, Delivered)
        )
        digest = None
        heard = 0
        for signal in out.signals:
            if isinstance(signal, NewerView):
                heard = signal.view_id.counter - 1
            if isinstance(signal, DigestTaken):
                entries = signal.digest.entries
                digest = tuple(
                    entries.get(Origin(self._members[sender], Stream.UNIFORM), 0)
                    for sender in self.scenario.senders
                )
        told = "".join(f"; delivers {self._name(sender)}#{first}" for sender, first, _ in got)
        step = Step(
            self._number(layer), tuple(said), got, digest, heard, told, result != 0, tuple(wrong)
        )
        self._steps[number, what] = step
        return step

    def _word(self, word: Frame | SystemMessage) -> int:
        key = canonical(word) if not isinstance(word, Data) else _data_key(word)
        number = self._word_numbers.get(key)
        if number is None:
            number = self._word_numbers[key] = len(self._words)
            self._words.append(word)
            self._told.append(_in_words(word))
        return number

    def _after(self, state: State, place: int, step: Step) -> State:
        channels = dict(state.channels)
        for dest, word in step.said:
            if state.members[dest] != GONE:
                before = channels.get((place, dest), ())
                if before[-1:] != (word,):
                    channels[place, dest] = (*before, word)
        counts = list(state.delivered[place])
        wrong = list(step.wrong)
        for sender, first, last in step.got:
            i = self.scenario.senders.index(sender)
            if first <= counts[i]:
                wrong.append("a message was delivered twice (U2)")
            elif first > counts[i] + 1:
                wrong.append("a message was delivered before an earlier one (U4)")
            counts[i] = last
        return state._replace(
            members=_replaced(state.members, place, step.after),
            channels=tuple(sorted(channels.items())),
            delivered=_replaced(state.delivered, place, tuple(counts)),
            welcomes=self._welcomes(state, place, step),
            heard=max(state.heard, step.heard),
            wrong=tuple(wrong),
        )

    def _welcomes(
        self, state: State, place: int, step: Step
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        if step.digest is None:
            return state.welcomes
        return tuple(sorted({*state.welcomes, (state.installed[place], step.digest)}))

    def _alive(self, state: State) -> list[int]:
        return [place for place, number in enumerate(state.members) if number != GONE]

    def _view(self, state: State, at: int) -> View:
        members = tuple(self._members[place] for place in state.log[at])
        return View(ViewId(members[0], at + 1), members)

    def _name(self, place: int) -> str:
        return self._members[place].name


def _send(payload: bytes, layer: ReliableMulticast, out: Effects) -> int:
    return layer.send([payload], Stream.UNIFORM, 0, out)


def _fire(layer: ReliableMulticast, out: Effects) -> None:
    """Whatever timers are armed: all are due."""
    deadline = layer.deadlines.next()
    assert deadline is not None
    layer.handle_timeout(deadline + LONG, out)


def dest_is_alive(state: State, dest: int) -> bool:
    return state.members[dest] != GONE


def _with_channel(state: State, source: int, dest: int, words: tuple[int, ...]) -> State:
    channels = {way: what for way, what in state.channels if way != (source, dest)}
    if words:
        channels[source, dest] = words
    return state._replace(channels=tuple(sorted(channels.items())))


def _replaced(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _payload(sender: int, seqno: int) -> bytes:
    return b"%d#%d" % (sender, seqno)


def _in_words(word: Frame | SystemMessage) -> str:
    match word:
        case Data():
            return f"Data {word.first}..{word.last}"
        case Ack():
            return f"Ack received {word.received}, delivered {word.delivered}"
        case Commit():
            return f"Commit {word.seqno} in view {word.view_id.counter}"
        case CommitWanted():
            return f"CommitWanted in view {word.view_id.counter}"
        case Takeover():
            claims = [f"{who} {stage.name} {high}" for who, stage, high in word.claims]
            return f"Takeover in view {word.view_id.counter}: {', '.join(claims) or 'nobody'}"
        case Standing(is_open=False):
            return f"Standing in view {word.view_id.counter}: not open"
        case Standing():
            shares = [f"{share.sender} {share.delivered}/{share.received}" for share in word.shares]
            return f"Standing in view {word.view_id.counter}: {', '.join(shares) or 'nobody'}"
        case EstateWanted():
            return f"EstateWanted {word.sender}#{word.first}..{word.last}"
        case EstateRun():
            return f"EstateRun {word.sender}#{word.first}..{word.first + len(word.payloads) - 1}"
    return repr(word)


def _data_key(data: Data) -> object:
    return ("Data", data.stream, data.first, tuple(data.payloads), data.more)
