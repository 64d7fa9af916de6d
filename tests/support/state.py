"""A town whose processes have applications with a state: all messages that they have taken.

A joiner gets the state of another in chunks, and then goes on by itself. Whatever happens, its log
must in the end be the same as that of any other member, sender by sender: then nothing was lost on
the way, and nothing came twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ringcast.core.shared import Phase
from ringcast.events import (
    Delivered,
    StateAbandoned,
    StateBegun,
    StateChunk,
    StateLost,
    StateReceived,
    StateWanted,
    StateWritable,
)
from ringcast.model import SYSTEM_EPOCH, Origin
from ringcast.node import build_node
from ringcast.wire.frames import UnicastData
from support.membership import MILLISECOND, Town

if TYPE_CHECKING:
    from ringcast.config import GroupConfig
    from ringcast.events import Event
    from ringcast.model import Member
    from ringcast.node import Node
    from ringcast.protocols.state import StateTransfer
    from support.membership import Sent

CHUNKS = 6


@dataclass
class Application:
    """What one process knows."""

    log: list[tuple[int, str]] = field(default_factory=list)
    """Messages to the group: the incarnation of the sender, and the text."""
    private: list[bytes] = field(default_factory=list)
    """Messages to this member alone."""
    chunks: list[bytes] | None = None
    """A state that has begun to come."""
    waits: bool = False
    begun: int = 0
    received: int = 0
    lost: list[str] = field(default_factory=list)
    giving: dict[int, list[bytes]] = field(default_factory=dict)
    """States that others want, as far as they have not been accepted yet."""
    blocked: set[int] = field(default_factory=set)
    abandoned: dict[int, str] = field(default_factory=dict)

    def of(self, sender: Member) -> list[str]:
        return [text for incarnation, text in self.log if incarnation == sender.incarnation]

    def by_sender(self) -> dict[int, list[str]]:
        texts: dict[int, list[str]] = defaultdict(list)
        for incarnation, text in self.log:
            texts[incarnation].append(text)
        return texts

    def snapshot(self) -> list[bytes]:
        """The log in so many chunks, however short it is."""
        size = -(-len(self.log) // CHUNKS)
        return [json.dumps(self.log[size * n : size * (n + 1)]).encode() for n in range(CHUNKS)]

    def take(self, event: Event) -> None:
        match event:
            case Delivered() if event.epoch:
                assert not self.waits
                self.private += event.run.payloads
            case Delivered(sender, run):
                assert not self.waits, "a message came before the state"
                self.log += [(sender.incarnation, payload.decode()) for payload in run.payloads]
            case StateBegun():
                assert self.waits
                self.begun += 1
                self.chunks = []
            case StateChunk(payload):
                assert self.chunks is not None
                self.chunks.append(payload)
            case StateReceived(_, count, size):
                assert self.chunks is not None
                assert (len(self.chunks), sum(map(len, self.chunks))) == (count, size)
                assert self.log == []
                texts = [entry for chunk in self.chunks for entry in json.loads(chunk)]
                self.log = [(incarnation, text) for incarnation, text in texts]
                self.chunks = None
                self.waits = False
                self.received += 1
            case StateLost(reason):
                self.chunks = None
                self.waits = False
                self.lost.append(reason)
            case StateWanted(transfer):
                assert transfer not in self.giving
                self.giving[transfer] = self.snapshot()
            case StateWritable(transfer):
                self.blocked.discard(transfer)
            case StateAbandoned(transfer, reason):
                self.giving.pop(transfer, None)
                self.abandoned[transfer] = reason


class StateTown(Town):
    """A town in which all processes, or all but the `stateless`, have a state."""

    def __init__(self, seed: int = 1, *, stateless: str = "", **options: Any) -> None:
        super().__init__(seed, **options)
        self.stateless = stateless
        self.mute: set[str] = set()
        """Whose application gives no state."""
        self.chatty: dict[str, int] = {}
        """Who sends all the time, and how many messages it has sent."""
        self.pace = MILLISECOND
        """The time from one chunk that an application provides to the next."""
        self._applications: dict[Member, Application] = defaultdict(Application)
        self._seen: dict[Member, int] = defaultdict(int)

    def _build(self, name: str, me: Member, config: GroupConfig, *, must_exist: bool) -> Node:
        has_state = name not in self.stateless
        return build_node(
            *(me, config), must_exist=must_exist, streams=self._streams, state=has_state
        )

    def application(self, name: str) -> Application:
        return self._applications[self.nodes[name].me]

    def state(self, name: str) -> StateTransfer:
        state = self.nodes[name].state
        assert state is not None
        return state

    def is_up_to_date(self, name: str) -> bool:
        """In the group, with its state."""
        return bool(self.group(name)) and not self.state(name).is_behind

    def differ(self, *names: str) -> str:
        """Which messages one of these has and another has not; empty if there are none."""
        first, *others = [self.application(name).by_sender() for name in names]
        return "".join(
            f"{names[0]} {first.get(sender)} {name} {other.get(sender)}; "
            for name, other in zip(names[1:], others, strict=True)
            for sender in first.keys() | other.keys()
            if first.get(sender) != other.get(sender)
        )

    def chat(self, names: str) -> None:
        """Let these send, a message every 0.7 ms each, until they are silenced."""
        for name in names:
            self.chatty.setdefault(name, 0)
            self._at(self.now, partial(self._say_more, name))

    def silence(self) -> None:
        self.chatty.clear()

    def _say_more(self, name: str) -> None:
        is_there = name in self.nodes and self.membership(name).phase is Phase.MEMBER
        if name in self.chatty and is_there:
            said = self.chatty[name]
            self.chatty[name] += self.send(name, f"{name}{said}".encode())
            self._at(self.now + 7 * MILLISECOND // 10, partial(self._say_more, name))

    # What applications do

    def _turn(self, name: str) -> None:
        node = self.nodes[name]
        application = self._applications[node.me]
        state = node.state
        assert state is not None
        application.waits |= state.is_catching_up and not application.received
        super()._turn(name)
        for event in self.events[node.me][self._seen[node.me] :]:
            application.take(event)
        self._seen[node.me] = len(self.events[node.me])
        if application.giving and name in self.nodes and name not in self.mute:
            self._at(self.now + self.pace, partial(self._give, node))

    def _give(self, node: Node) -> None:
        name = node.me.name
        application = self._applications[node.me]
        if self.nodes.get(name) is not node or name in self.paused:
            return
        for transfer, chunks in list(application.giving.items()):
            if transfer in application.blocked:
                continue
            is_last = len(chunks) == 1
            if node.provide_state(transfer, chunks[:1], self.now, is_last=is_last):
                del chunks[0]
                if is_last:
                    del application.giving[transfer]
            else:
                application.blocked.add(transfer)
        self._turn(name)

    # What must always hold

    def _check(self, node: Node, event: Event) -> None:
        if isinstance(event, Delivered) and event.epoch:
            return
        view = node.view
        is_late = isinstance(event, Delivered) and view and event.view_id.counter < view.counter
        if isinstance(event, Delivered) and is_late:
            # What a joiner has kept came in an earlier view: its sender may have departed since,
            # and have come back.
            key = (node.me, Origin(event.sender, event.run.stream))
            self._check_order(key, event.run.first, event.run.last)
            self._away.add(key)
        else:
            super()._check(node, event)


def is_system(sent: Sent) -> bool:
    """Whether it carries a message of state transfer."""
    return any(
        isinstance(frame, UnicastData) and frame.conn.epoch >= SYSTEM_EPOCH for frame in sent.frames
    )
