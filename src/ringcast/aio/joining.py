"""join: what is asked for is checked, a place is made for the member, and it enters its group."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar

from ringcast import private
from ringcast.aio.ending import Stay
from ringcast.aio.group import Group
from ringcast.aio.host import HOST, MACHINE
from ringcast.aio.member_host import MemberHost, Recording
from ringcast.aio.reach import check_address, check_own, warn_of_exposure
from ringcast.aio.sources import (
    ListSource,
    NameSource,
    check_system,
    is_name,
    look_up_own,
)
from ringcast.checks import check_flag, check_function, check_name, check_seconds
from ringcast.config import GroupConfig
from ringcast.config_file import load_config
from ringcast.errors import ConfigError, UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Sequence

    from ringcast.aio.keys import KeyRing
    from ringcast.aio.sources import Source
    from ringcast.aio.state import GiveState, TakeState
    from ringcast.config import MembershipConfig, MulticastConfig, TransportName, UnicastConfig

RECORD_INTERVAL_S = (0.2, 60.0)
"""From, to. A file costs some milliseconds to write and two to read; a minute is much to lose."""
DEFAULT_INTERVAL_S = 2.0
JOIN_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S_MAX = 86_400.0

HOW = "write `async with ringcast.join(…) as group:`; the block is how long this member stays"

P = ParamSpec("P")
M = TypeVar("M")

log = logging.getLogger("ringcast")


class Once(Generic[M]):
    """What may be entered once, and has nothing else. Any other use says so."""

    how = HOW
    _is_entered = True  # an interrupt may come before it is made

    def __init__(self, entering: M) -> None:
        self._entering = entering
        self._is_entered = False

    def _enter(self) -> M:
        if self._is_entered:
            raise UsageError("this join was entered before: call join again for each block")
        self._is_entered = True
        return self._entering

    def __getattr__(self, name: str) -> NoReturn:
        self._is_entered = True  # the error is enough
        raise AttributeError(f"no {name!r} before the group was joined: {self.how}")

    def _misused(self, word: str, more: str = "") -> UsageError:
        self._is_entered = True
        return UsageError(f"a join is not for `{word}`: {self.how}{more}")


class Join(
    Once["AbstractAsyncContextManager[Group, bool | None]"],
    AbstractAsyncContextManager["Group", "bool | None"],
):
    """What `join` returns, for `async with`."""

    async def __aenter__(self) -> Group:
        return await self._enter().__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._entering.__aexit__(*error)

    def __del__(self) -> None:
        if not self._is_entered:
            warnings.warn(f"a join was never entered: {self.how}", RuntimeWarning, stacklevel=2)

    def __await__(self) -> Generator[None, None, NoReturn]:
        raise self._misused("await")

    def __aiter__(self) -> NoReturn:
        raise self._misused("async for")

    def __enter__(self) -> NoReturn:
        raise self._misused("with", "; in threads, `with ringcast.blocking.join(…) as group:`")

    def __exit__(self, *error: object) -> NoReturn:
        raise self._misused("with")


class JoinOptions(TypedDict, total=False):
    """What `join` takes, but for the group and its state: for who hands it on."""

    name: str
    listen: str | None
    advertise: str | None
    members: Sequence[str]
    discovery: Source | None
    must_exist: bool | None
    min_members: int | None
    when_few: Literal["raise", "wait"]
    transport: TransportName | None
    key: bytes | str | Path | None
    insecure: bool | None
    receive: bool
    receive_own: bool
    send_time: bool
    record: Path | str | None
    record_level: str | None
    record_payloads: bool
    record_interval_s: float | None
    file_mode: int | str | None
    run_id: str
    metrics: str | None
    memory_limit: int | None
    spin_s: float | None
    config: GroupConfig | None
    multicast: MulticastConfig | None
    unicast: UnicastConfig | None
    membership: MembershipConfig | None
    join_timeout_s: float
    signals: bool
    lose: Callable[[], bool] | None


def entered(joining: Callable[P, AsyncIterator[Group]]) -> Callable[P, Join]:
    manager = asynccontextmanager(joining)

    @wraps(joining)
    def made(*args: P.args, **options: P.kwargs) -> Join:
        return Join(manager(*args, **options))

    return made


@entered
async def join(
    group: str = "",
    *,
    config: GroupConfig | None = None,
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
    send_time: bool = False,
    give_state: GiveState | None = None,
    take_state: TakeState | None = None,
    record: Path | str | None = None,
    record_level: str | None = None,
    record_payloads: bool = False,
    record_interval_s: float | None = None,
    file_mode: int | str | None = None,
    run_id: str = "",
    metrics: str | None = None,
    memory_limit: int | None = None,
    spin_s: float | None = None,
    multicast: MulticastConfig | None = None,
    unicast: UnicastConfig | None = None,
    membership: MembershipConfig | None = None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    signals: bool = True,
    lose: Callable[[], bool] | None = None,
) -> AsyncIterator[Group]:
    """Join the group of this name, or start it; in it when the block starts, out when it ends.

    `config` is a whole configuration, such as `load_config` reads from a file, with the name of the
    group in it; whatever else is given here goes before what stands there. Without it what is not
    given here is as the environment says: RINGCAST_LISTEN, RINGCAST_MULTICAST_CAPACITY.

    Members of one user on one machine find each other by the name alone. Else say where to look:
    `members` are addresses where some may be found, or host names, or names of SRV records such as
    "_ringcast._udp.orders.example", which are looked up again while the group lives; `discovery` is
    a `DirectorySource` or anything else with its three methods. If nobody is there this member
    starts the group, unless it `must_exist`: then JoinTimeout is raised. What all members must
    agree on comes from the group (`Group.settings`); UsageError: this member asks for something
    else. `listen` is the address to use, by default any free port on
    loopback. If others reach it at another address, because a forwarder stands between, say which
    with `advertise`: that is this member's address then. `transport` is "udp"; "multicast", with
    which what is sent to the group leaves once for all members; or "tcp" for one connection between
    each two members. Those of a group must all use the same.

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

    `multicast` is for messages to the group, `unicast` for those to one member, `membership` for
    how long things may take. `receive=False` is for members that only send: what arrives is taken
    and dropped; `receive_own=False` leaves out what this member itself sends to the group, which
    counts as delivered here without a reader. With `send_time` each message tells when it was sent,
    in a header (`message.sent_at`). `record` is a directory for the trace, `record_level`
    how much goes into it ("deliveries", or "full" with frames and windows), `run_id` what to call
    this run of the group there (else by the group's name), `record_interval_s` how often a file of
    it is closed (2 s; from 0.2 to 60), `file_mode` for whom it is: 0o600, its owner, unless
    RINGCAST_FILE_MODE says otherwise; 0o640, a group too. With `record_payloads` the messages are
    kept there too, for Spark to read; while the disk is behind, reading waits for it, as `ringcast
    archive` does. `metrics` is an address, such as "127.0.0.1:9464", where this member tells
    Prometheus its figures. `memory_limit` is how many bytes its windows and queues may take
    together: smaller windows block senders sooner. With `spin_s`, such as 0.001, the loop does
    not sleep for so long after each datagram: round trips get shorter, for a core. `lose` drops
    what arrives whenever it returns True: for tests of one's own application.

    Leaving the block waits until the others have received what was sent to the group, for
    `membership.leave_timeout_s` at the most, and for no reader; so it does if the block ends with
    an exception or is cancelled, as by Ctrl-C. A second cancellation ends that at once; a note on
    it and a warning say what may not have been delivered. SIGTERM does the same, if nobody else
    handles it, and then ends the process with status 143; `signals=False` leaves it alone.
    """
    if isinstance(members, Iterable) and not isinstance(members, str):
        members = tuple(members)
    base = _configured(
        config,
        group=None if group == "" else group,
        name=None if name == "" else name,
        listen=listen,
        advertise=advertise,
        members=None if members == () else members,
        transport=transport,
        insecure=insecure,
        must_exist=must_exist,
        record=record,
        metrics=metrics,
        memory_limit=memory_limit,
        spin_s=spin_s,
        multicast=multicast,
        unicast=unicast,
        membership=membership,
    )
    if HOST.get() is MACHINE:
        check_system()
    keys = _find_keys(base.key_file if key is None else key)
    is_insecure = base.insecure
    if keys is not None:
        base = replace(base, insecure=True)  # it may leave this machine
    own = await look_up_own(base.listen)
    given = [Address.parse_place(text) for text in base.members]
    forwarder = None if base.advertise is None else await look_up_own(base.advertise)
    scraped = None if base.metrics is None else await look_up_own(base.metrics)
    listed = NameSource(given, forwarder or own) if any(map(is_name, given)) else ListSource(given)
    addresses = await listed.look() if isinstance(listed, NameSource) else given
    check_own(own, forwarder, addresses, insecure=base.insecure)
    if scraped is not None:
        check_address(scraped, insecure=is_insecure)  # no key protects that
    if given and discovery is not None:
        raise UsageError("say where to look with members= or with discovery=, not with both")
    _check_arguments(join_timeout_s, run_id, discovery, lose)
    flags = {"receive": receive, "receive_own": receive_own, "signals": signals}
    flags |= {"send_time": send_time, "record_payloads": record_payloads}
    for flag, value in flags.items():
        check_flag(flag, value)
    if when_few not in ("raise", "wait"):
        raise ConfigError("when_few", when_few, "'raise' or 'wait'")
    if base.transport == "multicast" and forwarder is not None:
        raise UsageError("advertise= is for a forwarder, and multicast would pass it by")
    if record_payloads and not receive:
        raise UsageError("record_payloads= keeps what is read, and with receive=False nothing is")
    only_recording = {
        "record_level": record_level,
        "record_payloads": record_payloads or None,
        "record_interval_s": record_interval_s,
        "file_mode": file_mode,
        "run_id": run_id or None,
    }
    idle = [name for name, value in only_recording.items() if value is not None]
    if base.record is None and idle:
        raise UsageError(f"{idle[0]}= does nothing without record=, the directory for the trace")
    if record_interval_s is None:
        record_interval_s = DEFAULT_INTERVAL_S
    check_seconds("record_interval_s", record_interval_s, *RECORD_INTERVAL_S)
    mode = private.file_mode(file_mode)
    hooks = _state_hooks(give_state, take_state)
    if min_members is not None:
        base = replace(base, membership=replace(base.membership, min_members=min_members))
    group_config = _for_multicast(base) if base.transport == "multicast" else base
    host = HOST.get()
    if keys is None and not is_insecure:  # so all of it is on loopback
        keys = host.own_keys(base.group)
    source = discovery or (listed if given else host.meeting_place(base.group))
    carrier = host.open_transport(base, own, forwarder, keys)
    if is_insecure and keys is None:
        warn_of_exposure(forwarder or carrier.address)
    if carrier.shortage is not None:
        log.info("%s: %s", carrier.address, carrier.shortage)
    multicast = replace(group_config.multicast, bulk_bytes=carrier.bulk_bytes)
    group_config = replace(group_config, multicast=multicast)
    traced = (run_id or base.group, record_level or "deliveries", record_payloads)
    recording = None
    if base.record is not None:
        recording = Recording(Path(base.record), *traced, record_interval_s, mode)
    place = MemberHost(
        *(group_config, host, carrier, source, keys, recording),
        advertise=forwarder,
        lose=lose,
        has_state=hooks is not None,
    )
    try:
        handle = Group(
            place,
            receive=receive,
            receive_own=receive_own,
            must_exist=base.must_exist,
            waits_for_members=when_few == "wait",
            send_time=send_time,
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


def _configured(config: GroupConfig | None, **given: Any) -> GroupConfig:
    """What is given goes before what is configured."""
    found = {key: value for key, value in given.items() if value is not None}
    if isinstance(given["group"], GroupConfig):
        raise UsageError("a configuration goes by its name: join(config=…)")
    if config is None:
        config = load_config(group=found.get("group"))
    if not isinstance(config, GroupConfig):
        what = type(config).__name__
        raise UsageError(f"config= is a GroupConfig, as load_config(path) reads one, not {what}")
    return replace(config, **found)


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


def _check_arguments(
    join_timeout_s: float, run_id: str, discovery: Source | None, lose: object
) -> None:
    check_seconds("join_timeout_s", join_timeout_s, 0.0, JOIN_TIMEOUT_S_MAX)
    check_name("run_id", run_id, empty_allowed=True)
    if lose is not None:
        check_function("lose", lose)
    methods = ("register", "candidates", "unregister")
    if discovery is not None and not all(callable(getattr(discovery, m, None)) for m in methods):
        raise ConfigError("discovery", discovery, f"a source with {', '.join(methods)}")


def _state_hooks(
    give: GiveState | None, take: TakeState | None
) -> tuple[GiveState, TakeState] | None:
    if give is not None and take is not None:
        check_function("give_state", give)
        check_function("take_state", take)
        return give, take
    if give is not None or take is not None:
        raise UsageError(
            "give_state= and take_state= go together: a member that has taken the state may be "
            "the next to give it"
        )
    return None
