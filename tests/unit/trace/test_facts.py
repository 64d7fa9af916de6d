"""Facts in files: what is read back is what was written, of each kind of run."""

from __future__ import annotations

import json

import pytest
from ringcast.rules.uniform_liveness import HeirFacts, UniformFacts

from ringcast.rules.membership import GroupFacts
from ringcast.trace.facts import facts_from_values, facts_to_values
from ringcast.trace.rows import Facts

COMMON = {"seed": 7, "tau_ns": 5, "capacity": {"a#1": 3}, "stopped_members": frozenset({"b#2"})}
OF_GROUPS = {**COMMON, "nodes": 3, "late_members": frozenset({"a#1"}), "component": {"a#1": 1}}


@pytest.mark.parametrize(
    "facts",
    [
        Facts(**COMMON),
        Facts(protocol="unicast", expiry_ns=9, gst_ns=None),
        Facts(protocol="multicast", purge="retained", stability_ns=4),
        GroupFacts(protocol="group", **OF_GROUPS),
        HeirFacts(protocol="group", purge="retained", **OF_GROUPS),
        UniformFacts(protocol="uniform", leave_ns=8, state_ns=2, **OF_GROUPS),
    ],
    ids=lambda facts: f"{type(facts).__name__} {facts.protocol}",
)
def test_what_is_written_is_read(facts: Facts) -> None:
    read = facts_from_values(json.loads(json.dumps(facts_to_values(facts))))
    assert type(read) is type(facts)
    assert read == facts


def test_what_is_unknown_is_ignored_and_what_is_missing_has_its_default() -> None:
    read = facts_from_values({"protocol": "group", "mood": "good", "nodes": 4})
    assert read == GroupFacts(protocol="group", nodes=4)
    assert facts_from_values({}) == Facts()
