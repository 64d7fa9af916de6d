"""The scenarios of each `ringcast explore` command: who is there, what is sent, what may happen."""

from __future__ import annotations

from typing import Any

from ringcast.explore.multicast import MulticastSystem
from ringcast.explore.system import Fault, NodeSystem, Scenario
from ringcast.explore.total import Orders
from ringcast.explore.unicast import UnicastSystem
from ringcast.explore.view_steps import ORDERED, Script
from ringcast.explore.views import Proposals
from ringcast.model import Stream


def row(faults: str = "", **terms: Any) -> dict[str, Any]:
    """Terms of a scenario. A fault that is named twice may strike twice."""
    names = faults.split()
    return {"faults": {Fault[name]: names.count(name) for name in names}, **terms}


def table(
    system: type[NodeSystem], rows: dict[str, dict[str, Any]], **terms: Any
) -> dict[str, Scenario]:
    """By name. `terms` are for all rows that do not say otherwise."""
    return {name: Scenario(system=system, name=name, **{**terms, **rows[name]}) for name in rows}


UNIFORM = Stream.UNIFORM

VIEWS: dict[str, Proposals | Script] = {
    each.name: each
    for each in (
        Proposals("crash", ("ABC",)),
        Proposals("crash, uniform", ("ABC",), stream=UNIFORM),
        Proposals("crash, not retained", ("ABC",), is_retained=False),
        Proposals("join", ("AB", "C"), "B"),
        Proposals("two parts", ("AB", "CD"), "B", proposals=1),
        Proposals(
            *("two parts, again", ("AB", "CD"), "B"),
            crashes=0,
            targets=("ABCD", "BACD", "CABD", "CD", "BA"),
        ),
        Proposals("three parts", ("A", "B", "C"), stream=UNIFORM),
        Proposals("leave", ("ABC",), "B", leaver="B"),
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

TOTAL: dict[str, Orders | Script] = {
    each.name: each
    for each in (
        Orders("one origin", ("ABC",), "B", proposals=1),
        Orders("sequencer sends", ("ABC",), "A", proposals=1),
        Orders("two origins", ("ABC",), "AC", proposals=1, crashes=0),
        Orders("two messages", ("ABC",), "B", messages=2, proposals=1, crashes=0),
        Orders("join", ("AB", "C"), "BC", proposals=1, crashes=0),
        Orders("joiner goes first", ("BC", "A"), "AB", proposals=1, crashes=0),
        Orders("three parts", ("A", "B", "C"), "AB", proposals=1, crashes=0),
        Orders("out and back", ("ABC",), "B", crashes=0),
        Script("sequencer dies", ("ABC",), crashes="A", unheard="AC", streams=ORDERED),
        Script("another dies", ("ABC",), crashes="C", unheard="AB", streams=ORDERED),
        Script("sequencer leaves", ("ABC",), leaves="A", unheard="AC", streams=ORDERED),
        Script("nodes join in order", ("AB",), joins="C", unheard="AB", streams=ORDERED),
        Script("nodes of two orders", ("AB", "C"), meets=True, unheard="BA", streams=ORDERED),
    )
}
"""Members that change their views however they like; then whole nodes, through one change."""

SCENARIOS: dict[str, Any] = {
    "multicast": table(
        MulticastSystem,
        {
            "any timer": row("LOSS", size=2, patient=False),
            "two senders": row("LOSS", size=2, senders=(0, 1), messages=1),
            "duplicate": row("DUPLICATE"),
            "haste": row("HASTE"),
            "loss": row("LOSS"),
            "uniform": row("DUPLICATE", stream=UNIFORM),
            "uniform loss": row("LOSS", stream=UNIFORM),
        },
    ),
    "unicast": table(
        UnicastSystem,
        {
            "any timer": row("LOSS", patient=False),
            "two ways": row("LOSS", senders=(0, 1), messages=1, capacity=2),
            "loss": row("LOSS", capacity=2),
            "duplicate": row("DUPLICATE", capacity=2),
            "restart": row("RESTART"),
            "crash": row("CRASH", capacity=2),
            "closing": row("CLOSE IDLE IDLE LOSS"),
            "expiry": row("IDLE IDLE IDLE IDLE"),
            "stale": row("IDLE IDLE IDLE IDLE", lasting=True),
        },
        size=2,
        senders=(0,),
    ),
    "sync": table(
        UnicastSystem,
        {
            "drop": row("DROP DROP", lasting=True),
            "operator": row("SYNC DROP", lasting=True),
            "give up": row("DROP GIVE_UP", lasting=True),
            "drop and loss": row("DROP LOSS"),
            "drop and duplicate": row("DROP DUPLICATE"),
            "drop two ways": row("DROP DROP", senders=(0, 1), messages=1, capacity=2),
        },
        size=2,
        senders=(0,),
    ),
    "views": VIEWS,
    "total": TOTAL,
}
"""By command, by name. Each has a description, and can be explored."""
