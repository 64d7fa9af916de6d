"""The nouns: what they refuse, and how they read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringcast import Address, Digest, Member, Origin, Run, Stream, UsageError, View, ViewId
from ringcast.model import Conn

A = Member(Address("127.0.0.1", 7800), 1, "billing")
B = Member(Address("127.0.0.1", 7801), 2, "web")
C = Member(Address("127.0.0.1", 7802), 3, "web")


def test_addresses_read_as_written() -> None:
    assert Address.parse("127.0.0.1:7800") == Address("127.0.0.1", 7800)
    assert Address.parse("[::1]:7800") == Address("::1", 7800)
    assert str(Address.parse("[::1]:7800")) == "[::1]:7800"
    assert str(A.address) == "127.0.0.1:7800"


@pytest.mark.parametrize("text", ["", "host", "host:", ":7800", "host:x", "host:65536", "h:-1"])
def test_bad_addresses_say_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="write host:port"):
        Address.parse(text)


def test_a_restart_is_another_member() -> None:
    assert Member(A.address, 9, A.name) != A


def test_a_member_is_called_by_its_name_or_else_its_address() -> None:
    assert str(A) == "billing"
    assert str(Member(A.address, 1, "")) == "127.0.0.1:7800"


def test_a_view_finds_members_by_name() -> None:
    view = View(ViewId(A, 7), (A, B, C))
    assert view["billing"] is A
    assert view.coordinator is A
    assert (len(view), list(view), B in view) == (3, [A, B, C], True)
    assert str(view) == "View 7: billing, web, web"
    assert str(view.id) == "7@billing"
    with pytest.raises(LookupError, match=r"2 members are named 'web', at 127.0.0.1:7801 and"):
        view["web"]
    with pytest.raises(UsageError, match="no member named 'db' in <View 7: billing, web, web>"):
        view["db"]
    assert ["billing" in view, "web" in view, "db" in view, 7 in view] == [True, True, False, False]
    assert [[1] in view, tuple(B) in view] == [False, False]
    assert view[B] is B
    with pytest.raises(LookupError, match="no member named"):
        view[Member(B.address, 99, "web")]


def test_who_has_no_name_is_not_found_by_one() -> None:
    unnamed = Member(A.address, 1, "")
    view = View(ViewId(unnamed, 1), (unnamed,))
    assert ("" in view, unnamed in view, view[unnamed]) == (False, True, unnamed)
    with pytest.raises(LookupError, match=r"no member named '' in <View 1: 127.0.0.1:7800>"):
        view[""]


def test_a_view_of_many_members_is_shown_on_one_line() -> None:
    members = tuple(Member(Address("127.0.0.1", port), 1, f"web-{port}") for port in range(1, 101))
    shown = repr(View(ViewId(members[0], 12), members))
    assert shown.endswith(", web-8 and 92 more>")
    assert len(shown) <= 80
    pods = tuple(Member(A.address, at, f"orders-worker-6d4cf56db6-x7k{at}") for at in range(1, 9))
    assert repr(View(ViewId(pods[0], 1), pods)).endswith("-6d4cf56db6-x7k1 and 7 more>")


def test_views_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="at least one member"):
        View(ViewId(A, 1), ())
    with pytest.raises(UsageError, match="twice"):
        View(ViewId(A, 1), (A, B, A))
    with pytest.raises(UsageError, match="start at 1"):
        View(ViewId(A, 0), (A,))


def test_a_digest_is_in_range() -> None:
    origin = Origin(A, Stream.FIFO)
    assert str(Digest({origin: 41})) == "{billing/fifo: 41}"
    for seqno in (-1, 2**63):
        with pytest.raises(UsageError, match=r"must be in 0\.\.2\*\*63-1"):
            Digest({origin: seqno})


def test_a_newer_connection_is_a_greater_one() -> None:
    in_order = [Conn(1, 1), Conn(1, 2), Conn(1, 10), Conn(2, 1), Conn(10, 1)]
    assert all(older < newer for older, newer in pairwise(in_order))
    assert [str(conn) for conn in in_order] == ["1.1", "1.2", "1.10", "2.1", "10.1"]


def test_a_run_knows_its_last() -> None:
    assert Run(Stream.FIFO, 5, [b"a", b"b", b"c"]).last == 7
