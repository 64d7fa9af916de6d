"""join: what is asked for is checked, a place is made for the member, and it enters its group."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from ringcast import private
from ringcast.aio.group import Group
from ringcast.aio.host import HOST, MACHINE
from ringcast.aio.member_host import MemberHost, Recording
from ringcast.aio.presence import Stay
from ringcast.aio.reach import check_address, check_own, warn_of_exposure
from ringcast.aio.sources import ListSource, NameSource, check_system, is_name, look_up_own
from ringcast.arguments import PROGRAM, JoinOptions, complete, name_options
from ringcast.checks import check_function
from ringcast.config import GroupConfig
from ringcast.config_file import load_config
from ringcast.errors import UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    from ringcast.aio.keys import KeyRing
    from ringcast.aio.state import GiveState, TakeState

DEFAULT_INTERVAL_S = 2.0

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


def entered(joining: Callable[P, AsyncIterator[Group]]) -> Callable[P, Join]:
    manager = asynccontextmanager(joining)

    @wraps(joining)
    def made(*args: P.args, **options: P.kwargs) -> Join:
        if unknown := options.keys() - signature(made).parameters.keys():
            raise TypeError(f"join() got an unexpected keyword argument {min(unknown)!r}")
        return Join(manager(*args, **options))

    return name_options(made)


@entered
async def join(
    group: str = "",
    *,
    give_state: GiveState | None = None,
    take_state: TakeState | None = None,
    **options: Unpack[JoinOptions],
) -> AsyncIterator[Group]:
    """Join the group of this name, or start it; in it when the block starts, out when it ends.

    `JoinOptions` has all that may be given by name. It goes before what stands in `config`; without
    one, what is not given is as the environment says: RINGCAST_LISTEN, RINGCAST_MULTICAST_CAPACITY.

    Members of one user on one machine find each other by the name alone. Else say where to look:
    `members` are addresses where some may be found, or host names, or names of SRV records such as
    "_ringcast._udp.orders.example", which are looked up again while the group lives. If nobody is
    there this member starts the group, unless it `must_exist`: then JoinTimeout is raised. What all
    members must agree on comes from the group (`Group.settings`); UsageError: this member asks for
    something else.

    Everything is encrypted and authenticated, and nobody without the `key` can join. If none is
    given, nor in the environment, all addresses must be on loopback, and the key is one that the
    first member keeps for its user, by the name of the group. `insecure=True` does without a key,
    and allows other addresses, with a warning that says what is open then.

    `give_state` and `take_state` go together, and are for groups whose members keep a state that is
    made of messages. A joiner gets that of a member, and then all messages that are not in it.
    `give_state()` returns the state as it is when it is called, as an iterable of bytes, async or
    not; what changes later must not change it. `await take_state(chunks)` runs before the block
    starts, unless this member starts the group; it is called again from the start if another member
    has to give the state, and where parts of the group merge and the state of another part counts.

    Leaving the block waits until the others have received what was sent to the group, for
    `membership.leave_timeout_s` at the most, and for no reader; so it does if the block ends with
    an exception or is cancelled, as by Ctrl-C. A second cancellation ends that at once; a note on
    it and a warning say what may not have been delivered. SIGTERM does the same, if nobody else
    handles it, and then ends the process with status 143; `signals=False` leaves it alone.
    """
    given = complete(options)
    base = _configured(group, given)
    if HOST.get() is MACHINE:
        check_system()
    key, discovery = given.get("key"), given["discovery"]
    keys = _find_keys(base.key_file if key is None else key)
    is_insecure = base.insecure
    if keys is not None:
        base = replace(base, insecure=True)  # it may leave this machine
    own = await look_up_own(base.listen)
    places = [Address.parse_place(text) for text in base.members]
    forwarder = None if base.advertise is None else await look_up_own(base.advertise)
    scraped = None if base.metrics is None else await look_up_own(base.metrics)
    is_named = any(map(is_name, places))
    listed = NameSource(places, forwarder or own) if is_named else ListSource(places)
    addresses = await listed.look() if isinstance(listed, NameSource) else places
    check_own(own, forwarder, addresses, insecure=base.insecure)
    if scraped is not None:
        check_address(scraped, insecure=is_insecure)  # no key protects that
    if places and discovery is not None:
        raise UsageError("say where to look with members= or with discovery=, not with both")
    if base.transport == "multicast" and forwarder is not None:
        raise UsageError("advertise= is for a forwarder, and multicast would pass it by")
    recording = _recording(base, given)
    hooks = _state_hooks(give_state, take_state)
    group_config = _for_multicast(base) if base.transport == "multicast" else base
    host = HOST.get()
    if keys is None and not is_insecure:  # so all of it is on loopback
        keys = host.own_keys(base.group)
    source = discovery or (listed if places else host.meeting_place(base.group))
    carrier = host.open_transport(base, own, forwarder, keys)
    if is_insecure and keys is None:
        warn_of_exposure(forwarder or carrier.address)
    if carrier.shortage is not None:
        log.info("%s: %s", carrier.address, carrier.shortage)
    multicast = replace(group_config.multicast, bulk_bytes=carrier.bulk_bytes)
    group_config = replace(group_config, multicast=multicast)
    place = MemberHost(
        *(group_config, host, carrier, source, keys, recording),
        advertise=forwarder,
        lose=given["lose"],
        has_state=hooks is not None,
    )
    try:
        handle = Group(place, given, hooks)
    except BaseException:
        carrier.close()
        raise
    try:
        await handle._enter(given["join_timeout_s"])
    except BaseException:
        handle._close()
        raise
    async with Stay(handle, host, signals=given["signals"]):
        yield handle


def _configured(group: str, given: JoinOptions) -> GroupConfig:
    """What is given goes before what is configured."""
    if isinstance(group, GroupConfig):
        raise UsageError("a configuration goes by its name: join(config=…)")
    said: dict[str, Any] = {"group": group, **given}
    members, least = said.get("members"), said.get("min_members")
    if isinstance(members, Iterable) and not isinstance(members, str):
        said["members"] = tuple(members)
    absent = {"group": "", "name": "", "members": ()}
    found = {
        one.name: value
        for one in fields(GroupConfig)
        if (value := said.get(one.name)) is not None and value != absent.get(one.name)
    }
    config = given.get("config")
    if config is None:
        config = load_config(group=found.get("group"))
    if not isinstance(config, GroupConfig):
        what = type(config).__name__
        raise UsageError(f"config= is a GroupConfig, as load_config(path) reads one, not {what}")
    config = replace(config, **found)
    if least is not None:
        config = replace(config, membership=replace(config.membership, min_members=least))
    return config


def _recording(config: GroupConfig, given: JoinOptions) -> Recording | None:
    """Where the trace goes, if there is to be one."""
    if given["record_payloads"] and not given["receive"]:
        raise UsageError("record_payloads= keeps what is read, and with receive=False nothing is")
    names = ("record_level", "record_payloads", "record_interval_s", "file_mode", "run_id")
    said: dict[str, Any] = {name: value for name, value in given.items() if name in names}
    level, payloads, interval_s, mode, run_id = map(said.__getitem__, names)
    mode = private.file_mode(mode)
    if config.record is not None:
        run_id, level = run_id or config.group, level or "deliveries"
        interval_s = DEFAULT_INTERVAL_S if interval_s is None else interval_s
        return Recording(Path(config.record), run_id, level, payloads, interval_s, mode)
    for name in names:
        if said[name] != PROGRAM[name].default:
            raise UsageError(f"{name}= does nothing without record=, the directory for the trace")
    return None


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
        check_function("give_state", give)
        check_function("take_state", take)
        return give, take
    if give is not None or take is not None:
        raise UsageError(
            "give_state= and take_state= go together: a member that has taken the state may be "
            "the next to give it"
        )
    return None
