"""Machine: all structures of a space, and who has had which answers, as one state of the order.

On apply: an operation whose number is known is answered as before, and not repeated. One below the
lowest number that its space waits for, and one that was sent before by a space that is forgotten,
is not done: it may have been. Any other is done, and its result is kept until its space has said
that it knows it. An operation under a token is refused unless the structure of that name has this
token now.
On install: structures hear who departed. Spaces whose members are gone are forgotten DEPARTED_MAX
positions later.
The state is all of that, with the views that led to it. Not in it is the log: what operations have
touched, so that a member whose history is lost can say what was in it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringcast.errors import StaleToken, UsageError
from ringcast.replicated.encoding import JSON, Failure, Op, Result, Token, member_of, pack
from ringcast.replicated.structures import Caller, Departure, DictState, States, ViewKey, key_of

if TYPE_CHECKING:
    from ringcast.model import Member, ViewId

RESULTS_MAX = 4096
"""Results kept for one space."""
DEPARTED_MAX = 10_000
"""So many positions after a member has gone what it had done is forgotten."""
VIEWS_MAX = 4096
"""Who was away for more of them is told that all it had done is lost."""
LOG_MAX = 10_000

FORGOTTEN = Failure("forgotten", "whether it was done is not known any more")

Structures: TypeAlias = Mapping[str, States]


@dataclass(slots=True)
class Client:
    """What is known of a space that has sent operations."""

    origin: Member
    low: int
    results: dict[int, Result] = field(default_factory=dict)
    gone_at: int | None = None


class Lost(NamedTuple):
    """An operation that was done here, and is not in the history that counts."""

    structure: str
    origin: Member
    token: Token
    """Where it was done."""
    keys: tuple[str, ...] = ()
    added: int = 0


@dataclass(frozen=True, slots=True)
class Diverged:
    """Parts of the group have merged, and this member's history is not the one that counts.

    `operations` were done here, in their order, and the state that counts has nothing of them. If
    not `is_whole`, there were others before those.
    """

    operations: tuple[Lost, ...]
    is_whole: bool

    def keys(self, structure: str) -> set[str]:
        """Of this dict: what was set or deleted."""
        return {key for lost in self._of(structure) for key in lost.keys}

    def added(self, structure: str) -> int:
        """What was added to this counter."""
        return sum(lost.added for lost in self._of(structure))

    def _of(self, structure: str) -> Iterator[Lost]:
        return (lost for lost in self.operations if lost.structure == structure)


class Machine:
    """The state at one place of the order."""

    def __init__(self, structures: Structures) -> None:
        self.structures = structures
        self.position = 0
        self.clients: dict[bytes, Client] = {}
        self.views: deque[tuple[ViewKey, int]] = deque(maxlen=VIEWS_MAX)
        """Those that led here, each with the position at which it began."""
        self.log: deque[Lost] = deque(maxlen=LOG_MAX)

    def anew(self) -> Machine:
        """One with the same structures, and nothing in them."""
        return Machine({name: type(each)(name) for name, each in self.structures.items()})

    @property
    def view_key(self) -> ViewKey:
        """Of the view that it is in."""
        return self.views[-1][0] if self.views else (0, 0)

    def apply(self, name: str, op: Op, origin: Member, view: ViewId, position: int) -> Result:
        """KeyError: there is no structure of this name."""
        structure = self.structures[name]
        self.position = position
        client = self.clients.get(op.client)
        if client is None:
            if op.is_again:
                return FORGOTTEN
            client = self.clients[op.client] = Client(origin, op.low)
        client.origin = origin
        if op.number in client.results:
            return client.results[op.number]
        if op.number < client.low:
            return FORGOTTEN
        structure.touched, at = None, Token.at(name, view, position)
        result: Result
        try:
            body = self._without_token(op.body)
            result = structure.apply(body, Caller(op.client, op.number, origin), at)
        except (ValueError, OverflowError, StaleToken) as error:  # all members have it
            result = Failure(type(error).__name__, str(error))
        _keep(client, op, result)
        if structure.touched is not None:
            self.log.append(Lost(name, origin, at, *structure.touched))
        return result

    def install(self, departure: Departure) -> None:
        view, position = departure.view, departure.position
        self.position = position
        self.views.append((key_of(view.id), position))
        for key, client in list(self.clients.items()):
            if client.origin in view:
                client.gone_at = None
            elif client.gone_at is None:
                client.gone_at = position
            elif client.gone_at + DEPARTED_MAX <= position:
                del self.clients[key]
        for structure in self.structures.values():
            structure.install(departure)

    def _without_token(self, body: Sequence[bytes]) -> Sequence[bytes]:
        match list(body):
            case [b"with", name, data, *rest]:
                token = Token.of(name, data)
                guard = self.structures.get(token.name)
                if guard is None or guard.token != token:
                    raise StaleToken(f"{token} of {token.name} is not the present token")
                return rest
        return body

    # Its state, for joiners

    @property
    def kinds(self) -> list[str]:
        return sorted(f"{each.kind} {name!r}" for name, each in self.structures.items())

    def records(self) -> Iterator[bytes]:
        """The state as it is now; what happens later does not change it."""
        told = {
            "kinds": self.kinds,
            "position": self.position,
            "views": list(self.views),
            "clients": {
                key.hex(): (each.origin, each.low, list(each.results.items()), each.gone_at)
                for key, each in self.clients.items()
            },
            "structures": {name: each.told() for name, each in self.structures.items()},
        }
        dicts = [each for each in self.structures.values() if isinstance(each, DictState)]
        about, copies = JSON.encode(told), [(each.name.encode(), {**each.items}) for each in dicts]

        def each_record() -> Iterator[bytes]:
            yield pack(about)
            for name, items in copies:
                for key, value in items.items():
                    yield pack(name, key.encode(), value)

        return map(pack, each_record())

    def load(self, record: list[bytes]) -> None:
        """The next one of a state, into a machine that has nothing. UsageError: it is that of a
        space with other structures."""
        match record:
            case [about]:
                told = json.loads(about)
                if told["kinds"] != self.kinds:
                    raise UsageError(
                        f"the members of a group name the same structures: others have "
                        f"{', '.join(told['kinds'])}, this one has {', '.join(self.kinds)}"
                    )
                self.position = told["position"]
                self.views.extend((tuple(key), base) for key, base in told["views"])
                for key, (origin, low, results, gone_at) in told["clients"].items():
                    known = {number: _result_of(result) for number, result in results}
                    client = Client(member_of(origin), low, known, gone_at)
                    self.clients[bytes.fromhex(key)] = client
                for name, state in told["structures"].items():
                    self.structures[name].load(state)
            case [name, key, value]:
                structure = self.structures[name.decode()]
                assert isinstance(structure, DictState)
                structure.items[key.decode()] = value
            case _:
                raise ValueError(f"no record of a state: {record!r:.100}")

    def last_common(self, other: Machine) -> ViewKey:
        """The last view that both histories have; before the first, if none."""
        theirs = dict(other.views)
        return next((key for key, _ in reversed(self.views) if key in theirs), (0, 0))

    def lost_to(self, other: Machine) -> Diverged:
        """What was done here and is not in the history of the other."""
        common = self.last_common(other)
        ends = [base for key, base in other.views if key > common]
        end = ends[0] if ends else other.position
        last = (*common, end)
        lost = tuple(each for each in self.log if each.token[1:] > last)
        return Diverged(lost, len(lost) < LOG_MAX)


def _keep(client: Client, op: Op, result: Result) -> None:
    results = client.results
    results[op.number] = result
    client.low = max(client.low, op.low)
    while (first := next(iter(results), client.low)) < client.low or len(results) > RESULTS_MAX:
        del results[first]
        client.low = max(client.low, first + 1)


def _result_of(told: Any) -> Result:
    return Failure(*told) if isinstance(told, list) else told
