"""Facts in files: what is read back is what was written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ringcast.trace.files import facts_from_values, facts_to_values
from ringcast.trace.rows import Facts


@pytest.mark.parametrize(
    "facts",
    [
        Facts(protocol="unicast", expiry_ns=9, gst_ns=None),
        Facts(
            protocol="group",
            seed=7,
            purge="retained",
            capacity={"a#1": 3},
            stopped_members=frozenset({"b#2"}),
            late_members=frozenset({"a#1"}),
            component={"a#1": 1},
        ),
    ],
    ids=lambda facts: facts.protocol,
)
def test_what_is_written_is_read(facts: Facts) -> None:
    assert facts_from_values(json.loads(json.dumps(facts_to_values(facts)))) == facts


def test_what_is_unknown_is_ignored_and_what_is_missing_has_its_default() -> None:
    read = facts_from_values({"protocol": "group", "mood": "good", "nodes": 4})
    assert read == Facts(protocol="group", nodes=4)
    assert facts_from_values({}) == Facts()


def test_a_round_lasts_as_long_as_the_longest_pause_between_reports() -> None:
    """Seed 9 of groups with reports: s is longer than τ, and one member reported too early."""
    facts = Facts(
        run="", protocol="group", purge="stability", delta_ns=1, tau_ns=10, stability_ns=40
    )
    assert facts.round_bound_ns == 40 + 2 + 40 + 1
    assert replace(facts, tau_ns=100).round_bound_ns == 40 + 2 + 100 + 1
