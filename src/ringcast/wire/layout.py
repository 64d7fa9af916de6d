"""Layouts: the fields that a class declares, compiled once into what encodes and decodes it.

    @frame(2, frozen=False, to_anyone=True, in_view=True)
    class Ack:
        stream: StreamId
        received: Seqno
        delivered: Annotated[Seqno, AtMost("received")]
        allowance: Allowance

Numbers that follow each other are one Struct. Fields are checked in the order in which they stand
on the wire; if several are wrong, the first one is the reason. A frame whose fields are each right
may still contradict itself: a method `fault` of its class returns why, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast, dataclass_transform, get_args, get_type_hints

from ringcast.errors import DecodeError, Reject
from ringcast.wire.cutter import Cutter
from ringcast.wire.schema import AtMost, Flag, If, Kind, Number, Record

T = TypeVar("T")

FLAGS = "flags"


class Field(NamedTuple):
    """As it is declared."""

    name: str
    kind: Kind | Number | None = None
    """None: it is a flag, and stands with the others."""
    limit: str = ""
    bit: int = 0
    """Of its flag, or of that without which it is left out; 0: it always stands there."""
    absent: Any = None


class _Step(NamedTuple):
    """One field of any length; or all numbers up to the next such field, as one."""

    names: list[str]
    kind: Kind | Record
    bit: int = 0


class Layout:
    """Encodes and decodes what is of one class."""

    def __init__(
        self,
        cls: type,
        kind: int = 0,
        *,
        wire_order: str = "",
        pad: int = 0,
        to_anyone: bool = False,
        alone: bool = False,
        long: bool = False,
        in_view: bool = False,
    ) -> None:
        """`wire_order`: of the fields on the wire, if they are declared in another one. Flags
        are one byte, and stand first unless it names them. `pad`: with zeros, to so many bytes."""
        self.cls, self.kind, self._pad = cls, kind, pad
        self.to_anyone = to_anyone
        """Else it is between two incarnations: said to anyone it could reach the process that has
        the address now, and be taken for news of its own."""
        self.is_alone = alone or long
        """It has a datagram to itself: it speaks of many members, or is passed on."""
        self.is_long = long
        """It travels in pieces if it fits no datagram."""
        self.in_view = in_view
        """It means something only in the view that it is said in."""
        declared = _fields_of(cls)
        told = [name for name, field in declared.items() if field.kind is None]  # by flags alone
        self._bits = {name: (each.bit, each.absent) for name, each in declared.items() if each.bit}
        bits = sum(bit for bit, _ in self._bits.values())
        known = frozenset(flags for flags in range(bits + 1) if not flags & ~bits)
        flags = Field(FLAGS, Number("B", 0, bits, Reject.FLAGS, only=known))
        names = wire_order.split()
        if not wire_order:
            names = [FLAGS] * bool(bits) + [name for name in declared if name not in told]
        self.fields = [{**declared, FLAGS: flags}[name] for name in names]
        """As they stand on the wire."""
        self._steps = [*_steps_of(self.fields)]
        self._flags_at = names.index(FLAGS) if bits else 0
        self._told = [declared[name].bit for name in told]
        names += told
        self._places = [names.index(name) for name in declared]  # of what `cls` is made of
        self._fault: Callable[[Any], Reject | None] | None = getattr(cls, "fault", None)
        numbers = self._steps[0].kind if len(self._steps) == 1 else None
        self._size = numbers.struct.size if isinstance(numbers, Record) else 0
        self.is_plain = bool(self._size) and [*declared] == names and self._fault is None
        """It is nothing but numbers, in the order of the class."""
        self._plain = _join(self.fields, cls) if self.is_plain else None
        self._values: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
        )

    def encode(self, value: Any) -> bytes:
        if self._plain is not None:
            return self._plain.encode(*self._values(value))
        assert self._fault is None or self._fault(value) is None, value
        bits = self._bits.items()
        flags = sum(bit for name, (bit, absent) in bits if getattr(value, name) != absent)
        encoded = []
        for names, kind, bit in self._steps:
            if isinstance(kind, Record) and (not bit or flags & bit):
                said = [flags if name == FLAGS else getattr(value, name) for name in names]
                encoded.append(kind.encode(*said))
            elif not bit or flags & bit:
                encoded.append(kind.encode(getattr(value, names[0])))
        return b"".join(encoded).ljust(self._pad, b"\0")

    def decode(self, view: memoryview, start: int, stop: int) -> Any:
        """What stands there, and nothing else. Of numbers alone the length is checked first."""
        if self._size and stop - start != self._size:
            raise DecodeError(Reject.FRAME_LENGTH)
        if self._plain is not None:
            return self._plain.make(*self._plain.struct.unpack_from(view, start))
        cut = Cutter(view[:stop], start)
        decoded = self.cut(cut)
        cut.finish(start + self._pad)
        return decoded

    def cut(self, cut: Cutter) -> Any:
        values: list[Any] = []
        for names, kind, bit in self._steps:
            if bit and not values[self._flags_at] & bit:
                values.append(self._bits[names[0]][1])
            elif isinstance(kind, Record):
                values += kind.cut(cut)
            else:
                values.append(kind.cut(cut))
        return self._build(values)

    def _build(self, values: list[Any]) -> Any:
        if self._told:
            flags = values[self._flags_at]
            values += [flags & bit != 0 for bit in self._told]
        built = self.cls(*[values[place] for place in self._places])
        if self._fault is not None and (reason := self._fault(built)) is not None:
            raise DecodeError(reason)
        return built


FRAMES: dict[type, Layout] = {}
MESSAGES: dict[type, Layout] = {}
"""What is declared: frames; and the system's own messages."""


