"""What an observer is told at the Node's edge, and that it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.core.effects import Left
from ringcast.core.view_change import Begin, Freeze
from ringcast.events import Delivered
from support.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.events import Event


class Listing:
    """An observer that lists its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def received(self, datagram: Any, now: int) -> None:
        self.calls.append("received")

    def transmitted(self, dest: Any, datagrams: Sequence[bytes], now: int) -> None:
        self.calls.append(f"transmitted {len(datagrams)} to {dest}")

    def offered(
        self, to: Any, stream: Any, payloads: Sequence[bytes], accepted: int, now: int
    ) -> None:
        self.calls.append(f"offered {len(payloads)}, accepted {accepted}")

    def before_change(self, change: Freeze | Begin | Left, now: int) -> None:
        match change:
            case Freeze(id):
                self.calls.append(f"before freezing for {id.counter}")
            case Begin(view):
                self.calls.append(f"before view {view.counter}")
            case Left():
                self.calls.append("before close")

    def before_take(self, now: int, *, buffered: bool) -> None:
        self.calls.append("before take")

    def took(self, events: Sequence[Event], now: int, *, buffered: bool) -> None:
        delivered = [event.run.last for event in events if isinstance(event, Delivered)]
        self.calls.append(f"took {delivered}")

    def after_input(self, now: int) -> None:
        self.calls.append("after input")


def test_an_observer_is_told_what_crosses_the_edge_in_its_order() -> None:
    cluster = Cluster("AB", capacity=2)
    a, b = cluster.nodes.values()
    a.take_events(0, 0)
    a.observer = at_a = Listing()
    b.observer = at_b = Listing()
    a.send([b"1", b"2", b"3"], 0)
    sent = [datagram for _, datagram in a.take_datagrams()]
    assert at_a.calls == ["offered 3, accepted 2", "after input", "transmitted 1 to None"]
    b.receive_datagrams(sent, 0)
    b.take_events(10, 0)
    assert at_b.calls == ["received", "after input", "before take", "took [2]"]
    at_b.calls.clear()
    b.close(0)
    assert at_b.calls == ["before close", "after input"]


def test_a_change_is_announced_before_the_layers_see_it() -> None:
    cluster = Cluster("AB")
    a = cluster.nodes["A"]
    a.observer = listing = Listing()
    view = cluster.next_view("A")
    a.effects.signal(Freeze(view.id, view.members))
    a.install_view(view, cluster.now)
    assert listing.calls == ["before freezing for 2", "before view 2", "after input"]


def test_an_observed_node_does_what_it_does_anyway() -> None:
    def datagrams(*, observed: bool) -> list[bytes]:
        cluster = Cluster("AB", capacity=4)
        a, b = cluster.nodes.values()
        if observed:
            a.observer, b.observer = Listing(), Listing()
        found: list[bytes] = []
        for now in range(0, 3_000_000_000, 50_000_000):
            a.send([b"%d" % now], now)
            there = [datagram for _, datagram in a.take_datagrams()]
            b.receive_datagrams(there, now)
            b.take_events(10, now)
            b.handle_timeout(now)
            back = [datagram for _, datagram in b.take_datagrams()]
            a.receive_datagrams(back, now)
            a.take_events(10, now)
            a.handle_timeout(now)
            found += there + back
        return found

    assert datagrams(observed=True) == datagrams(observed=False)
