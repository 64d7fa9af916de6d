"""MemberHost: what a member is made of, and what is left of it when it is out."""

from __future__ import annotations

import logging
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ringcast.aio.driver import Driver, Owner
from ringcast.core.effects import Effects, Signal, Suspected, Trusted
from ringcast.errors import JoinTimeout, UsageError
from ringcast.model import Address, Member, Stream, View
from ringcast.node import Node, build_node
from ringcast.protocols.channel import channel_config
from ringcast.protocols.views import layer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringcast.aio.host import Host
    from ringcast.aio.keys import KeyRing
    from ringcast.aio.transport import Transport
    from ringcast.arguments import Source
    from ringcast.config import GroupConfig
    from ringcast.trace.observe.observer import TraceObserver
    from ringcast.trace.recorder import Recorder

STREAMS = {"fifo": Stream.FIFO, "uniform": Stream.UNIFORM, "total": Stream.TOTAL}
"""By guarantee: where messages to the group travel."""

log = logging.getLogger("ringcast")

SECRET_BYTES = 32
"""Of which cookies for strangers are made."""

CANDIDATES_NAMED = 5
"""Addresses listed in an error before it only says how many more there are."""


class GroupViews(layer.GroupViews):
    """One whose log says who is suspected, and who no longer is."""

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        match signal:
            case Suspected(member, reason):
                log.info("%s suspects %s: %s", self.me, member, reason)
            case Trusted(member):
                log.info("%s hears %s again", self.me, member)
        super().handle_signal(signal, now, out)


class Recording(NamedTuple):
    """Where a member's trace goes, and how much of it."""

    directory: Path
    run_id: str
    level: str
    payloads: bool
    interval_s: float
    file_mode: int


@dataclass(slots=True)
class MemberHost:
    """A member's transport, what it was configured with, where it looks for others, and where its
    trace goes."""

    config: GroupConfig
    host: Host
    transport: Transport
    source: Source
    keys: KeyRing | None
    recording: Recording | None
    advertise: Address | None
    """Where others reach this member, if that is not where it listens."""
    lose: Callable[[], bool] | None
    has_state: bool
    _recorder: Recorder | None = None
    _settings: dict[str, Any] = field(default_factory=dict)  # of who records

    def drive(self, owner: Owner) -> Driver:
        """The member as a new incarnation; it has not begun yet."""
        config, host, keys = self.config, self.host, self.keys
        me = Member(self.advertise or self.transport.address, host.new_incarnation(), config.name)
        lock = None if keys is None else keys.lock(config.group, host, self.transport)
        node = build_node(
            me,
            config,
            seal=None if lock is None else lock.envelope,
            membership=GroupViews,
            streams=tuple(STREAMS.values()),
            must_exist=config.must_exist,
            state=self.has_state,
            secret=host.random_bytes(SECRET_BYTES),
        )
        node.set_receive_buffer(self.transport.receive_buffer)
        return Driver(
            *(node, self.transport, host.loop(), owner, self.source),
            clock=host.now,
            observer=self._observe(node),
            lose=self.lose,
            spin_s=config.spin_s,
            lock=lock,
        )

    def close(self) -> None:
        """The member is gone: wait for what is still being written."""
        self.transport.close()
        if self._recorder is not None:
            self._recorder.close()

    def raise_refusal(self, driver: Driver) -> None:
        """If there is a group that this member cannot join as it is configured: say why."""
        refusal = driver.membership.agreement.refusal
        if refusal is not None:
            raise UsageError(f"cannot join group {self.config.group!r}: {refusal}") from None

    def raise_join_timeout(self, driver: Driver, limit: str) -> NoReturn:
        membership = driver.membership
        if membership.change.is_frozen:  # somebody is there
            reasons = "; ".join(driver.explain())
            raise JoinTimeout(f"not let in{limit}: {reasons}") from None
        asked = list(map(str, membership.discovery.candidates))
        more = len(asked) - CANDIDATES_NAMED
        names = ", ".join(asked[:CANDIDATES_NAMED]) + (f" and {more} more" if more > 0 else "")
        where = names or f"{self.source}, where no other member is listed"
        raise JoinTimeout(
            f"nobody answered at {where}{limit}: is group {self.config.group!r} running"
            + ("?" if self.keys is None else f", with this key (id {self.keys.id})?")
        ) from None

    def tell_view(self, driver: Driver, before: View | None) -> None:
        """What this member's log says of the view that it has come to."""
        me, membership, view = driver.node.me, driver.membership, driver.node.view
        group = self.config.group
        assert view is not None
        came = [str(member) for member in view if before is None or member not in before]
        gone = [str(member) for member in before or () if member not in view]
        changes = {"came": came, "gone": gone}
        told = [f"{', '.join(who)} {what}" for what, who in changes.items() if who]
        log.info("%s: %r of group %r: %s", me, view, group, "; ".join(told))
        if before is None and membership.started_alone:
            log.info("%s started group %r alone: nobody answered at %s", me, group, self.source)
        if shortage := driver.node.memory.shortage:
            log.warning("%s: %s", me, shortage)
        taken = membership.agreement.taken
        for name, asked, now, was_given in taken:
            if was_given:
                log.warning(
                    "%s asked for %s = %s and takes %s: the group that it came together with has "
                    "that",
                    *(me, name, asked, now),
                )
            else:
                log.info("%s takes %s = %s, as its group has it, not %s", me, name, now, asked)
        if taken:
            self._settings.update(_settings(driver.node.config))
        taken.clear()

    def _observe(self, node: Node) -> TraceObserver | None:
        recording = self.recording
        if recording is None:
            return None
        # These need what only ringcast[spark] brings.
        from ringcast.trace.observe.observer import TraceObserver
        from ringcast.trace.recorder import Recorder

        self._settings = _settings(self.config)
        try:
            self._recorder = Recorder(
                *(recording.directory, recording.run_id, node.me),
                level=recording.level,
                payloads=recording.payloads,
                segment_seconds=recording.interval_s,
                group=self.config.group,
                settings=self._settings,
                mode=recording.file_mode,
            )
        except OSError as error:
            raise UsageError(f"cannot record in {recording.directory}: {error.strerror}") from error
        return TraceObserver(node, self._recorder)


def _settings(config: GroupConfig) -> dict[str, Any]:
    """What the rules that judge this member's trace depend on."""
    from importlib.metadata import PackageNotFoundError, version  # only who records needs it

    try:
        ringcast = version("ringcast")
    except PackageNotFoundError:  # a tree that nobody has installed
        ringcast = ""
    multicast = config.multicast
    return {
        "ringcast": ringcast,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "transport": config.transport,
        "purge": multicast.purge.name.lower(),
        "capacity": multicast.capacity_max,
        "multicast": asdict(multicast),
        "membership": asdict(config.membership),
        "unicast": asdict(config.unicast),
        "channel": asdict(channel_config(config.unicast, multicast.datagram_bytes)),
    }
