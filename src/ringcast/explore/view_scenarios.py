"""What `ringcast explore views` explores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.explore.explorer import explore
from ringcast.explore.view_steps import Script, explore_script
from ringcast.explore.view_world import Kind, Scenario
from ringcast.explore.views import Views
from ringcast.model import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.explore.explorer import Report

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM

SCENARIOS: dict[str, Scenario | Script] = {
    each.name: each
    for each in (
        Scenario("crash", ("ABC",), (Kind(0, FIFO),)),
        Scenario("crash, uniform", ("ABC",), (Kind(0, UNIFORM),)),
        Scenario("crash, not retained", ("ABC",), (Kind(0, FIFO, 1, False),)),
        Scenario("join", ("AB", "C"), (Kind(1, FIFO),)),
        Scenario("two parts", ("AB", "CD"), (Kind(1, FIFO),), 1),
        Scenario(
            "two parts, again",
            ("AB", "CD"),
            (Kind(1, FIFO),),
            crashes=0,
            targets=("ABCD", "BACD", "CABD", "CD", "BA"),
        ),
        Scenario("three parts", ("A", "B", "C"), (Kind(0, UNIFORM),)),
        Scenario("leave", ("ABC",), (Kind(1, FIFO),), leaver="B"),
        Script("nodes crash", ("ABC",), crashes="C", unheard="CA"),
        Script("nodes crash, retained", ("ABC",), crashes="C", unheard="CA", retains=True),
        Script("nodes join", ("AB",), joins="C", unheard="BA"),
        Script("nodes of two parts", ("AB", "CD"), meets=True, unheard="BA DC"),
        Script("nodes of three parts", ("A", "B", "C"), meets=True),
        Script("nodes leave", ("ABC",), leaves="B", unheard="BC"),
        Script("coordinator leaves", ("ABC",), leaves="A", unheard="AC"),
        Script("state transfer", ("AB",), joins="C", unheard="BA", has_state=True),
        Script("full window", ("ABC",), crashes="C", idle="B", messages=3, capacity=2),
        Script("full window, join", ("AB",), joins="C", idle="B", messages=3, capacity=2),
        Script("large message", ("ABC",), crashes="C", idle="B", size=2000, capacity=2),
        Script("large message, join", ("AB",), joins="C", idle="B", size=2000, capacity=2),
    )
}
"""Members that propose whatever they like, in every order; then whole nodes, through one change."""


def explore_views(
    scenario: Scenario | Script, parts: Mapping[str, Any] | None = None, **limits: Any
) -> Report:
    """`parts`: classes with one rule changed. Of members with simple streams: system, follower,
    proposer; of whole nodes: layers, as `build_node` takes them."""
    if isinstance(scenario, Script):
        return explore_script(scenario, parts, **limits)
    found = dict(parts or {})
    return explore(found.pop("system", Views)(scenario, **found), **limits)
