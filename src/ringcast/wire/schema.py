"""Schema: what a field may be on the wire, and how it is encoded, checked and decoded.

A frame is declared once, as a class; its fields are annotated with these kinds, and its Layout
(layout.py) follows from them. What is encoded is our own, and fails an assertion if it is out of
bounds. What is decoded may come from anybody, and raises DecodeError.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import starmap
from struct import Struct, calcsize
from struct import pack as struct_pack
from struct import unpack as struct_unpack
from typing import Any, NamedTuple, Protocol

from ringcast.errors import DecodeError, Reject
from ringcast.wire.cutter import COUNT, Cutter


class Kind(Protocol):
    """What a field is on the wire."""

    @property
    def encode(self) -> Callable[[Any], bytes]: ...

    @property
    def cut(self) -> Callable[[Cutter], Any]: ...


class Item(NamedTuple):
    """Anything that a function encodes, and another one cuts."""

    encode: Callable[[Any], bytes]
    cut: Callable[[Cutter], Any]


class AtMost(NamedTuple):
    """For a number that another number of the same record bounds."""

    name: str


class Flag(NamedTuple):
    """For a bool that is a bit in the flags of its frame."""

    bit: int


class If(NamedTuple):
    """For a field that is left out without its flag. Then, and only then, it is `absent`."""

    bit: int
    absent: Any = None


class Number(NamedTuple):
    """A number from `low` to `high`, with the code that a Struct has for it."""

    code: str
    low: int
    high: int
    reject: Reject
    build: Callable[[int], Any] | None = None
    """What it stands for; None: itself."""
    only: Container[int] = ()
    """If not empty: of those between the bounds."""

    @property
    def numbers(self) -> list[Number]:
        return [self]

    def holds(self, number: int) -> bool:
        return self.low <= number <= self.high and (not self.only or number in self.only)


class Record:
    """Numbers that follow each other: one Struct, and their checks in order.

    Acks and heartbeats are nothing else, and many. So what decodes and encodes a record is written
    out as text, with the bounds in it, and compiled once, as `dataclass` does it."""

    def __init__(
        self,
        kinds: Sequence[Number | Record],
        build: Callable[..., Any] = lambda *values: values,
        limits: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`build`: what they stand for together. `limits`: the number in one place is at most that
        in the other."""
        self.build = build
        self.numbers: list[Number] = [number for kind in kinds for number in kind.numbers]
        self.struct = Struct("<" + "".join([number.code for number in self.numbers]))
        self.limits = limits
        source, known = self._source(kinds)
        exec(source, known)
        self.make: Callable[..., Any] = known["make"]
        """What such numbers stand for; DecodeError if they are out of bounds."""
        self.encode: Callable[..., bytes] = known["encode"]
        """The bytes of such values."""

    def cut(self, cut: Cutter) -> Any:
        return self.make(*cut.numbers(self.struct))

    def _source(self, kinds: Sequence[Number | Record]) -> tuple[str, dict[str, Any]]:
        """Of both functions, and what they refer to."""
        known: dict[str, Any] = {"build": self.build, "refuse": self._refuse}
        known["pack"] = self.struct.pack
        args: list[str] = []
        made, given, opened = [], [], ""
        for kind in kinds:
            first = f"n{len(args)}"
            names = [f"n{len(args) + place}" for place in range(len(kind.numbers))]
            args += names
            joined = ", ".join(names)
            known[f"build_{first}"] = kind.build
            made.append(f"build_{first}({joined})" if kind.build else joined)
            given.append(f"of_{first}" if isinstance(kind, Record) else first)
            opened += f"    {joined} = of_{first}\n" if isinstance(kind, Record) else ""
        tests = [f"n{place} <= n{other}" for place, other in self.limits]
        for name, number in zip(args, self.numbers, strict=True):
            known[f"only_{name}"] = number.only
            is_one = f" and {name} in only_{name}" if number.only else ""
            tests.append(f"{number.low} <= {name} <= {number.high}{is_one}")
        numbers, test = ", ".join(args), " and ".join(tests)
        source = f"""
def make({numbers}):
    if not ({test}):
        refuse({numbers})
    return build({", ".join(made)})

def encode({", ".join(given)}):
{opened}    assert {test}, ({numbers})
    return pack({numbers})
"""
        return source, known

    def _refuse(self, *numbers: int) -> None:
        """For the first that is out of bounds."""
        limits = dict(self.limits)
        for place, (number, kind) in enumerate(zip(numbers, self.numbers, strict=True)):
            if not kind.holds(number) or number > numbers[limits.get(place, place)]:
                raise DecodeError(kind.reject)


class Column:
    """Numbers of one kind up to the end of the frame: one for each member of some view."""

    def __init__(self, number: Number, most: int) -> None:
        self.number, self.most = number, most

    def encode(self, values: Sequence[int]) -> bytes:
        assert 1 <= len(values) <= self.most, len(values)
        assert self.number.low <= min(values) <= max(values) <= self.number.high, values
        return struct_pack(f"<{len(values)}{self.number.code}", *values)

    def cut(self, cut: Cutter) -> tuple[int, ...]:
        code = self.number.code
        count = cut.count_left(calcsize("<" + code), self.most)
        values = struct_unpack(f"<{count}{code}", cut.take(cut.left))
        if max(values) > self.number.high:
            raise DecodeError(self.number.reject)
        return values


class Table:
    """Records behind their count; or, not counted, at least one up to the end of the frame."""

    def __init__(self, record: Record, most: int, *, is_counted: bool = True) -> None:
        self.record, self.most, self.is_counted = record, most, is_counted

    def encode(self, records: Sequence[Any]) -> bytes:
        assert self.is_counted or records
        assert len(records) <= self.most, len(records)
        count = COUNT.pack(len(records)) if self.is_counted else b""
        return count + b"".join(starmap(self.record.encode, records))

    def cut(self, cut: Cutter) -> tuple[Any, ...]:
        struct, most = self.record.struct, self.most
        count = cut.count(most) if self.is_counted else cut.count_left(struct.size, most)
        rows = struct.iter_unpack(cut.take(count * struct.size))
        return tuple(starmap(self.record.make, rows))


class List:
    """Items behind their count. `weigh`: what all weigh together is bounded, too."""

    def __init__(self, kind: Kind, most: int, weigh: Callable[[Any], int] = lambda _: 1) -> None:
        self.kind, self.most, self._weigh = kind, most, weigh

    def encode(self, items: Sequence[Any]) -> bytes:
        assert len(items) <= self.most, len(items)
        return COUNT.pack(len(items)) + b"".join(map(self.kind.encode, items))

    def cut(self, cut: Cutter) -> tuple[Any, ...]:
        items: list[Any] = []
        left = self.most
        for _ in range(cut.count(self.most)):
            items.append(self.kind.cut(cut))
            left -= self._weigh(items[-1])
            if left < 0:
                raise DecodeError(Reject.COUNT)
        return tuple(items)
