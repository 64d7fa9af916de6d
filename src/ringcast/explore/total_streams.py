"""The streams of members as automata: what each input does to them, found out once.

Streams that behave alike (`canonical`) share a number; they are told apart by 64 bits of it, as
states are. What members say is numbered, too. No timer is ever due.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from traceback import extract_tb
from typing import Any, NamedTuple, TypeAlias

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects
from ringcast.core.view_change import Begin, CutReached, Frozen
from ringcast.events import Event
from ringcast.explore.abstraction import canonical, clone
from ringcast.explore.words import in_words
from ringcast.model import Member, Stream, ViewId
from ringcast.protocols.views.frames import Wish
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.changes import Forwarded, InView, Want, tag_of
from ringcast.wire.frames import Ack, Data, LogCommit, Submit

Act: TypeAlias = Callable[[ViewStreams, Effects], int | None]

NOW = 1
TAKE_MAX = 100
CONFIG = MulticastConfig(capacity=8, datagram_bytes=4096, window_bytes=1 << 14)
LATE = Data | Ack | LogCommit | Submit
"""What may arrive at any later time."""
AT_ONCE = Want | Forwarded
"""What a flush asks for, and gets. Nothing else is said where no timer is due."""


class Said(NamedTuple):
    """A frame, or a message of one layer to another, under way."""

    source: Member
    dest: Member
    view: ViewId  # in which it was said
    what: Any


class Step(NamedTuple):
    """What one input does to the streams of one member."""

    after: int
    late: tuple[int, ...] = ()
    at_once: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    signals: tuple[Frozen | CutReached, ...] = ()
    accepted: int = 0
    wrong: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        found = ", ".join(map(in_words, self.events))
        return f"  [{found}]" * bool(found)


class Streams:
    """Of all members."""

    def __init__(self, protocol: type[ViewStreams]) -> None:
        self.all: list[ViewStreams] = []
        """They never change: inputs go to copies."""
        self.said: list[Said] = []
        self._protocol = protocol
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[Hashable, Step] = {}

    def fresh(self, member: Member) -> int:
        """Of who is in no view yet."""
        return self._number(self._protocol(member, CONFIG, 4000, streams=(Stream.TOTAL,)))

    # Inputs: what would become of them

    def send(self, number: int, payload: bytes) -> Step:
        return self._step(
            *(number, payload), lambda streams, out: streams.send([payload], Stream.TOTAL, NOW, out)
        )

    def receive(self, number: int, said: int) -> Step:
        source, _, view, what = self.said[said]

        def act(streams: ViewStreams, out: Effects) -> None:
            if isinstance(what, Submit):
                streams.receive_message(source, what, NOW, out)
            else:
                streams.receive(source, [InView(tag_of(view)), what], NOW, out)

        return self._step(number, ("gets", said), act)

    def change(self, number: int, wish: Wish) -> Step:
        """They freeze, flush, or begin a view."""

        def act(streams: ViewStreams, out: Effects) -> None:
            if isinstance(wish, Begin):
                streams.group.change(wish.view, [streams], NOW, out)
            streams.handle_signal(wish, NOW, out)
            if isinstance(wish, Begin):
                streams.announce(out)

        members = wish.view.members if isinstance(wish, Begin) else ()
        return self._step(number, (repr(wish), members), act)

    def _step(self, number: int, what: Hashable, act: Act) -> Step:
        step = self._steps.get((number, what))
        if step is None:
            step = self._steps[number, what] = self._outcome(clone(self.all[number]), act)
        return step

    def _outcome(self, streams: ViewStreams, act: Act) -> Step:
        out, accepted = Effects(), 0
        events: list[Event] = []
        wrong: list[str] = []
        try:
            accepted = act(streams, out) or 0
            events += out.events
            out.events.clear()
            events += streams.take_ready(TAKE_MAX, NOW, out)
            events += out.events
            streams.check_invariants()
        except AssertionError as error:
            wrong.append(f"an invariant is broken: {extract_tb(error.__traceback__)[-1].line}")
        signals = tuple(each for each in out.signals if isinstance(each, Frozen | CutReached))
        late, at_once = self._said_by(streams, out, LATE), self._said_by(streams, out, AT_ONCE)
        after = self._number(streams)
        return Step(after, late, at_once, tuple(events), signals, accepted, tuple(wrong))

    def _said_by(self, streams: ViewStreams, out: Effects, kinds: Any) -> tuple[int, ...]:
        view = streams.group.view
        assert view is not None
        found = []
        for dest, what in (*out.frames, *out.messages):
            for each in view if dest is None else (dest,):
                if isinstance(what, kinds) and each != streams.me:
                    key = streams.me, each, view.id, canonical(what)
                    number = self._numbers.setdefault(key, len(self.said))
                    if number == len(self.said):
                        self.said.append(Said(streams.me, each, view.id, what))  # type: ignore[arg-type]
                    found.append(number)
        return tuple(found)

    def _number(self, streams: ViewStreams) -> int:
        number = self._numbers.setdefault((streams.me, hash(canonical(streams))), len(self.all))
        if number == len(self.all):
            self.all.append(streams)
        return number
