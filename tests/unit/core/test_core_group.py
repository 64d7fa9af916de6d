"""Which group a member is in, as all its layers read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.effects import Effects, Layer
from ringcast.core.shared import GroupState
from ringcast.model import Address, Member, View, ViewId

if TYPE_CHECKING:
    from ringcast.core.effects import Effects as Out

A, B, C = (Member(Address("x", n), 1, name) for n, name in enumerate("ABC"))


def view(counter: int, *members: Member) -> View:
    return View(ViewId(members[0], counter), members)


class Reader(Layer):
    """Writes down what the group is when it hears of a view, and when it closes."""

    def __init__(self) -> None:
        self.read: list[tuple[View | None, View | None]] = []

    def install_view(self, view: View, now: int, out: Out) -> None:
        self.read.append((self.group.previous, self.group.view))

    def close(self, reason: str, now: int, out: Out) -> None:
        self.read.append((self.group.previous, self.group.view))


def with_reader() -> tuple[GroupState, Reader]:
    group, reader = GroupState(A), Reader()
    reader.group = group
    return group, reader


def test_layers_read_the_new_view_and_the_one_before() -> None:
    group, reader = with_reader()
    first, second = view(1, A, B), view(2, A, C)
    for each in (first, second):
        group.change(each, [reader], 0, Effects())
    assert reader.read == [(None, first), (first, second)]
    assert [group.accepts(view(counter, A)) for counter in (1, 2, 3)] == [False, False, True]


def test_who_closes_reads_the_old_view_and_then_none() -> None:
    group, reader = with_reader()
    first = view(1, A, B)
    group.change(first, [reader], 0, Effects())
    group.close("left", [reader], 0, Effects())
    assert reader.read == [(None, first), (None, first)]
    assert group.view is None
    assert not group.accepts(view(3, A, B))
