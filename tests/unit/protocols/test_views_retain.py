"""Groups that acknowledge and retain: what a dead sender left reaches all who go on, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ringcast.config import MulticastConfig, StabilityConfig
from ringcast.errors import ConfigError
from ringcast.model import Origin, Purge, Stream
from ringcast.wire.frames import Data
from support.view_group import SMALL, ViewGroup

if TYPE_CHECKING:
    from ringcast.model import ViewId

RETAINING = replace(SMALL, multicast=replace(SMALL.multicast, retain=True))


def low_at(group: ViewGroup, name: str, sender: str) -> int:
    windows = group.node(name).multicast.windows()
    return windows[Origin(group.node(sender).me, Stream.FIFO)].low


def test_what_was_taken_stays_until_its_sender_says_that_all_have_it() -> None:
    group = ViewGroup("ABC", config=RETAINING).form()
    group.send("A", 5)
    group.run(5)
    assert len(group.observed.got(group.node("B").me, _view(group), _origin(group))) == 5
    assert low_at(group, "B", "A") == 0
    group.run(500)  # its heartbeats tell it, too
    assert low_at(group, "A", "A") == low_at(group, "B", "A") == low_at(group, "C", "A") == 5


def test_a_slow_reader_keeps_it_at_all_others() -> None:
    group = ViewGroup("ABC", config=RETAINING).form()
    group.read("C", 0)
    for _ in range(3):
        group.send("A", 4)
        group.run(500)
    assert low_at(group, "B", "A") == 0
    assert len(group.observed.got(group.node("B").me, _view(group), _origin(group))) == 12


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("has_read", [False, True])
def test_what_one_survivor_got_of_a_dead_sender_all_get(retain: bool, has_read: bool) -> None:
    group = ViewGroup("ABC", config=RETAINING if retain else SMALL).form()
    group.is_lost = lambda source, dest, kinds: (source, dest) == ("A", "C") and Data in kinds
    if not has_read:
        group.read("B", 0)
    sent = group.send("A", 3)
    group.run(3)
    view, origin = _view(group), _origin(group)
    group.crash("A")
    assert group.run_until(lambda: group.view("C") == "BC", 5000)
    group.read("B")
    group.run(10)
    got = {name: group.observed.got(group.node(name).me, view, origin) for name in "BC"}
    assert got == {"B": sent, "C": sent if retain else []}
    assert group.observed.violations() == []


def test_a_window_full_of_retained_messages_goes_on_with_the_next_mark() -> None:
    """Every datagram with messages tells the mark before them: there is room for them."""
    group = ViewGroup("ABC", config=RETAINING).form()
    count = 0
    for _ in range(200):
        count += len(group.send("A", 16))
        group.run(5)
    group.run(500)
    assert count > 5 * SMALL.multicast.capacity
    assert group.undelivered() == []
    assert group.node("A").multicast.senders[Stream.FIFO].stream.retransmitted == 0


def test_the_setting_is_one_of_purging() -> None:
    assert MulticastConfig(retain=True).purge is Purge.ACKS_RETAINED
    with pytest.raises(ConfigError, match="retain"):
        MulticastConfig(retain=True, stability=StabilityConfig())


def _view(group: ViewGroup) -> ViewId:
    view = group.node("B").view
    assert view is not None
    return view.id


def _origin(group: ViewGroup) -> Origin:
    return Origin(group.node("A").me, Stream.FIFO)
