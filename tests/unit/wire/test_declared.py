"""Each number that a frame declares, just outside its bounds: refused, and never said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringcast.errors import DecodeError, Reject
from ringcast.wire.layout import FLAGS, FRAMES, MESSAGES
from ringcast.wire.schema import Number, Record
from support.declared import declared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringcast.wire.layout import Layout

LAYOUTS = [*FRAMES.values(), *MESSAGES.values()]


def outside(number: Number) -> Iterator[int]:
    """What its bytes can say and it must not be."""
    most = 256 ** Record([number]).struct.size - 1
    signed = number.code.islower()
    if number.low > 0 or signed:
        yield number.low - 1
    if number.high < most >> signed:
        yield number.high + 1
    if number.only:
        yield from [each for each in range(number.low, number.high) if not number.holds(each)]


def wrong_bytes(layout: Layout, value: Any) -> Iterator[tuple[bytes, Reject]]:
    """Its bytes with one number out of bounds, of those before anything that may be left out."""
    body, offset = layout.encode(value), 0
    for names, kind, bit in layout._steps:
        if bit:
            break
        if not isinstance(kind, Record):
            offset += len(kind.encode(getattr(value, names[0])))
            continue
        right = kind.struct.unpack_from(body, offset)
        stop = offset + kind.struct.size
        for place, number in enumerate(kind.numbers):
            for wrong in outside(number):
                numbers = kind.struct.pack(*right[:place], wrong, *right[place + 1 :])
                yield body[:offset] + numbers + body[stop:], number.reject
        offset = stop


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.cls.__name__)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_numbers_out_of_bounds_are_refused(layout: Layout, data: st.DataObject) -> None:
    for wrong, reject in wrong_bytes(layout, data.draw(declared(layout))):
        with pytest.raises(DecodeError) as caught:
            layout.decode(memoryview(wrong), 0, len(wrong))
        assert caught.value.reason is reject


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.cls.__name__)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_numbers_out_of_bounds_are_our_bug(layout: Layout, data: st.DataObject) -> None:
    right: Any = data.draw(declared(layout))
    for field in layout.fields:
        if not isinstance(field.kind, Number) or field.name == FLAGS:
            continue
        for wrong in {field.kind.low - 1, field.kind.high + 1} - {field.absent}:
            with pytest.raises(AssertionError):
                layout.encode(replace(right, **{field.name: wrong}))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.cls.__name__)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_numbers_alone_have_one_length(layout: Layout, data: st.DataObject) -> None:
    body = layout.encode(data.draw(declared(layout)))
    if all(isinstance(field.kind, Number | Record) for field in layout.fields):
        for wrong in {body[:-1], body + b"\0", bytes(len(body) + 1)} - {body}:
            with pytest.raises(DecodeError) as caught:
                layout.decode(memoryview(wrong), 0, len(wrong))
            assert caught.value.reason is Reject.FRAME_LENGTH


def test_kinds_are_told_apart() -> None:
    assert len({layout.kind for layout in LAYOUTS}) == len(LAYOUTS)
