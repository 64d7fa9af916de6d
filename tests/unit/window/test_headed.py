"""Messages with headers in windows: runs end where the flag changes, and fragments keep it."""

from __future__ import annotations

import pytest

from ringcast.errors import UsageError
from ringcast.model import Headed
from ringcast.window.assembler import Assembler
from ringcast.window.fragmenter import Fragmenter, check_payloads
from ringcast.window.send import SendWindow

H = Headed


def kinds(runs: list[tuple[int, list[bytes]]]) -> list[tuple[int, list[bytes], type]]:
    assert all(len({*map(type, run)}) == 1 for _, run in runs)
    return [(first, run, type(run[0])) for first, run in runs]


def test_what_was_taken_is_cut_where_the_flag_changes() -> None:
    assembler = Assembler(100)
    assembler.mark(range(3, 5), more=False, headed=True)
    assert not assembler.is_idle
    runs = assembler.assemble(1, [b"a", b"b", H(b"c"), H(b"d"), b"e"])
    assert kinds(runs) == [(1, [b"a", b"b"], bytes), (3, [b"c", b"d"], H), (5, [b"e"], bytes)]
    assert assembler.is_idle


def test_until_the_last_one_is_taken_every_run_is_looked_at() -> None:
    assembler = Assembler(100)
    assembler.mark(range(9, 10), more=False, headed=True)
    assembler.mark(range(2, 3), more=False, headed=True)  # sent again
    assert kinds(assembler.assemble(1, [b"a", H(b"b")])) == [(1, [b"a"], bytes), (2, [b"b"], H)]
    assert not assembler.is_idle
    assert kinds(assembler.assemble(3, [b"c"] * 7)) == [(3, [b"c"] * 7, bytes)]
    assert assembler.is_idle


def test_fragments_of_a_message_with_headers_make_one() -> None:
    assembler = Assembler(100)
    assembler.mark(range(2, 4), headed=True)
    assembler.mark(range(4, 5), more=False, headed=True)
    assert kinds(assembler.assemble(1, [b"x", H(b"a")])) == [(1, [b"x"], bytes)]
    runs = assembler.assemble(3, [H(b"b"), H(b"c"), b"y"])
    assert kinds(runs) == [(4, [b"abc"], H), (5, [b"y"], bytes)]


def test_a_large_message_with_headers_is_cut_into_headed_fragments() -> None:
    fragments = Fragmenter(SendWindow(8, datagram_bytes=64, max_bytes=1 << 20), 4)
    accepted, pieces = fragments.admit([H(b"abcdefghi")])
    assert accepted == 1
    assert [(at, run, more) for at, run, more in pieces] == [
        (1, [b"abcd", b"efgh"], True),
        (3, [b"i"], False),
    ]
    assert {type(part) for _, run, _ in pieces for part in run} == {H}


def test_what_is_sent_again_is_cut_where_the_flag_changes() -> None:
    fragments = Fragmenter(SendWindow(16, datagram_bytes=64, max_bytes=1 << 20), 4)
    for payloads in ([b"a"], [H(b"b"), H(b"c")]):
        assert fragments.admit(payloads)[0] == len(payloads)
    assert [tuple(piece) for piece in fragments.pieces(range(1, 4))] == [
        (1, [b"a"], False),
        (2, [b"b", b"c"], False),
    ]
    assert fragments.admit([H(b"large")])[0] == 1
    assert fragments.admit([b"d"])[0] == 1
    assert [tuple(piece) for piece in fragments.pieces(range(1, 8))] == [
        (1, [b"a"], False),
        (2, [b"b", b"c"], False),
        (4, [b"larg"], True),
        (5, [b"e"], False),
        (6, [b"d"], False),
    ]


def test_how_often_a_message_started_over_is_counted_for_each() -> None:
    fragments = Fragmenter(SendWindow(2, datagram_bytes=64, max_bytes=1 << 20), 4)
    assert fragments.admit([b"0123456789"])[0] == 1
    fragments.start_over()
    assert fragments.starts == 1
    for _ in range(2):
        fragments.window.take_ready(2)
        fragments.window.purge(fragments.window.high)
        fragments.admit_rest()
    assert (fragments.rest_bytes, fragments.starts) == (0, 0)
    fragments.start_over()
    assert fragments.starts == 0  # nothing has begun


def test_one_send_is_of_one_kind() -> None:
    check_payloads([H(b"a"), H(b"b")], 1)
    with pytest.raises(UsageError, match="messages are bytes, not Headed"):
        check_payloads([b"a", H(b"b")], 1)
