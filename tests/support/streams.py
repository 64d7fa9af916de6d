"""One member's streams: frames, and views that begin without a flush, in; frames and events out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.core.effects import Effects
from ringcast.core.view_change import Begin, cut_between
from ringcast.events import Delivered
from ringcast.model import Origin, Stream, View, ViewId
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.changes import InView, tag_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.config import MulticastConfig
    from ringcast.core.effects import Signal
    from ringcast.events import Event
    from ringcast.model import Address, Member
    from ringcast.wire.frames import Frame


class Streams:
    """In a view of these members, if there are any."""

    def __init__(
        self,
        me: Member,
        config: MulticastConfig,
        *members: Member,
        fragment_bytes: int = 900,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
    ) -> None:
        self.layer = ViewStreams(me, config, fragment_bytes, streams=streams)
        self.out = Effects()
        self.now = 0
        self.is_checked = True
        """After every input; that is costly where windows are large."""
        if members:
            self.view(*members)
        self.events()

    def view(
        self, *members: Member, counter: int = 1, starts: Mapping[Origin, int] | None = None
    ) -> ViewId:
        """Streams of who was not in the last one begin behind `starts`."""
        layer, view = self.layer, View(ViewId(members[0], counter), members)
        cut = cut_between(layer.group.view, view, layer.me, starts or {})
        layer.group.change(view, [layer], self.now, self.out)
        self.signal(Begin(view, cut))
        layer.announce(self.out)
        self.check()
        return view.id

    def check(self) -> None:
        if self.is_checked:
            self.layer.check_invariants()

    def signal(self, signal: Signal) -> None:
        self.layer.handle_signal(signal, self.now, self.out)

    def receive(self, source: Member, *frames: Frame, view: ViewId | None = None) -> None:
        """Frames that were said in this member's view, or in another."""
        if view is None and self.layer.group.view is not None:
            view = self.layer.group.view.id
        tag = () if view is None else (InView(tag_of(view)),)
        self.layer.receive(source, (*tag, *frames), self.now, self.out)
        self.check()

    def send(self, *payloads: bytes, stream: Stream = Stream.FIFO) -> int:
        return self.layer.send(payloads, stream, self.now, self.out)

    def take(self, limit: int = 1000) -> list[Event]:
        events = self.layer.take_ready(limit, self.now, self.out)
        self.check()
        return events

    def payloads(self, limit: int = 1000) -> list[bytes]:
        """What is taken, of whomever."""
        taken = [event for event in self.take(limit) if isinstance(event, Delivered)]
        return [payload for event in taken for payload in event.run.payloads]

    def timeout(self) -> None:
        """On to the next deadline."""
        deadline = self.layer.deadlines.next()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.layer.handle_timeout(self.now, self.out)
        self.check()

    def sent(self, *kinds: type[Frame]) -> list[tuple[Member | Address | None, Frame]]:
        """Frames of these kinds since the last call; others are forgotten."""
        frames = [pair for pair in self.out.frames if isinstance(pair[1], kinds or object)]
        self.out.frames.clear()
        return frames

    def events(self) -> list[Event]:
        events = list(self.out.events)
        self.out.events.clear()
        return events

    def window(self, sender: Member, stream: Stream = Stream.FIFO) -> Any:
        return self.layer.windows()[Origin(sender, stream)]
