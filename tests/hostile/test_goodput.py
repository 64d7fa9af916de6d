"""What is left of a member's goodput when thousands have made contact and are gone. In virtual
time: each datagram takes its sender a quarter of a millisecond, whoever it is for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from test_strangers import NAMES

from ringcast.config import GroupConfig, MulticastConfig
from ringcast.model import Address, Member, ViewId
from ringcast.protocols.views.discovery import STRANGER_NS
from ringcast.wire import changes as wire
from ringcast.wire.codec import Codec
from support.view_group import ViewGroup

if TYPE_CHECKING:
    from random import Random

    from ringcast.sim.world import Flight

CONTACTS = 4200
DATAGRAM_NS = 250_000
SIZE = 900


class Uplink:
    """Datagrams leave one after the other."""

    def __init__(self) -> None:
        self._free_at: defaultdict[Address, int] = defaultdict(int)

    def __call__(self, flight: Flight, dice: Random) -> list[Flight]:
        source = flight.link.source
        flight.due = self._free_at[source] = max(flight.due, self._free_at[source]) + DATAGRAM_NS
        return [flight]


class Busy(ViewGroup):
    """The first member sends as much as it may."""

    def __init__(self) -> None:
        multicast = MulticastConfig(capacity=256, datagram_bytes=1000, window_bytes=1 << 18)
        config = GroupConfig(group="goodput", multicast=multicast)
        super().__init__(NAMES, hint_ms=None, config=config)
        self.world.network.faults.append(Uplink())
        self.form()

    def goodput(self, seconds: int) -> float:
        """Messages that another member delivers in a second."""
        a, b = (self.node(name).me for name in "AB")
        before = len(self.delivered(b, a))
        for _ in range(200 * seconds):
            self.send("A", 256, size=SIZE)
            self.run(5)
        return (len(self.delivered(b, a)) - before) / seconds

    def meet(self, *, are_there: bool) -> None:
        """Of each address there comes a first contact. Either nobody is there, so that none brings
        a cookie back; or, as if each had, it is known that somebody was."""
        process, settings = self.process("A"), self.layer("A").agreement.settings
        for n in range(CONTACTS):
            who = Member(Address(f"10.1.{n % 250}.{n // 250 + 1}", 7000), 1, "")
            hello = wire.Hello(settings, True, False, 1, None, ViewId(who, 1), 1, (who,))
            said = Codec(self.config.group, who, 60_000).pack([hello], process.node.me)
            process.node.receive_datagrams(said, process.now)
            if are_there:
                self.layer("A").discovery.learn([who.address], process.now, STRANGER_NS)
        process.turn()


def course(after_s: int, *, are_there: bool) -> tuple[float, float]:
    """Of what it was before: at once, and so long after."""
    group = Busy()
    usual = group.goodput(1)
    group.meet(are_there=are_there)
    at_once = group.goodput(2) / usual
    group.run(1000 * (after_s - 2))
    later = group.goodput(1) / usual
    told = f"{at_once:.0%} at first, {later:.0%} after {after_s} s"
    print(f"goodput of {usual:.0f} a second, and {CONTACTS} contacts: {told}")  # noqa: T201
    assert usual > 1000
    assert group.view("A") == "ABC"
    return at_once, later


def test_goodput_is_back_at_once_after_contacts_that_were_forged() -> None:
    at_once, later = course(3, are_there=False)
    assert at_once < 0.9  # cookies take their time
    assert later >= 0.9


@pytest.mark.proof
def test_goodput_is_back_a_minute_after_contacts_that_are_gone() -> None:
    """They are asked for a minute, and with the next beat no more."""
    at_once, later = course(62, are_there=True)
    assert at_once < 0.4
    assert later >= 0.9
