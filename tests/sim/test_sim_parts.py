"""The simulator's own parts: clocks, network, seal, content hashes, options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeded import share

from ringcast.errors import DecodeError, UsageError
from ringcast.model import Address
from ringcast.sim.clock import LocalClock, VirtualClock, ns
from ringcast.sim.faults import Conditions, seeded_link, spoiled
from ringcast.sim.network import ChecksumSeal, Packet
from ringcast.sim.options import (
    BLOCK,
    DEFAULTS,
    FAULT_OPTIONS,
    FAULTS,
    Incident,
    Options,
    from_json,
)
from ringcast.sim.plan import expand
from ringcast.sim.world import Network

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.sim.faults import FaultLog
    from ringcast.sim.world import Flight


def datagram(number: int) -> bytes:
    return number.to_bytes(4, "little") * 10


A, B = (Address("10.0.0.1", port) for port in (0, 1))


def network_of(options: Options, arrive: Callable[[Flight], None]) -> tuple[Network, Conditions]:
    network = Network(VirtualClock(), partial(seeded_link, options, port), arrive)
    return network, Conditions(options, network, port, lambda _: None)


def port(address: Address) -> int:
    return address.port


def send(network: Network, number: int) -> None:
    network.send(A, B, datagram(number), Packet("A", 1, [], ("data",)))


def carried(options: Options, count: int, *, calm: bool = False) -> tuple[list[int], FaultLog]:
    """The numbers of the packets that arrive from A to B, in their order."""
    arrived: list[int] = []

    def arrive(flight: Flight) -> None:
        assert flight.link.dest == B
        arrived.append(int.from_bytes(flight.datagram[:4], "little"))

    network, conditions = network_of(options, arrive)
    conditions.is_calm = calm
    assert conditions.is_calm is calm
    clock = network.clock
    for number in range(count):
        send(network, number)
        clock.run_until(clock.now + ns(0.1))
    clock.run_until(clock.now + ns(10_000))
    return arrived, conditions.log


def test_actions_run_in_the_order_of_their_time_and_then_of_planning() -> None:
    clock = VirtualClock()
    seen: list[tuple[str, int]] = []
    clock.at(20, lambda: seen.append(("late", clock.now)))
    clock.at(10, lambda: seen.append(("first", clock.now)))
    clock.at(10, lambda: seen.append(("second", clock.now)))
    clock.run_until(15)
    assert seen == [("first", 10), ("second", 10)]
    clock.at(3, lambda: seen.append(("overdue", clock.now)))
    clock.run_until(30)
    assert seen[2:] == [("overdue", 15), ("late", 20)]
    assert clock.now == 30


@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 10**9), st.sampled_from([0.0, 0.9, 1.0, 1.1]), st.integers(0, 10**10)
        ),
        max_size=6,
    ),
    ahead=st.integers(0, 10**9),
)
def test_a_local_clock_never_goes_back_and_is_on_time(
    changes: list[tuple[int, float, int]], ahead: int
) -> None:
    clock = LocalClock(5)
    true = 0
    for step, rate, jump in changes:
        before = clock.read(true)
        true += step
        assert clock.read(true) >= before
        at_change = clock.read(true)
        clock.change(true, rate=rate, jump=jump)
        assert clock.read(true) == at_change + jump
    deadline = clock.read(true) + ahead
    when = clock.when(deadline)
    if when is None:
        assert changes[-1][1] == 0.0
    else:
        assert clock.read(when) >= deadline
        assert when == true or clock.read(when - 1) < deadline


def test_a_calm_network_loses_nothing_and_keeps_order() -> None:
    options = replace(expand(1), faults=tuple(FAULTS), nodes=2, initial=2, **PLAIN)
    arrived, log = carried(options, 200, calm=True)
    assert arrived == list(range(200))
    assert log.total == 0


PLAIN = {
    "capacities": (4, 4),
    "tau_ms": (50.0, 50.0),
    "senders": (0,),
    "incidents": (),
    "stopped": -1,
}


def lossy(**changes: object) -> Options:
    options = Options(seed=5, nodes=2, initial=2, **PLAIN)  # type: ignore[arg-type]
    return replace(options, **changes)


def test_loss_comes_near_its_probability_and_in_bursts_too() -> None:
    for burst in (0.0, 10.0):
        arrived, _ = carried(lossy(faults=("F1",), loss=0.3, loss_burst=burst), 4000)
        assert 0.25 < 1 - len(arrived) / 4000 < 0.35
        assert arrived == sorted(set(arrived)), "loss alone neither reorders nor repeats"


def test_duplicates_and_reordering_do_what_they_say() -> None:
    arrived, _ = carried(lossy(faults=("F3",), duplicates=0.5, copies=2, copy_late_ms=1.0), 500)
    assert set(arrived) == set(range(500))
    assert 1.7 < len(arrived) / 500 < 2.3
    arrived, _ = carried(lossy(faults=("F4",), reorder=0.3, reorder_ms=5.0), 500)
    assert sorted(arrived) == list(range(500))
    assert arrived != sorted(arrived)


def test_only_the_listed_packet_faults_happen() -> None:
    free = lossy(faults=("F1", "F3"), loss=0.2, duplicates=0.2)
    _, log = carried(free, 300)
    names = [name for name in log.names if name.startswith("F1")]
    assert len(names) > 20
    arrived, log = carried(replace(free, only=tuple(names[:2])), 300)
    assert log.names == names[:2]
    lost = [int(name.split()[2]) - 1 for name in names[:2]]
    assert arrived == [number for number in range(300) if number not in lost]


def test_expired_packets_never_arrive() -> None:
    arrived: list[bytes] = []
    network, conditions = network_of(lossy(), lambda flight: arrived.append(flight.datagram))
    send(network, 1)
    assert conditions.kinds_under_way() == ("data",)
    conditions.heal()
    conditions.expire()
    assert conditions.kinds_under_way() == ()
    send(network, 2)
    network.clock.run_until(ns(1000))
    assert arrived == [datagram(2)]
    assert conditions.kinds_under_way() == ()
    assert conditions.kinds_carried() == ("data",)


@given(data=st.binary(min_size=1, max_size=200), seed=st.integers(0, 1000))
def test_the_seal_opens_what_it_sealed_and_nothing_spoiled(data: bytes, seed: int) -> None:
    seal = ChecksumSeal()
    sealed = seal.seal(data)
    assert len(sealed) == len(data) + seal.overhead
    assert seal.unseal(sealed) == data
    other = seal.seal(b"another datagram of some length")
    broken = spoiled(sealed, other, Random(seed))
    if broken not in (sealed, other):
        assert isinstance(seal.unseal(broken), DecodeError)


def test_options_survive_json_and_unknown_ones_are_named() -> None:
    for seed in range(50):
        assert from_json(expand(seed).to_json()) == expand(seed)
    with pytest.raises(UsageError, match="capacites"):
        from_json('{"seed": 1, "capacites": [1]}')
    with pytest.raises(UsageError, match="not the options"):
        from_json("[]")
    with pytest.raises(UsageError, match="F99"):
        Options(seed=1, faults=("F99",))
    with pytest.raises(UsageError, match="numbered 0 to 2"):
        Options(seed=1, incidents=(Incident(fault="F10", at_ms=1, nodes=(3,)),))


def test_the_seeds_cover_what_they_should() -> None:
    options = [expand(seed) for seed in range(2000)]

    def has_incident(option: Options, *faults: str) -> bool:
        return any(incident.fault in faults for incident in option.incidents)

    assert share([option.has("F1") and option.loss >= 0.05 for option in options]) >= 0.30
    assert share([has_incident(option, "F10", "F11") for option in options]) >= 0.30
    assert share([has_incident(option, "F7", "F8", "F9") for option in options]) >= 0.20
    assert share([min(option.capacities) <= 4 for option in options]) >= 0.25
    assert sum(option.nodes for option in options) / 2000 >= 3
    for fault in FAULTS:
        assert 0.4 < share([option.has(fault) for option in options]) < 0.6


def test_options_read_as_a_block() -> None:
    text = str(expand(7))
    assert text.startswith(f"seed 7, {expand(7).nodes} nodes\n  ")
    assert all(len(line) < 160 for line in text.splitlines())
    assert "faults" in text


def test_a_block_tells_every_option_that_is_not_as_by_default() -> None:
    names = [name for block in (BLOCK, FAULT_OPTIONS) for row in block.values() for name in row]
    others = ("seed", "protocol", "partitions", "nodes", "faults", "incidents", "only")
    assert sorted([*names, *others]) == sorted(DEFAULTS)
    assert "safety_ms 77" in str(Options(seed=1, safety_ms=77.0))
    assert "safety_ms" not in str(Options(seed=1))
