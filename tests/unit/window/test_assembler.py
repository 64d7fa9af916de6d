"""Fragments in, whole messages out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringcast.window.assembler import Assembler


def test_whole_messages_pass_as_one_run() -> None:
    assembler = Assembler(100)
    assert assembler.is_idle
    assert assembler.assemble(5, [b"a", b"b"]) == [(5, [b"a", b"b"])]
    assert assembler.assemble(7, []) == []


def test_a_message_bears_the_seqno_of_its_last_fragment() -> None:
    assembler = Assembler(100)
    assembler.mark(range(2, 4))
    assert not assembler.is_idle
    runs = assembler.assemble(1, [b"x", b"a", b"b", b"c", b"y", b"z"])
    assert runs == [(1, [b"x"]), (4, [b"abc"]), (5, [b"y", b"z"])]
    assert assembler.is_idle


def test_two_large_messages_follow_each_other() -> None:
    assembler = Assembler(100)
    assembler.mark(range(1, 2))
    assembler.mark(range(3, 4))
    assert assembler.assemble(1, [b"a", b"b", b"c", b"d"]) == [(2, [b"ab"]), (4, [b"cd"])]


def test_what_is_not_whole_waits() -> None:
    assembler = Assembler(100)
    assembler.mark(range(1, 4))
    assert assembler.assemble(1, [b"a", b"b"]) == []
    assert (assembler.parts, assembler.size) == ((b"a", b"b"), 2)
    assert assembler.assemble(3, [b"c"]) == []
    assert assembler.assemble(4, [b"d", b"e"]) == [(4, [b"abcd"]), (5, [b"e"])]
    assert (assembler.parts, assembler.size) == ((), 0)
    assert assembler.is_idle


def test_empty_fragments_count_as_fragments() -> None:
    assembler = Assembler(100)
    assembler.mark(range(1, 2))
    assert assembler.assemble(1, [b""]) == []
    assert not assembler.is_idle
    assert assembler.assemble(2, [b"", b"x"]) == [(2, [b""]), (3, [b"x"])]


def test_it_begins_where_another_member_was() -> None:
    assembler = Assembler(100, (b"a", b"b"))
    assert not assembler.is_idle
    assert assembler.size == 2
    assert assembler.assemble(9, [b"c", b"d"]) == [(9, [b"abc"]), (10, [b"d"])]


def test_a_message_of_exactly_the_limit_passes() -> None:
    assembler = Assembler(4)
    assembler.mark(range(1, 2))
    assert assembler.assemble(1, [b"aa", b"bb"]) == [(2, [b"aabb"])]
    assert assembler.oversized == 0


def test_a_message_over_the_limit_is_given_up_and_its_end_found() -> None:
    assembler = Assembler(4)
    assembler.mark(range(1, 4))
    for seqno in (1, 2, 3):
        assert assembler.assemble(seqno, [b"abc"]) == []
        assert sum(map(len, assembler.parts or ())) <= 4  # never more in memory than allowed
    assert assembler.assemble(4, [b"d", b"ok"]) == [(5, [b"ok"])]
    assert assembler.oversized == 1
    assembler.mark(range(6, 7))
    assert assembler.assemble(6, [b"a", b"b"]) == [(7, [b"ab"])]


@given(
    st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=4), max_size=8),
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
def test_however_it_is_taken_the_messages_are_the_same(
    messages: list[list[bytes]], takes: list[int]
) -> None:
    assembler = Assembler(100)
    stream: list[bytes] = []
    expected: list[tuple[int, bytes]] = []
    for fragments in messages:
        first = len(stream) + 1
        assembler.mark(range(first, first + len(fragments) - 1))
        stream += fragments
        expected.append((len(stream), b"".join(fragments)))
    got: list[tuple[int, bytes]] = []
    taken = 0
    for count in [*takes, len(stream)]:
        for first, payloads in assembler.assemble(taken + 1, stream[taken : taken + count]):
            got += enumerate(payloads, first)
        taken = min(taken + count, len(stream))
    assert got == expected
    assert assembler.is_idle


def test_empty_fragments_do_not_pile_up() -> None:
    assembler = Assembler(100)
    assembler.mark(range(1, 1000))
    assert assembler.assemble(1, [b""] * 999) == []
    assert assembler.parts is None  # given up
    assert assembler.assemble(1000, [b"end", b"next"]) == [(1001, [b"next"])]
    assert assembler.oversized == 1


def test_a_message_that_was_given_up_stays_given_up_for_a_joiner() -> None:
    provider = Assembler(10)
    provider.mark(range(1, 3))
    provider.assemble(1, [b"too ", b"large indeed"])
    joiner = Assembler(1000, provider.parts)
    assert joiner.assemble(3, [b"tail", b"next"]) == [(4, [b"next"])]
