"""MemberHost: what a member is made of, and what is left of it when it is out."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

from ringcast.aio.driver import Driver
from ringcast.errors import JoinTimeout, UsageError
from ringcast.model import Member, Stream
from ringcast.node import build_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from ringcast.aio.driver import Owner
    from ringcast.aio.host import Host
    from ringcast.aio.keys import KeyRing
    from ringcast.aio.sources import Source
    from ringcast.aio.transport import Transport
    from ringcast.config import GroupConfig
    from ringcast.model import Address, View
    from ringcast.node import Node
    from ringcast.trace.observe.observer import TraceObserver
    from ringcast.trace.recorder import Recorder

STREAMS = {"fifo": Stream.FIFO, "uniform": Stream.UNIFORM}
"""By guarantee: where messages to the group travel."""

log = logging.getLogger("ringcast")

SECRET_BYTES = 32
"""Of which cookies for strangers are made."""

CANDIDATES_NAMED = 5
"""Addresses listed in an error before it only says how many more there are."""


class MemberHost:
    """A member's transport, what it was configured with, where it looks for others, and where its
    trace goes."""

    def __init__(
        self,
        config: GroupConfig,
        host: Host,
        transport: Transport,
        source: Source,
        *,
        advertise: Address | None,
        record: Path | None,
        record_level: str,
        record_payloads: bool,
        record_interval_s: float,
        run_id: str,
        lose: Callable[[], bool] | None,
        keys: KeyRing | None,
        has_state: bool,
    ) -> None:
        self._config = config
        self._host = host
        self._transport = transport
        self._address = advertise or transport.address  # where others reach this member
        self._source = source
        self._record = record
        self._record_level = record_level
        self._record_payloads = record_payloads
        self._record_interval_s = record_interval_s
        self._run_id = run_id
        self._group = config.group
        self._lose = lose
        self._keys = keys
        self._has_state = has_state
        self._recorder: Recorder | None = None
        self._settings: dict[str, Any] = {}  # of who records

    @property
    def searched(self) -> tuple[str, Source]:
        """Which group was looked for, and where."""
        return self._config.group, self._source

    @property
    def metrics(self) -> str | None:
        """Where figures are told."""
        return self._config.metrics

    def probe_directory(self, group: str) -> Path | None:
        """Where questions about this member are asked; None: nowhere."""
        return self._host.probe_directory(group)

    def drive(self, owner: Owner, *, must_exist: bool = False) -> Driver:
        """The member as a new incarnation; it has not begun yet."""
        config = self._config
        me = Member(self._address, self._host.new_incarnation(), config.name)
        lock = (
            None
            if self._keys is None
            else self._keys.lock(config.group, self._host, self._transport)
        )
        node = build_node(
            me,
            config,
            seal=None if lock is None else lock.envelope,
            streams=tuple(STREAMS.values()),
            must_exist=must_exist,
            state=self._has_state,
            secret=self._host.random_bytes(SECRET_BYTES),
        )
        node.set_receive_buffer(self._transport.receive_buffer)
        return Driver(
            *(node, self._transport, self._host.loop(), owner, self._source),
            clock=self._host.now,
            observer=self._observe(node),
            lose=self._lose,
            spin_s=config.spin_s,
            lock=lock,
        )

    def close(self) -> None:
        """The member is gone: wait for what is still being written."""
        self._transport.close()
        if self._recorder is not None:
            self._recorder.close()

    def raise_refusal(self, driver: Driver) -> None:
        """If there is a group that this member cannot join as it is configured: say why."""
        refusal = driver.membership.agreement.refusal
        if refusal is not None:
            raise UsageError(f"cannot join group {self._config.group!r}: {refusal}") from None

    def raise_join_timeout(self, driver: Driver, limit: str) -> NoReturn:
        membership = driver.membership
        if membership.change.is_frozen:  # somebody is there
            reasons = "; ".join(driver.explain())
            raise JoinTimeout(f"not let in{limit}: {reasons}") from None
        asked = list(map(str, membership.discovery.candidates))
        more = len(asked) - CANDIDATES_NAMED
        names = ", ".join(asked[:CANDIDATES_NAMED]) + (f" and {more} more" if more > 0 else "")
        where = names or f"{self._source}, where no other member is listed"
        raise JoinTimeout(
            f"nobody answered at {where}{limit}: is group {self._config.group!r} running"
            + ("?" if self._keys is None else f", with this key (id {self._keys.id})?")
        ) from None

    def tell_view(self, driver: Driver, before: View | None) -> None:
        """What this member's log says of the view that it has come to."""
        me, membership, view = driver.node.me, driver.membership, driver.node.view
        assert view is not None
        came = [str(member) for member in view if before is None or member not in before]
        gone = [str(member) for member in before or () if member not in view]
        changes = {"came": came, "gone": gone}
        told = [f"{', '.join(who)} {what}" for what, who in changes.items() if who]
        log.info("%s: %r of group %r: %s", me, view, self._config.group, "; ".join(told))
        if before is None and membership.started_alone:
            log.info("%s started group %r alone: nobody answered at %s", me, *self.searched)
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
        if self._record is None:
            return None
        # These need what only ringcast[spark] brings.
        from ringcast.trace.observe.observer import TraceObserver
        from ringcast.trace.recorder import Recorder

        self._settings = _settings(self._config)
        try:
            self._recorder = Recorder(
                *(self._record, self._run_id, node.me),
                level=self._record_level,
                payloads=self._record_payloads,
                segment_seconds=self._record_interval_s,
                group=self._group,
                settings=self._settings,
            )
        except OSError as error:
            raise UsageError(f"cannot record in {self._record}: {error.strerror}") from error
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
        "purge": multicast.purge.name.lower(),
        "capacity": multicast.capacity_max,
        "multicast": asdict(multicast),
        "membership": asdict(config.membership),
    }
