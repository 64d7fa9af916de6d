"""join: what is asked for is checked, a place is made for the member, and it enters its group."""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringcast.aio.ending import Stay
from ringcast.aio.group import Group
from ringcast.aio.host import HOST
from ringcast.aio.member_host import MemberHost
from ringcast.aio.reach import check_address, check_own, warn_of_exposure
from ringcast.aio.sources import ListSource
from ringcast.config import GroupConfig, check_seconds
from ringcast.errors import ConfigError, UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ringcast.aio.keys import KeyRing
    from ringcast.aio.sources import Source
    from ringcast.aio.state import GiveState, TakeState
    from ringcast.config import (
        MembershipConfig,
        MulticastConfig,
        TransportName,
        UnicastConfig,
    )

RECORD_INTERVAL_S = (0.2, 60.0)
"""From, to. A file costs some milliseconds to write and two to read; a minute is much to lose."""
JOIN_TIMEOUT_S = 30.0

log = logging.getLogger("ringcast")


@asynccontextmanager
async def join(
    group: str | GroupConfig,
    *,
    name: str = "",
    listen: str | None = None,
    advertise: str | None = None,
    members: Sequence[str] = (),
    discovery: Source | None = None,
    transport: TransportName | None = None,
    key: bytes | str | Path | None = None,
    insecure: bool | None = None,
    must_exist: bool | None = None,
    min_members: int | None = None,
    when_few: Literal["raise", "wait"] = "raise",
    receive: bool = True,
    receive_own: bool = True,
    give_state: GiveState | None = None,
    take_state: TakeState | None = None,
    record: Path | str | None = None,
    record_level: str = "deliveries",
    record_payloads: bool = False,
    record_interval_s: float = 2.0,
    run_id: str = "",
    metrics: str | None = None,
    memory_limit: int | None = None,
    spin_s: float | None = None,
    config: MulticastConfig | None = None,
    unicast: UnicastConfig | None = None,
    membership: MembershipConfig | None = None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    signals: bool = True,
    lose: Callable[[], bool] | None = None,
) -> AsyncIterator[Group]:
    """Join the group of this name, or start it; in it when the block starts, out when it ends.

    `group` may also be a whole GroupConfig, such as `load_config` reads from a file; whatever else
    is given here goes before what stands in it.

    Members of one user on one machine find each other by the name alone. Else say where to look:
    `members` are addresses where some may be found, `discovery` is a `DirectorySource` or anything
    else with its three methods. If nobody is there this member starts the group, unless it
    `must_exist`: then JoinTimeout is raised. What all members must agree on comes from the group
    (`Group.settings`); UsageError: this member asks for something else. `listen` is the address to
    use, by default any free port on loopback. If others reach it at another address, because a
    forwarder stands between, say which with `advertise`: that is this member's address then.
    `transport` is "udp"; "multicast", with which what is sent to the group leaves once for all
    members; or "tcp" for one connection between each two members. Those of a group must all use the
    same.

    Everything is encrypted and authenticated, and nobody without the key can join. `key` is 32
    bytes, or the path of a file that `ringcast keygen` has made; else RINGCAST_KEY or
    RINGCAST_KEY_FILE in the environment say it. Without any of these all addresses must be on
    loopback, and the key is one that the first member keeps for its user, by the name of the group.
    `insecure=True` does without a key, and allows other addresses, with a warning that says what is
    open then.

    With fewer than `min_members` in the view (else `membership.min_members`: 1) nothing is sent to
    the group: `send` and `send_many` raise TooFewMembers, or with `when_few="wait"` they wait.

    `give_state` and `take_state` go together, and are for groups whose members keep a state that is
    made of messages. A joiner gets that of a member, and then all messages that are not in it.
    `give_state()` returns the state as it is when it is called, as an iterable of bytes, async or
    not; what changes later must not change it. `await take_state(chunks)` runs before the block
    starts, unless this member starts the group; it is called again from the start if another member
    has to give the state, and where parts of the group merge and the state of another part counts.

    `config` is for messages to the group, `unicast` for those to one member, `membership` for how
    long things may take. `receive=False` is for members that only send: what arrives is taken and
    dropped; `receive_own=False` leaves out what this member itself sends to the group, which counts
    as delivered here without a reader. `record` is a directory for the trace, `record_level` how
    much goes into it ("deliveries", or "full" with frames and windows), `run_id` what to call this
    run of the group there (else by the group's name), `record_interval_s` how often a file of it is
    closed (2 s; from 0.2 to 60). With `record_payloads` the messages are kept there too, for Spark
    to read; while the disk is behind, reading waits for it, as `ringcast archive` does. `metrics`
    is an address, such as "127.0.0.1:9464", where this member tells Prometheus its figures.
    `memory_limit` is how many bytes its windows and queues may take together: smaller windows hold
    senders up sooner. With
    `spin_s`, such as 0.001, the loop does not sleep for so long after each datagram: round trips
    get shorter, for a core. `lose` drops what arrives whenever it returns True: for tests of one's
    own application.

    Leaving the block waits until the others have received what was sent to the group, for
    `membership.leave_timeout_s` at the most, and for no reader; so it does if the block ends with
    an exception or is cancelled, as by Ctrl-C. A second cancellation ends that at once; a note on
    it and a warning say what may not have been delivered. SIGTERM does the same, if nobody else
    handles it, and then ends the process with status 143; `signals=False` leaves it alone.
    """
    base = _configured(
        group,
        name=name or None,
        listen=listen,
        members=tuple(members) or None,
        transport=transport,
        insecure=insecure,
        must_exist=must_exist,
        record=record,
        metrics=metrics,
        memory_limit=memory_limit,
        spin_s=spin_s,
        multicast=config,
        unicast=unicast,
        membership=membership,
    )
    keys = _find_keys(base.key_file if key is None else key)
    is_insecure = base.insecure
    if keys is not None:
        base = replace(base, insecure=True)  # it may leave this machine
    own = Address.parse(base.listen)
    addresses = [Address.parse(text) for text in base.members]
    forwarder = None if advertise is None else Address.parse(advertise)
    scraped = None if base.metrics is None else Address.parse(base.metrics)
    check_own(own, forwarder, addresses, insecure=base.insecure)
    if scraped is not None:
        check_address(scraped, insecure=is_insecure)  # no key protects that
    if addresses and discovery is not None:
        raise UsageError("say where to look with members= or with discovery=, not with both")
    if when_few not in ("raise", "wait"):
        raise ConfigError("when_few", when_few, "'raise' or 'wait'")
    if base.transport == "multicast" and forwarder is not None:
        raise UsageError("advertise= is for a forwarder, and multicast would pass it by")
    if record_payloads and (base.record is None or not receive):
        raise UsageError(
            "record_payloads= is for members with record= that read: what they read is kept"
        )
    check_seconds("record_interval_s", record_interval_s, *RECORD_INTERVAL_S)
    hooks = _state_hooks(give_state, take_state)
    if min_members is not None:
        base = replace(base, membership=replace(base.membership, min_members=min_members))
    group_config = _for_multicast(base) if base.transport == "multicast" else base
    host = HOST.get()
    if keys is None and not is_insecure:  # so all of it is on loopback
        keys = host.own_keys(base.group)
    source = discovery or (ListSource(addresses) if addresses else host.meeting_place(base.group))
    carrier = host.open_transport(base, own, forwarder, keys)
    if is_insecure and keys is None:
        warn_of_exposure(forwarder or carrier.address)
    if carrier.shortage is not None:
        log.info("%s: %s", carrier.address, carrier.shortage)
    place = MemberHost(
        replace(
            group_config, multicast=replace(group_config.multicast, bulk_bytes=carrier.bulk_bytes)
        ),
        host,
        carrier,
        source,
        advertise=forwarder,
        record=None if base.record is None else Path(base.record),
        record_level=record_level,
        record_payloads=record_payloads,
        record_interval_s=record_interval_s,
        run_id=run_id or base.group,
        lose=lose,
        keys=keys,
        has_state=hooks is not None,
    )
    try:
        handle = Group(
            place,
            receive=receive,
            receive_own=receive_own,
            must_exist=base.must_exist,
            waits_for_members=when_few == "wait",
            hooks=hooks,
        )
    except BaseException:
        carrier.close()
        raise
    try:
        await handle._enter(join_timeout_s)
    except BaseException:
        handle._close()
        raise
    async with Stay(handle, host, signals=signals):
        yield handle


