"""Memory: how much the windows and queues of one member may take together, and what takes how much.

A limit is divided once for each view: what cannot be made smaller is set apart, and the rest goes
to the windows in equal parts. Each sender is told to have no more out than a part, and what comes
beyond one is dropped as if it were lost. Parts are fixed while a view lasts: two members that lent
room to each other's senders could come to wait for each other for ever.

A view may be so large that the limit cannot be kept: then windows are as small as they can be, and
`explain` says what is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ringcast.errors import ConfigError
from ringcast.protocols import channel, early
from ringcast.protocols.channel import ControlChannel
from ringcast.protocols.early import STRANGER_BYTES_MAX, STRANGERS_MAX
from ringcast.protocols.total.order import EARLY_BYTES_MAX
from ringcast.protocols.total.pending import TOTAL_BYTES
from ringcast.protocols.total.queues import QUEUE_BYTES
from ringcast.protocols.unicast import ReliableUnicast
from ringcast.protocols.views import pieces
from ringcast.protocols.views.layer import GroupViews
from ringcast.protocols.views.reading import UNREAD_WINDOWS
from ringcast.protocols.views.state import StateTransfer
from ringcast.protocols.views.streams import EARLY_MAX, ViewStreams
from ringcast.window.receive import BoundedWindow, ReceiveWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import GroupConfig
    from ringcast.core.effects import Layer
    from ringcast.model import View
    from ringcast.protocols.views.reading import Half
    from ringcast.window.assembler import Assembler

MEMBERS_MIN: Final = 2
"""A limit must do for a view of so many."""

LOGS: Final = 4
"""Windows of logs: one that is sent, of this sequencer and the last, and what is read at once."""

MB: Final = 1 << 20


class Memory:
    """Of one member."""

    def __init__(
        self, config: GroupConfig, streams: int, *, has_state: bool, has_total: bool = False
    ) -> None:
        """`streams`: that each member sends on. The log of total messages, of which there is
        mostly one, is none of them."""
        self.config = config
        """With windows as the limit leaves room for."""
        self._base_bytes = config.multicast.window_bytes
        self._group_bytes = config.multicast.grown_bytes
        self._unicast_bytes = config.unicast.window_bytes
        self._streams = streams
        self._has_state, self._has_total = has_state, has_total
        self._members = MEMBERS_MIN
        if config.memory_limit is not None:
            if config.memory_limit < self.least(MEMBERS_MIN):
                raise ConfigError("memory_limit", config.memory_limit, self._need())
            self._resize()

    # What may be taken

    @property
    def limit(self) -> int:
        """If none was given, what follows from the windows, in the view as it is."""
        windows = self._count_windows(self._members) * max(self._group_bytes, self._unicast_bytes)
        most = sum(self._apart(self._members).values()) + windows
        return self.config.memory_limit or most

    def least(self, members: int) -> int:
        """The smallest limit that can be kept in a view of so many."""
        return sum(self._apart(members).values()) + self._count_windows(members) * self._smallest

    def divide(self, view: View, layers: Sequence[Layer]) -> None:
        """This view begins, with windows for its members."""
        self._members = max(MEMBERS_MIN, len(view))
        for layer in layers:
            if isinstance(layer, ViewStreams):
                size = layer.config.max_message_bytes  # as the group has it
                multicast = replace(self.config.multicast, max_message_bytes=size)
                self.config = replace(self.config, multicast=multicast)
        if self.config.memory_limit is None:
            return
        self._resize()
        for layer in layers:
            if isinstance(layer, ViewStreams):
                self._bound_group(layer)
            elif isinstance(layer, ReliableUnicast):
                self._bound_unicast(layer)

    def _bound_group(self, layer: ViewStreams) -> None:
        size = self.config.multicast.grown_bytes
        base = self.config.multicast.window_bytes
        layer.config = replace(layer.config, window_bytes=base, held_bytes=size)
        layer.allowed_bytes = layer.config.allowed_bytes
        for sending in layer.senders.values():
            sending.bound(layer.config)
        for receiver in layer.receivers.values():
            _bound(receiver.window, size)

    def _bound_unicast(self, layer: ReliableUnicast) -> None:
        config = layer.config = self.config.unicast
        layer.loopback.max_bytes = config.window_bytes
        for sender in layer.senders.values():
            sender.config = config
        for receiver in layer.receivers.values():
            _bound(receiver.window, config.window_bytes)

    def _resize(self) -> None:
        assert self.config.memory_limit is not None
        left = self.config.memory_limit - sum(self._apart(self._members).values())
        part = max(left // self._count_windows(self._members), self._smallest)
        group, one = min(part, self._group_bytes), min(part, self._unicast_bytes)
        base = min(group, self._base_bytes)
        self.config = replace(
            self.config,
            multicast=replace(self.config.multicast, window_bytes=base, held_bytes=group),
            unicast=replace(self.config.unicast, window_bytes=one, held_bytes=one),
        )

    @property
    def _smallest(self) -> int:
        """A window must hold so many bytes."""
        return 4 * self.config.multicast.datagram_bytes

    def _apart(self, members: int) -> dict[str, int]:
        """What cannot be made smaller, in a view of so many."""
        others, config = members - 1, self.config.multicast
        one_way = max(channel.WINDOW_BYTES, self._smallest) + channel.MESSAGE_BYTES_MAX
        # One's own while they are cut and put together; of each other one, and to it alone.
        messages = 2 * self._streams + others * (self._streams + 2)
        messages += self._has_total * (members + 1)  # pending; of each member, while it is read
        queued = TOTAL_BYTES + members * QUEUE_BYTES + EARLY_BYTES_MAX
        return {
            "large_messages": messages * config.max_message_bytes,
            "control": 2 * others * one_way,
            "view_changes": pieces.BYTES_MAX + 2 * EARLY_MAX * config.datagram_bytes,
            "strangers": 2 * (STRANGERS_MAX * STRANGER_BYTES_MAX + early.ALL_BYTES_MAX),
            "state": self.config.membership.join_buffer_bytes if self._has_state else 0,
            "total": queued * self._has_total,
        }

    def _count_windows(self, members: int) -> int:
        """With what a reader takes out of them at once, and those of who has departed."""
        others, streams = members - 1, self._streams
        received = others * streams * (1 + self.config.multicast.purge.is_retained)
        taken = streams + others * (streams + 1) + 1
        logs = LOGS * self._has_total
        return streams + received + 2 * others + 1 + taken + UNREAD_WINDOWS + logs

    def _need(self) -> str:
        messages = self._apart(self._members)["large_messages"]
        return (
            f"at least {self.least(self._members)} for {self._members} members: {messages} of it "
            f"is for large messages, less with a smaller max_message_bytes"
        )

    @property
    def shortage(self) -> str | None:
        """Why the limit cannot be kept in this view; None: it can."""
        limit = self.config.memory_limit
        if limit is None or limit >= self.least(self._members):
            return None
        return f"memory_limit is {limit}, and cannot be kept: give {self._need()}"

    # What is taken

    def stats(self, layers: Sequence[Layer]) -> dict[str, int]:
        """Bytes that may be taken, and are, by what they are for."""
        found = dict.fromkeys(("sent", "received", "unicast", *self._apart(MEMBERS_MIN)), 0)
        for layer in layers:
            match layer:
                case ViewStreams():
                    _count_streams(layer, found)
                case ReliableUnicast():
                    _count_unicast(layer, "unicast", found)
                case ControlChannel():
                    queues = layer.waiting.values()
                    found["control"] += sum(len(each) for queue in queues for each in queue)
                    _count_unicast(layer.unicast, "control", found)
                case GroupViews():
                    found["view_changes"] += layer.pieces.size
                case StateTransfer():
                    found["state"] += 0 if layer.catch_up is None else layer.catch_up.size
        return {"limit": self.limit, "taken": sum(found.values()), **found}

    def explain(self, layers: Sequence[Layer]) -> list[str]:
        if self.config.memory_limit is None:
            return []
        found = self.stats(layers)
        limit, taken = found.pop("limit"), found.pop("taken")
        by_size = sorted(((size, what) for what, size in found.items() if size), reverse=True)
        parts = ", ".join(f"{size / MB:.1f} {what.replace('_', ' ')}" for size, what in by_size)
        reasons = [f"{taken / MB:.1f} of {limit / MB:.1f} MB are taken: {parts}"] if taken else []
        return [*reasons, *filter(None, [self.shortage])]


def _bound(window: ReceiveWindow, size: int) -> None:
    assert isinstance(window, BoundedWindow)  # there has been a limit from the beginning
    window.bound(size)


def _count_streams(layer: ViewStreams, found: dict[str, int]) -> None:
    if layer.total is not None:
        found["total"] += layer.total.size
        found["large_messages"] += layer.total.reader.size
    for sending in layer.senders.values():
        found["sent"] += sending.window.kept_bytes
        found["large_messages"] += _bytes_of(sending.assembler) + sending.fragments.rest_bytes
    for receiver in layer.receivers.values():
        found["received"] += receiver.window.kept_bytes
        found["large_messages"] += _bytes_of(receiver.assembler)
    current: list[Half] = [*layer.senders.values(), *layer.receivers.values()]
    found["received"] += layer.reading.ended_bytes(current)
    for _, data in (*layer.early, *layer.aside):
        found["view_changes"] += sum(map(len, data.payloads))


def _count_unicast(layer: ReliableUnicast, what: str, found: dict[str, int]) -> None:
    for sender in layer.senders.values():
        found[what] += sender.window.kept_bytes
        found["large_messages"] += sender.fragments.rest_bytes
    for receiver in layer.receivers.values():
        found[what] += receiver.window.kept_bytes
        found["large_messages"] += _bytes_of(receiver.assembler)
    found[what] += layer.loopback.kept_bytes
    found["strangers"] += layer.strangers.size + layer.early.size


def _bytes_of(assembler: Assembler) -> int:
    """What is given up keeps its place, and no bytes."""
    return 0 if assembler.parts is None else assembler.size
