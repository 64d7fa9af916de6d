"""Seeded runs of groups that fall apart and come together: none may violate anything, each is the
same everywhere, every kind of partition happens, and broken nodes are caught."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from ringcast.protocols.membership import Membership
from ringcast.protocols.reunion import Reunion
from seeded import MANY, check_determinism, check_nothing_failed, share, tally_of

from ringcast.cli.replay import replay
from ringcast.cli.simulate import simulate
from ringcast.errors import UsageError
from ringcast.model import Origin
from ringcast.node import build_node
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.multicast_sender import MulticastSender
from ringcast.sim.fleet import run_seeds
from ringcast.sim.options import Incident, Options, from_json
from ringcast.sim.partitions import KINDS, LONG_MS, TARGETS, cut_links, kinds_of
from ringcast.sim.plan import GROUP_TARGETS, expand
from ringcast.sim.runner import run
from ringcast.trace import rows as trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects
    from ringcast.model import Member, View
    from ringcast.node import Node
    from ringcast.sim.fleet import Tally
    from ringcast.sim.runner import Result
    from ringcast.wire.frames import Begin

SEEDS = 40

STUCK = (2, 19)
"""Seeds in which a member waited for ever for a coordinator that it does not watch."""

PASSED_BY = (246, 582, 1302, 1479)
"""Senders came after a joiner's state was cut and went before it was there: lost to the joiner."""

ALONE = 1165
"""A member that has lost its state lets another in before its application hears of the loss."""

TWO_LINES = 1896
"""Two members make a view each; a third goes from one line to the other, where somebody is whom it
has seen depart."""

KEPT = (*PASSED_BY, ALONE, TWO_LINES)
"""Seeds beyond the first forty that have found something."""


def check(tally: Tally) -> None:
    check_nothing_failed(tally, "--protocol group --partitions")
    assert not tally.vacuous


@cache
def forty() -> Tally:
    assert max(STUCK) < SEEDS
    return tally_of(run_seeds(range(SEEDS), protocol="group", partitions=True))


def test_forty_seeds_violate_nothing_and_leave_nothing_out() -> None:
    check(forty())


def test_seeds_that_have_found_something_violate_nothing() -> None:
    tally = tally_of(run_seeds(KEPT, protocol="group", partitions=True))
    assert [(summary.seed, summary.failures[0]) for summary in tally.failed] == []


def test_groups_fall_apart_and_come_together() -> None:
    happened = forty().happenings
    assert set(happened) == {*KINDS, "merges", "exclusions"}
    assert happened["merges"] >= SEEDS / 2
    assert happened["exclusions"] >= SEEDS / 8
    assert forty().judged["V2"].premises >= 2 * SEEDS
    assert forty().judged["N18"].premises >= SEEDS


@pytest.mark.proof
def test_many_seeds_violate_nothing() -> None:
    jobs = os.cpu_count() or 1
    tally = tally_of(run_seeds(MANY[:150], protocol="group", partitions=True, jobs=jobs))
    check(tally)


@pytest.mark.proof
def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    check_determinism(5, "group", partitions=True)


# What the seeds cover


def test_the_seeds_cover_every_kind_of_partition() -> None:
    options = [expand(seed, "group", partitions=True) for seed in range(1000)]
    kinds: Counter[str] = Counter()
    for option in options:
        cuts = [cut for cut in option.incidents if cut.fault in ("F7", "F8", "F9")]
        assert cuts
        assert all(cut.at_ms < option.safety_ms for cut in cuts)
        assert all(cut_links(cut, option.nodes) for cut in cuts)
        kinds.update({kind for cut in cuts for kind in kinds_of(cut, option.safety_ms)})
        flaps = [cut.amount for cut in cuts if cut.amount]
        assert all(0.1 <= hertz <= 10 for hertz in flaps)
        lasting = [cut.ms > option.suspect_ms + option.verify_ms for cut in cuts]
        if option.safety_ms > LONG_MS:
            assert flaps
            assert all(lasting)
    assert set(kinds) == set(KINDS)
    lost = {option.target for option in options if option.has("F2")}
    assert lost == {*GROUP_TARGETS, *TARGETS, "system"}
    assert all(kinds[kind] >= 80 for kind in KINDS)
    assert 0.03 < share([option.safety_ms > LONG_MS for option in options]) < 0.10
    crashes = ("F10", "F11", "F12")
    assert 0.1 < share([any(i.fault in crashes for i in each.incidents) for each in options]) < 0.8
    plain = [expand(seed, "group") for seed in range(1000)]
    often = share([any(i.fault in crashes for i in each.incidents) for each in plain])
    assert share([any(i.fault in crashes for i in each.incidents) for each in options]) < often