def _configured(group: str | GroupConfig, **given: Any) -> GroupConfig:
    """What is given goes before what is configured."""
    base = group if isinstance(group, GroupConfig) else GroupConfig(group=group)
    return replace(base, **{key: value for key, value in given.items() if value is not None})


def _find_keys(key: bytes | str | Path | None) -> KeyRing | None:
    """What is given for this group goes before the environment, which is for all groups. Nothing
    where a key should be is a mistake."""
    text, path = (os.environ.get(name) for name in ("RINGCAST_KEY", "RINGCAST_KEY_FILE"))
    if key is None and text is None and path is None:
        return None
    from ringcast.aio.keys import keys_in, keys_of  # whoever has none need not wait for it

    if key is not None:
        return keys_of(key)
    return keys_of(path or "") if text is None else keys_in(text, "RINGCAST_KEY")


def _for_multicast(config: GroupConfig) -> GroupConfig:
    """Who has another transport would never hear what is sent to all: for that one this is another
    group. One loss often hits several members, so repairs are for all."""
    multicast = replace(config.multicast, repair_to_all=True)
    return replace(config, group=f"{config.group} (multicast)", multicast=multicast)


def _state_hooks(
    give: GiveState | None, take: TakeState | None
) -> tuple[GiveState, TakeState] | None:
    if give is not None and take is not None:
        return give, take
    if give is not None or take is not None:
        raise UsageError(
            "give_state= and take_state= go together: a member that has taken the state may be "
            "the next to give it"
        )
    return None
