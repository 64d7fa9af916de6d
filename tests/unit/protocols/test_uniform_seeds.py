"""What simulated seeds have found of uniform delivery, as small as it gets."""

from __future__ import annotations

from ringcast.config import MulticastConfig
from ringcast.core.effects import Effects, NewerView
from ringcast.model import Address, Digest, Member, Origin, Stream, View, ViewId
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.uniform import Estate
from ringcast.window.assembler import Assembler
from ringcast.window.windows import ReceiveWindow
from ringcast.wire.frames import Commit, CommitWanted, Data

STREAMS = (Stream.FIFO, Stream.UNIFORM)
A, B, C = (Member(Address("host", port), 1, name) for port, name in enumerate("abc", 1))


def view(counter: int, *members: Member) -> View:
    return View(ViewId(members[0], counter), members)


def machine(me: Member) -> ReliableMulticast:
    return ReliableMulticast(me, MulticastConfig(), 1000, streams=STREAMS)


def test_a_commit_of_a_view_that_is_not_here_waits_for_it() -> None:
    """A leaves C out, commits without it, and dies: B, which has not heard of that view, may go on
    together with C, which lacks what is committed."""
    b = machine(B)
    b.group.change(view(1, A, B, C), [b], 0, Effects())
    b.install_digest(Digest({Origin(A, stream): 0 for stream in STREAMS}), 0, Effects())
    b.receive(A, [Data(Stream.UNIFORM, 1, [b"x", b"y"])], 1, Effects())
    b.receive(A, [Commit(1, ViewId(A, 1))], 2, Effects())
    b.receive(A, [Commit(2, ViewId(A, 2))], 3, Effects())
    b.receive(A, [Commit(1, ViewId(A, 1))], 4, Effects())
    window = b.windows()[Origin(A, Stream.UNIFORM)]
    assert window.gate == 1
    b.group.change(view(2, A, B), [b], 5, Effects())
    assert window.gate == 2


def test_whoever_is_not_let_in_yet_has_committed_nothing() -> None:
    """Who let C in has died on it; the next coordinator takes it for a member, and waits for its
    word before it lets anybody in."""
    out = Effects()
    machine(C).receive(A, [CommitWanted(ViewId(A, 3))], 0, out)
    assert out.frames == [(A, Commit(0, ViewId(A, 3)))]
    assert list(out.signals) == [NewerView(ViewId(A, 3))]


def test_whoever_has_left_says_nothing() -> None:
    c, out = machine(C), Effects()
    c.group.change(view(1, A, C), [c], 0, out)
    c.close("left", 1, out)
    out = Effects()
    c.receive(A, [CommitWanted(ViewId(A, 1))], 2, out)
    assert out.frames == []
    assert c.refused == 1


def test_an_estate_finds_room_for_what_others_hold() -> None:
    window = ReceiveWindow(2, offset=5, max_bytes=100, gate=6)
    window.add_run(6, [b"six", b"seven"])
    estate = Estate(window, Assembler(1000))
    estate.make_room(7)
    assert estate.window is window
    estate.make_room(20)
    assert estate.window is not None
    assert estate.window.capacity >= 15
    assert (estate.delivered, estate.received, estate.window.gate) == (5, 7, 6)
    assert estate.window.take_ready(10) == [b"six"]
    assert estate.window.add_run(8, [b"eight"]) == 1
    assert estate.window.read_run(range(7, 9)) == [b"seven", b"eight"]
