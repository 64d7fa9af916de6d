"""The arguments of `join`, as their types and their checks need them: not as text."""

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_type_hints,
)

from ringcast.config import (
    GroupConfig,
    MembershipConfig,
    MulticastConfig,
    TransportName,
    UnicastConfig,
)
from ringcast.errors import ConfigError
from ringcast.model import Address, Member
from ringcast.options import FLAG, FUNCTION, LABEL, Kind, check_all, one_of, seconds, setting

WhenFew: TypeAlias = Literal["raise", "wait"]

J = TypeVar("J", bound=Callable[..., Any])


class Source(Protocol):
    """Where to look. Have these methods."""

    def register(self, me: Member) -> None:
        """This member can be found from now on."""
        ...

    def candidates(self) -> Iterable[Address]:
        """Where members may be found now."""
        ...

    def unregister(self) -> None:
        """It is going."""
        ...


def _check_source(name: str, value: object, _: object) -> None:
    methods = ("register", "candidates", "unregister")
    if not all(callable(getattr(value, method, None)) for method in methods):
        raise ConfigError(name, value, f"a source with {', '.join(methods)}")


class JoinOptions(TypedDict, total=False):
    """What `join` takes, but for the group and its state: for who hands it on.

    The first are settings that may stand elsewhere too, and are described there: `min_members` with
    MembershipConfig, the others with GroupConfig. None: it is not given. The others belong to a
    program, and not to where it runs.
    """

    name: str
    listen: str | None
    advertise: str | None
    members: Sequence[str]
    transport: TransportName | None
    insecure: bool | None
    must_exist: bool | None
    min_members: int | None
    record: Path | str | None
    metrics: str | None
    memory_limit: int | None
    spin_s: float | None
    multicast: MulticastConfig | None
    unicast: UnicastConfig | None
    membership: MembershipConfig | None

    config: GroupConfig | None
    """A whole configuration, such as `load_config` reads from a file, with the name of the group in
    it. Without it what is not given is as the environment says."""

    key: bytes | str | Path | None
    """32 bytes, or the path of a file that `ringcast keygen` has made. None: as `key_file` says;
    else RINGCAST_KEY or RINGCAST_KEY_FILE in the environment."""

    discovery: Annotated[Source | None, setting(None, Kind(_check_source))]
    """Where to look for members in place of `members`: a `DirectorySource` or anything else with
    its three methods."""

    when_few: Annotated[WhenFew, setting("raise", one_of(WhenFew))]
    """What `send` and `send_many` do with fewer than `min_members` in the view: raise
    TooFewMembers, or wait."""

    receive: Annotated[bool, setting(True, FLAG)]
    """False is for members that only send: what arrives is taken and dropped."""

    receive_own: Annotated[bool, setting(True, FLAG)]
    """False leaves out what this member itself sends to the group, which counts as delivered here
    without a reader."""

    send_time: Annotated[bool, setting(False, FLAG)]
    """Each message tells when it was sent, in a header (`message.sent_at`)."""

    record_level: Annotated[str | None, setting(None)]
    """How much goes into the trace: "deliveries", or "full" with frames and windows."""

    record_payloads: Annotated[bool, setting(False, FLAG)]
    """Keep the messages in the trace too, for Spark to read; while the disk is behind, reading
    waits for it, as `ringcast archive` does."""

    record_interval_s: Annotated[float | None, setting(None, seconds(0.2, 60.0))]
    """How often a file of the trace is closed. None: every 2 s. A file costs some milliseconds to
    write and two to read; a minute is much to lose."""

    file_mode: Annotated[int | str | None, setting(None)]
    """For whom files of the trace are: 0o600, their owner, unless RINGCAST_FILE_MODE says
    otherwise; 0o640, a group too."""

    run_id: Annotated[str, setting("", LABEL)]
    """What to call this run of the group in the trace; else it goes by the group's name."""

    join_timeout_s: Annotated[float, setting(30.0, seconds(0.0, 86_400.0))]
    """How long joining may take: then JoinTimeout is raised."""

    signals: Annotated[bool, setting(True, FLAG)]
    """Leave on SIGTERM, if nobody else handles it, and then end the process with status 143."""

    lose: Annotated[Callable[[], bool] | None, setting(None, FUNCTION)]
    """Drop what arrives whenever it returns True: for tests of one's own application."""


PROGRAM: Final = {
    name: annotation.__metadata__[0]
    for name, annotation in JoinOptions.__annotations__.items()
    if hasattr(annotation, "__metadata__")
}
"""What no file and no variable says."""


def complete(options: JoinOptions) -> JoinOptions:
    """What is given, with the defaults of what only a program says; ConfigError if it is wrong."""
    found: Any = {name: one.default for name, one in PROGRAM.items()} | options
    check_all(PROGRAM, SimpleNamespace(**found))
    complete: JoinOptions = found
    return complete


def name_options(join: J) -> J:
    """Have `help(join)` name each option, with its type and its default."""
    named: Any = join
    own, absent = signature(named), {"name": "", "members": ()}
    taken = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    for name, kind in get_type_hints(JoinOptions).items():
        default = PROGRAM[name].default if name in PROGRAM else absent.get(name)
        taken.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    named.__signature__ = own.replace(parameters=taken, return_annotation="Join")
    return join