def test_options_survive_json() -> None:
    for seed in range(50):
        options = expand(seed, "group", partitions=True)
        assert from_json(options.to_json()) == options
        assert f"seed {seed} of group with partitions\n" in str(options)


def test_partitions_need_a_group() -> None:
    with pytest.raises(UsageError, match="partitions need the protocol group"):
        expand(1, "unicast", partitions=True)
    result = CliRunner().invoke(simulate, ["--partitions", "--seeds", "1"])
    assert result.exit_code == 2
    assert "--partitions needs --protocol group" in result.output


# Which links are cut


def links(fault: str, nodes: tuple[int, ...], what: str = "", count: int = 4) -> set[str]:
    incident = Incident(fault=fault, at_ms=0.0, nodes=nodes, what=what)
    found = cut_links(incident, count)
    assert len(set(found)) == len(found)
    return {f"{'ABCDEF'[a]}{'ABCDEF'[b]}" for a, b in found}


def both(*pairs: str) -> set[str]:
    return {link for pair in pairs for link in (pair, pair[::-1])}


def test_which_links_are_cut() -> None:
    assert links("F7", (0, 1)) == both("AC", "AD", "BC", "BD")
    assert links("F7", (3, 0, 1), "1+2", 6) == both(
        *("DA", "DB", "DC", "DE", "DF", "AC", "AE", "AF", "BC", "BE", "BF")
    )
    assert links("F8", (0,)) == {"AB", "AC", "AD"}
    assert links("F9", (0, 3)) == both("AD")
    assert links("F9", (1, 0), "bridge") == both("AC", "AD")
    assert links("F9", (1,), "star") == both("AC", "AD", "CD")
    assert links("F7", (0,), "for good", 2) == both("AB")


# Single runs


