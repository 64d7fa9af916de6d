"""Nodes and the network between them, moved by hand: no randomness, no clock, no sleeping.

A datagram that left a node is a Packet until the test hands it over. `exchange` hands over
everything there is, without any time passing; `run` also lets the deadlines of so many virtual
seconds come. Applications take what is ready at each exchange unless they are `stopped`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.config import DATAGRAM_BYTES_MAX, GroupConfig, MulticastConfig
from ringcast.events import Delivered
from ringcast.model import Address, Member, Origin, Stream, View, ViewId
from ringcast.node import Node
from ringcast.protocols.views.streams import ViewStreams
from ringcast.wire.changes import InView
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringcast.events import Event
    from ringcast.protocols.multicast_receiver import MulticastReceiver
    from ringcast.protocols.multicast_sender import MulticastSender
    from ringcast.wire.frames import Frame

    Drop = Callable[[str, str, Frame], bool]  # (source, dest, frame)


class Packet(NamedTuple):
    """Frames on their way to whoever has that name; `to` if they are for that member alone. `tag`
    is that of the view that they were said in; None: of the one that their source is in now."""

    source: Member
    dest: str
    frames: list[Frame]
    to: Member | None = None
    tag: int | None = None


class Cluster:
    """Members by name, all in one view with their windows open. Time stands in `now`."""

    def __init__(
        self,
        names: str,
        *,
        multicast: type[ViewStreams] = ViewStreams,
        checked: bool = True,
        configs: dict[str, MulticastConfig] | None = None,
        streams: tuple[Stream, ...] = (Stream.FIFO,),
        **config: Any,
    ) -> None:
        self.now = 1_000_000_000
        self.nodes: dict[str, Node] = {}
        self.events: dict[str, list[Event]] = {}
        """What each application has taken, in order; begins anew with a restart."""
        self.stopped: set[str] = set()
        """Members whose application takes nothing."""
        self.view: View | None = None
        self._multicast = multicast
        self._checked = checked  # machines with a rule switched off violate invariants
        defaults: dict[str, Any] = {"datagram_bytes": 1000, "window_bytes": 1 << 20}
        self._config = MulticastConfig(**(defaults | config))
        self._configs = configs or {}
        self._streams = streams
        self._incarnations = 0
        self._codecs: dict[Member, Codec] = {}
        for name in names:
            self.start(name)
        self.install(names)

    # Members and views

    def start(self, name: str) -> Node:
        """A new process. The same name is the same address, the incarnation another."""
        self._incarnations += 1
        me = Member(Address("127.0.0.1", 7000 + ord(name)), self._incarnations, name)
        multicast = self._configs.get(name, self._config)
        config = GroupConfig(group="test", name=name, multicast=multicast)
        node = self.nodes[name] = Node(me, config, multicast=self._multicast, streams=self._streams)
        self.events[name] = []
        self._codecs[me] = node.codec
        return node

    def crash(self, name: str) -> None:
        del self.nodes[name]

    def next_view(self, names: str) -> View:
        """The view after the last one, with the processes that have these names now."""
        counter = self.view.counter + 1 if self.view else 1
        members = tuple(self.nodes[name].me for name in names)
        self.view = View(ViewId(members[0], counter), members)
        return self.view

    def starts(self) -> dict[Origin, int]:
        """Where the streams of all that live go on."""
        return {
            Origin(node.me, stream): node.multicast.highest_sent(stream)
            for node in self.nodes.values()
            for stream in self._streams
        }

    def install(self, names: str) -> View:
        """The next view begins at all its members, without a flush."""
        view, starts = self.next_view(names), self.starts()
        for name in names:
            self.nodes[name].install_view(view, self.now, starts)
        return view

    def join(self, name: str) -> Node:
        assert self.view is not None
        node = self.start(name)
        self.install("".join(member.name for member in self.view) + name)
        return node

    # The network

    def collect(self) -> list[Packet]:
        """What the nodes want to send, not handed over yet; one packet for each receiver."""
        packets = []
        for node in self.nodes.values():
            others = [member for member in node.view or () if member != node.me]
            # With a rule switched off a machine may write to members that are gone.
            reachable = others if self._checked else list(self._codecs)
            for dest, datagram in node.take_datagrams():
                tag, frames = read(node.codec, datagram)
                if dest is None:
                    packets += [
                        Packet(node.me, member.name, frames, None, tag) for member in others
                    ]
                else:
                    to = [member for member in reachable if member.address == dest][-1]
                    packets.append(Packet(node.me, to.name, frames, to, tag))
        return packets

    def hand_over(self, packets: Iterable[Packet]) -> None:
        """To whoever lives at that address, as bytes."""
        for source, dest, frames, to, tag in packets:
            if dest in self.nodes:
                codec = Codec("test", source, DATAGRAM_BYTES_MAX)
                codec.tag = self._codecs[source].tag if tag is None else tag
                self.nodes[dest].receive_datagrams(codec.pack(frames, to), self.now)

    def take(self, name: str, limit: int = 1_000_000) -> None:
        self.events[name] += self.nodes[name].take_events(limit, self.now)

    def exchange(self, drop: Drop | None = None) -> None:
        """Take and hand over until nobody has anything to send; no time passes."""
        for _ in range(10_000):
            for name, node in self.nodes.items():
                if name not in self.stopped:
                    self.take(name)
                if self._checked:
                    node.check_invariants()
            packets = self.collect()
            if not packets:
                return
            for packet in packets:
                self.hand_over(kept(packet, drop))
        raise AssertionError("the members never stop talking")

    # Time

    def next_timeout(self) -> int | None:
        deadlines = [node.next_timeout() for node in self.nodes.values()]
        return min((at for at in deadlines if at is not None), default=None)

    def step(self, drop: Drop | None = None) -> bool:
        """On to the next deadline of anybody; False if nobody waits for anything."""
        at = self.next_timeout()
        if at is None:
            return False
        self.now = max(self.now, at)
        for node in self.nodes.values():
            node.handle_timeout(self.now)
        self.exchange(drop)
        return True

    def run(self, seconds: float, drop: Drop | None = None) -> None:
        """Let so much time pass, with all that happens in it."""
        stop = self.now + round(seconds * 1e9)
        self.exchange(drop)
        steps = 0
        while (at := self.next_timeout()) is not None and at <= stop:
            self.step(drop)
            steps += 1
            assert steps < 10_000, "deadlines come and nothing changes"
        self.now = stop

    # What came out

    def delivered(self, name: str, sender: str) -> list[tuple[int, bytes]]:
        """(seqno, payload) of everything delivered at `name` from any incarnation of `sender`."""
        return [
            item
            for event in self.events[name]
            if isinstance(event, Delivered) and event.sender.name == sender
            for item in enumerate(event.run.payloads, event.run.first)
        ]

    def window_is_drained(self, name: str) -> bool:
        """Everything `name` has sent was delivered by everybody, and it knows."""
        window = self.sending(name).window
        return window.low == window.high

    def sending(self, name: str) -> MulticastSender:
        return self.nodes[name].multicast.senders[Stream.FIFO]

    def receiver(self, name: str, sender: str) -> MulticastReceiver:
        return self.nodes[name].multicast.receivers[Origin(self.nodes[sender].me, Stream.FIFO)]


def read(codec: Codec, datagram: bytes) -> tuple[int, list[Frame]]:
    """The tag of the view that it was said in, 0 if none is told, and the frames."""
    _, frames = codec.unpack(datagram, overhear=True)
    if isinstance(frames[0], InView):
        return frames[0].tag, frames[1:]
    return 0, frames


def kept(packet: Packet, drop: Drop | None) -> list[Packet]:
    """What is left of it, if anything."""
    source, dest, frames, _, _ = packet
    left = [frame for frame in frames if drop is None or not drop(source.name, dest, frame)]
    return [packet._replace(frames=left)] if left else []


def cluster(n: int, **options: Any) -> Cluster:
    """Members A, B, C, … in one view; options are those of Cluster or of MulticastConfig."""
    return Cluster("ABCDEFGH"[:n], **options)
