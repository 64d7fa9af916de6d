"""Rows of one member and one peer, instant by instant; and what a machine makes of time."""

from __future__ import annotations

from ringcast.model import SYSTEM_EPOCH
from ringcast.rules.instants import Instants, Late
from ringcast.trace import rows as trace
from ringcast.trace.rows import Row

A, B = ("a", 1), ("b", 1)


def row(event: str, at: int, peer: tuple[str, int] = ("", 0), **columns: object) -> Row:
    name, inc = peer
    return Row(event, *A, at, mono_ns=at, peer=name, peer_inc=inc)._replace(**columns)


def instants(*rows: Row) -> list[tuple[tuple[str, int, bool], list[str]]]:
    grouped = Instants(A)
    found = [each for one in rows for each in grouped.feed(one)]
    return [(peer, [each.event for each in mine]) for peer, mine in [*found, *grouped.end()]]


def test_rows_of_one_time_are_one_instant_and_what_is_about_nobody_is_in_each() -> None:
    conn, view = trace.CONN, trace.VIEW
    assert instants(
        row(conn, 1, B),
        row(view, 2),
        row(conn, 3, B),
        row(view, 3),
        row(conn, 3, ("c", 1)),
    ) == [
        ((*B, False), [conn]),
        ((*B, False), [view]),
        ((*B, False), [conn, view]),
        (("c", 1, False), [view, conn]),
    ]


def test_inputs_whose_frames_wait_are_one_instant() -> None:
    tx = row(trace.TX, 3, B, kind="udata")
    rows = [row(trace.UNICAST_SEND, 1, B), row(trace.HELD, 2), tx._replace(mono_ns=2)]
    assert instants(*rows) == [((*B, False), [trace.UNICAST_SEND, trace.TX])]
    del rows[1]
    assert instants(*rows) == [((*B, False), [trace.UNICAST_SEND]), ((*B, False), [trace.TX])]


def test_the_systems_connections_with_a_peer_are_another_pair() -> None:
    rows = [row(trace.CONN, 1, B, epoch=1), row(trace.CONN, 1, B, epoch=SYSTEM_EPOCH + 1)]
    assert [peer for peer, _ in instants(*rows)] == [(*B, False), (*B, True)]


def test_other_frames_and_what_members_say_to_themselves_are_left_out() -> None:
    rows = [row(trace.TX, 1, B, kind="data"), row(trace.UNICAST_SEND, 1, A)]
    assert instants(*rows, row(trace.XMIT_MISMATCH, 1, B, kind="data")) == []
    again = row(trace.XMIT_MISMATCH, 1, B, kind="udata", epoch=1)
    assert instants(again) == [((*B, False), [trace.XMIT_MISMATCH])]


def test_waits_may_be_longer_by_as_much_as_the_machine_was_late() -> None:
    late = Late()
    grouped = Instants(A, late)
    for at, size in ((10_000_000, 4_000_000), (50_000_000, 7_000_000)):
        assert list(grouped.feed(row(trace.LATE, at, size=size))) == []
    assert late.between(0, 9_000_000) == Late.LITTLE_NS + 9_000_000 // Late.SHARE
    assert late.between(20_000_000, 30_000_000) == Late.LITTLE_NS + 10_000_000 // Late.SHARE
    both = late.between(0, 60_000_000)
    assert both == 11_000_000 + Late.LITTLE_NS + 49_000_000 // Late.SHARE
    assert Late.NEVER.between(0, 60_000_000) == 0