def parted(**changes: object) -> Options:
    """Four nodes that start at once; two of them are cut off for a while."""
    cut = Incident(fault="F7", at_ms=300.0, ms=1500.0, nodes=(2, 3))
    options = Options(
        seed=1,
        protocol="group",
        partitions=True,
        nodes=4,
        initial=4,
        capacities=(16,) * 4,
        tau_ms=(50.0,) * 4,
        senders=(0, 2),
        messages=40,
        heartbeat_ms=40.0,
        suspect_ms=200.0,
        verify_ms=50.0,
        warm_ms=400.0,
        safety_ms=2500.0,
        faults=("F7",),
        incidents=(cut,),
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def last_views(result: Result) -> dict[str, tuple[str, ...]]:
    return {row.node: row.members for row in result.trace.rows if row.event == trace.VIEW}


def test_two_sides_go_on_apart_and_merge() -> None:
    result = run(parted())
    assert result.failures == ()
    rows = result.trace.rows
    views = [row.members for row in rows if row.event == trace.VIEW]
    assert {len(view) for view in last_views(result).values()} == {4}
    assert len(set(last_views(result).values())) == 1
    sides = {frozenset({"A#1", "B#1"}), frozenset({"C#1", "D#1"})}
    assert sides < set(map(frozenset, views))
    parts = {(row.node, frozenset(row.members)) for row in rows if row.event == trace.PART}
    assert parts == {(node, side) for node in "ABCD" for side in sides}
    assert result.summary.happenings["merges"] == 1
    assert result.summary.happenings["exclusions"] == 0
    # Each has a window for each of the other side a second time, further on.
    again = [row for row in rows if row.event == trace.OPEN and row.seqno]
    assert {(row.node, row.peer) for row in again} == {
        ("A", "C"),
        ("B", "C"),
        ("C", "A"),
        ("D", "A"),
    }


def test_who_is_cut_off_for_good_ends_in_a_view_of_its_own() -> None:
    cut = Incident(fault="F7", at_ms=300.0, nodes=(3,), what="for good")
    result = run(parted(incidents=(cut,)))
    assert result.failures == ()
    three = ("A#1", "B#1", "C#1")
    assert last_views(result) == {"A": three, "B": three, "C": three, "D": ("D#1",)}
    (one_view,) = (verdict for verdict in result.verdicts if verdict.id == "V-L1")
    assert one_view.premises == 2


def test_a_cut_that_comes_and_goes() -> None:
    cut = Incident(fault="F9", at_ms=100.0, ms=2000.0, nodes=(0, 1), amount=4.0)
    result = run(parted(faults=("F9",), incidents=(cut,)))
    assert result.failures == ()
    dropped = [row.mono_ns / 1e6 - 500 for row in result.trace.rows if row.event == trace.NET_DROP]
    assert dropped
    assert all(0 <= at < 2000 for at in dropped)
    assert all(at % 250 <= 125 for at in dropped)
    ended = [row for row in result.trace.rows if row.event == trace.FAULT_OFF]
    assert len(ended) == 8


# Broken on purpose


class NoFreeze(MulticastSender):
    """Lets go of messages that whoever has come back has not delivered (N5)."""

    def set_members(self, view: View, reunited: Collection[Member], now: int, out: Effects) -> None:
        super().set_members(view, reunited, now, out)
        self._ignored = {*getattr(self, "_ignored", ()), *reunited}

    def _purge(self, now: int, out: Effects) -> None:
        for member in getattr(self, "_ignored", ()):
            if any(member == known for known, _, _ in self.acks.entries()):
                self.acks.update(member, self.window.high, self.window.high)
        super()._purge(now, out)


class BeginsTooEarly(MulticastSender):
    """Gives members of another part what was not for them (V2)."""

    def _tell_awaiting_start(self, now: int, out: Effects) -> None:
        self.awaiting_start = {
            member: replace(begin, offset=self.window.low)
            for member, begin in self.awaiting_start.items()
        }
        super()._tell_awaiting_start(now, out)


class WithoutFreeze(ReliableMulticast):
    sending = NoFreeze


class TooMuch(ReliableMulticast):
    sending = BeginsTooEarly


class MovesWindows(ReliableMulticast):
    """Opens a window at every Begin, also where there is one (N18)."""

    def _on_begin(self, source: Member, begin: Begin, now: int, out: Effects) -> None:
        self._receivers.pop(Origin(source, begin.stream), None)
        super()._on_begin(source, begin, now, out)


class NeverMeets(Membership):
    """Two groups that find each other stay apart (V-L1)."""

    def _meet(self, other: Member, size: int, now: int, out: Effects) -> None:
        return


class Impatient(Reunion):
    def waits(self, now: int) -> int:
        return 0


class MergesAtOnce(Membership):
    """Makes and breaks the group each time a link comes and goes (V-L4)."""

    def __init__(self, me: Member, config: MembershipConfig, **options: Any) -> None:
        super().__init__(me, config, **options)
        self.reunion = Impatient()


odd_node = build_node


FLAPPING = Incident(fault="F7", at_ms=100.0, ms=31_000.0, nodes=(1,), amount=0.45)

CASES: dict[str, tuple[Callable[..., Node], set[str], Options]] = {
    "no freeze": (
        partial(odd_node, multicast=WithoutFreeze),
        {"N5"},
        parted(faults=("F1", "F7"), loss=0.3, messages=200, safety_ms=6000.0),
    ),
    "begins too early": (partial(odd_node, multicast=TooMuch), {"V2"}, parted(messages=200)),
    "moves windows": (partial(odd_node, multicast=MovesWindows), {"N18"}, parted(delay_ms=4.0)),
    "never meets": (partial(odd_node, membership=NeverMeets), {"V-L1"}, parted()),
    "merges at once": (
        partial(odd_node, membership=MergesAtOnce),
        {"V-L4"},
        parted(
            nodes=2,
            initial=2,
            capacities=(16, 16),
            tau_ms=(50.0, 50.0),
            senders=(0,),
            safety_ms=31_500.0,
            incidents=(FLAPPING,),
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_node_is_caught_and_a_whole_one_is_not(case: str) -> None:
    factory, rules, options = CASES[case]
    assert run(options).failures == ()
    for seed in range(10):
        failures = run(replace(options, seed=seed), factory).failures
        if any(failure.rule in rules for failure in failures):
            return
    pytest.fail(f"10 seeds show no violation of {rules}")


# The commands


def test_the_commands_speak_of_partitions() -> None:
    arguments = ["--protocol", "group", "--partitions", "--seeds", "5"]
    factory = partial(odd_node, membership=NeverMeets)
    result = CliRunner().invoke(simulate, arguments, obj=factory)
    assert result.exit_code == 1
    assert "ringcast replay --protocol group --partitions --seed 5\n" in result.output
    assert re.search(r"^merges +0  never happened$", result.output, re.M)
    assert re.search(r"^for good +1$", result.output, re.M)
    arguments = ["--protocol", "group", "--partitions", "--seed", "5", "--limit", "100000"]
    result = CliRunner().invoke(replay, arguments)
    assert result.exit_code == 0
    assert result.output.startswith("seed 5 of group with partitions\n")
    assert " merged " in result.output
