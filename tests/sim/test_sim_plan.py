"""What the seeds cover: every fault, every kind of partition, and timing around the defaults."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
from seeded import share

from ringcast.config import MembershipConfig
from ringcast.errors import UsageError
from ringcast.sim.incidents import cut_links, kinds_of
from ringcast.sim.mishaps import CUTS, KINDS, LONG_MS
from ringcast.sim.network import RETAINED_KINDS, STABILITY_KINDS
from ringcast.sim.options import FAULTS, NODES_MAX, STEPS, Options
from ringcast.sim.plan import GROUP_TARGETS, TARGETS, UNICAST_TARGETS, UNIFORM_TARGETS, expand

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_MS = 500.0
"""How long a view change waits for an answer."""


@cache
def plans(protocol: str, *, partitions: bool = False, purge: str = "acks") -> list[Options]:
    return [expand(seed, protocol, partitions=partitions, purge=purge) for seed in range(1000)]


def has(option: Options, *faults: str, what: str | None = None) -> bool:
    return any(
        incident.fault in faults and what in (None, incident.what) for incident in option.incidents
    )


def how_often(options: list[Options], holds: Callable[[Options], bool]) -> float:
    return share([holds(option) for option in options])


@pytest.mark.parametrize("protocol", ["multicast", "unicast", "group", "uniform"])
def test_of_every_protocol(protocol: str) -> None:
    options = plans(protocol)
    assert how_often(options, lambda o: o.has("F1") and o.loss >= 0.05) >= 0.30
    assert how_often(options, lambda o: has(o, "F10", "F11")) >= 0.30
    assert how_often(options, lambda o: has(o, "F10", "F11", what="coordinator")) >= 0.10
    assert how_often(options, lambda o: has(o, *CUTS)) >= 0.30
    assert how_often(options, lambda o: has(o, "leave")) >= 0.30
    assert how_often(options, lambda o: has(o, "F18", what="propose")) >= 0.30
    assert how_often(options, lambda o: has(o, "F18", what="suspect")) >= 0.10
    assert how_often(options, lambda o: min(o.capacities) <= 4) >= 0.25
    assert how_often(options, lambda o: o.initial < o.nodes or has(o, "F11")) >= 0.30
    assert how_often(options, lambda o: o.warm_ms < 10) >= 0.20
    assert {option.nodes for option in options} == set(range(2, NODES_MAX + 1))
    assert 0.03 < how_often(options, lambda o: o.nodes > 6) < 0.08
    for fault in FAULTS:
        most = 0.9 if (protocol, fault) == ("uniform", "F10") else 0.6
        assert 0.4 < how_often(options, lambda o, fault=fault: o.has(fault)) < most


@pytest.mark.parametrize("protocol", ["multicast", "group"])
def test_incidents_wait_for_every_step_of_a_change(protocol: str) -> None:
    incidents = [incident for option in plans(protocol) for incident in option.incidents]
    waiting = [incident for incident in incidents if incident.when]
    assert {incident.when for incident in waiting} == set(STEPS)
    for faults in (CUTS, ("F10",), ("F11",), ("F12",)):
        of_them = [incident for incident in incidents if incident.fault in faults]
        assert 0.25 < share([bool(incident.when) for incident in of_them]) < 0.75
    named = [bool(incident.nodes) for incident in waiting]
    assert 0.2 < share(named) < 0.8, "some hit whoever is at it, others somebody else"
    assert {incident.after for incident in waiting} == {0, 1, 2}


def test_targets_of_single_losses() -> None:
    assert {option.target for option in plans("multicast")} == set(TARGETS)
    assert {option.target for option in plans("unicast")} == set(UNICAST_TARGETS)
    assert {option.target for option in plans("group")} == set(GROUP_TARGETS)
    assert {option.target for option in plans("uniform")} == set(UNIFORM_TARGETS)


def test_of_groups() -> None:
    options = plans("group")
    assert how_often(options, lambda o: o.start_ms == 0) >= 0.20
    assert how_often(options, lambda o: o.told < 1) >= 0.20
    assert how_often(options, lambda o: o.hints) >= 0.20
    assert how_often(options, lambda o: o.state) >= 0.40
    pauses = [
        incident.ms > option.suspect_ms + option.verify_ms
        for option in options
        for incident in option.incidents
        if incident.fault == "F12"
    ]
    assert 0.1 < share(pauses) < 0.8


def test_members_are_suspected_sooner_and_later_than_a_change_waits() -> None:
    options = plans("group")
    default = MembershipConfig()
    assert 0.1 < how_often(options, lambda o: o.suspect_ms > 2 * PATIENCE_MS) < 0.5
    assert 0.3 < how_often(options, lambda o: o.suspect_ms + o.verify_ms < PATIENCE_MS) < 0.9
    assert how_often(options, lambda o: o.suspect_ms < o.discovery_ms) >= 0.05
    like_default = [
        option.membership_config().suspect_after_s == default.suspect_after_s
        and option.membership_config().verify_s == default.verify_s
        and option.membership_config().heartbeat_s == default.heartbeat_s
        and option.membership_config().discovery_wait_s == default.discovery_wait_s
        for option in options
    ]
    assert 0.15 < share(like_default) < 0.25


def test_of_unicast() -> None:
    options = plans("unicast")
    for call in ("close", "sync"):
        assert how_often(options, lambda o, call=call: has(o, call)) >= 0.20
    assert how_often(options, lambda o: has(o, "F18", what="drop")) >= 0.20
    assert how_often(options, lambda o: o.expiry_ms * 2 < o.safety_ms) >= 0.20
    assert how_often(options, lambda o: o.expiry_ms == 0) >= 0.10
    assert how_often(options, lambda o: any(a == b for a, b in o.pairs)) >= 0.10
    assert how_often(options, lambda o: len(o.pairs) == 1) >= 0.10


def test_of_uniform_messages() -> None:
    options = plans("uniform")
    assert how_often(options, lambda o: has(o, "F10", what="sending")) >= 0.35
    assert how_often(options, lambda o: has(o, "F10", what="sending coordinator")) >= 0.15
    assert how_often(options, lambda o: has(o, "F10", what="coordinator")) >= 0.30
    assert how_often(options, lambda o: o.late_leaver >= 0) >= 0.15
    assert {option.uniform for option in options} == {0.3, 0.6, 1.0}
    assert all(option.has("F10") for option in options if has(option, "F10", what="sending"))


def test_of_stability_rounds() -> None:
    options = plans("multicast", purge="stability")
    assert 0.4 <= how_often(options, lambda o: o.retain) <= 0.6
    assert {option.grow for option in options} == {1, 2, 4}
    assert all(5 <= option.stability_ms <= 60 for option in options)
    assert all(option.stability_ms >= option.delta_ms for option in options)
    assert how_often(options, lambda o: o.threshold_bytes is not None) >= 0.3
    assert {*STABILITY_KINDS, *RETAINED_KINDS} <= {option.target for option in options}
    assert "ack" not in {option.target for option in options}
    assert how_often(options, lambda o: has(o, "stabilize")) >= 0.3
    assert how_often(options, lambda o: has(o, "F10", what="sending plain")) >= 0.4


@pytest.mark.parametrize("protocol", ["multicast", "group", "uniform"])
def test_a_seed_with_acks_is_not_changed_by_what_rounds_need(protocol: str) -> None:
    for seed in range(20):
        plain, reports = expand(seed, protocol), expand(seed, protocol, purge="stability")
        assert plain.multicast_config(0).stability is None
        assert reports.multicast_config(0).capacity_max == reports.capacities[0] * reports.grow
        may = {"purge", "retain", "stability_ms", "threshold_bytes", "grow"}
        may |= {"faults", "target", "incidents"}
        names = Options.__dataclass_fields__
        assert {n for n in names if getattr(plain, n) != getattr(reports, n)} <= may


def test_every_kind_of_partition() -> None:
    options = plans("group", partitions=True)
    kinds: Counter[str] = Counter()
    for option in options:
        cuts = [cut for cut in option.incidents if cut.fault in CUTS]
        assert cuts
        assert all(cut.at_ms < option.safety_ms for cut in cuts)
        assert all(cut_links(cut, option.nodes) for cut in cuts)
        kinds.update({kind for cut in cuts for kind in kinds_of(cut, option.safety_ms)})
        flaps = [cut.amount for cut in cuts if cut.amount]
        assert all(0.1 <= hertz <= 10 for hertz in flaps)
        if option.safety_ms > LONG_MS:
            assert flaps
    assert set(kinds) == set(KINDS)
    assert all(kinds[kind] >= 80 for kind in KINDS)
    assert 0.03 < how_often(options, lambda o: o.safety_ms > LONG_MS) < 0.10
    assert how_often(options, lambda o: any(i.fault in CUTS and i.when for i in o.incidents)) > 0.2
    crashes = ("F10", "F11", "F12")
    plain = how_often(plans("group"), lambda o: has(o, *crashes))
    assert 0.1 < how_often(options, lambda o: has(o, *crashes)) < plain


def test_options_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"purge": "never"},
        {"purge": "stability", "protocol": "unicast", "senders": ()},
        {"retain": True},
        {"grow": 2},
        {"purge": "stability", "grow": 0},
        {"partitions": True},
        {"nodes": NODES_MAX + 1},
    ):
        with pytest.raises(UsageError):
            Options(seed=1, **changes)  # type: ignore[arg-type]