@dataclass_transform(frozen_default=True)
def frame(
    kind: int, layouts: dict[type, Layout] = FRAMES, *, frozen: bool = True, **how: Any
) -> Callable[[type[T]], type[T]]:
    """Declares a frame of this kind, a slotted dataclass; `how` as for a Layout. Hot ones are not
    frozen: to build those takes a third of the time."""

    def declare(cls: type[T]) -> type[T]:
        made: type[T] = dataclass(frozen=frozen, slots=True)(cls)
        layouts[made] = Layout(made, kind, **how)
        return made

    return declare


def record_of(cls: Callable[..., Any]) -> Record:
    """Of a class that declares nothing but numbers."""
    return _join(_fields_of(cls).values(), cls)


def _fields_of(cls: Callable[..., Any]) -> dict[str, Field]:
    fields = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        field = Field(name)
        # In Annotated[Annotated[Member, kind] | None, If(1)] what stands within counts, too.
        for part in (*get_args(hint.__origin__), hint):
            for mark in getattr(part, "__metadata__", ()):
                match mark:
                    case AtMost():
                        field = field._replace(limit=mark.name)
                    case Flag():
                        field = field._replace(bit=mark.bit, absent=False)
                    case If():
                        field = field._replace(bit=mark.bit, absent=mark.absent)
                    case _:
                        field = field._replace(kind=mark)
        fields[name] = field
    return fields


def _steps_of(fields: Iterable[Field]) -> Iterator[_Step]:
    def is_number(field: Field) -> tuple[bool, int]:
        return isinstance(field.kind, Number | Record), field.bit

    for (are_numbers, bit), group in groupby(fields, is_number):
        several = [*group]
        assert not bit or len(several) == 1, "a flag is of one field"
        if are_numbers:
            yield _Step([field.name for field in several], _join(several), bit)
        else:
            yield from [_Step([field.name], cast("Kind", field.kind), bit) for field in several]


def _join(fields: Iterable[Field], build: Callable[..., Any] = lambda *values: values) -> Record:
    kinds = {field.name: field.kind for field in fields if isinstance(field.kind, Number | Record)}
    widths = [len(kind.numbers) for kind in kinds.values()]
    places = dict(zip(kinds, accumulate([0, *widths]), strict=False))
    limits = [(places[field.name], places[field.limit]) for field in fields if field.limit]
    return Record([*kinds.values()], build, limits)
