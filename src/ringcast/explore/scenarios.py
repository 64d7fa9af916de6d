"""The scenarios of each `ringcast explore` command: who is there, what is sent, what may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.explore.multicast import MulticastSystem
from ringcast.explore.system import Fault, Scenario
from ringcast.explore.unicast import UnicastSystem
from ringcast.model import Stream

if TYPE_CHECKING:
    from ringcast.explore.system import NodeSystem


def row(faults: str = "", **terms: Any) -> dict[str, Any]:
    """Terms of a scenario. A fault that is named twice may strike twice."""
    names = faults.split()
    return {"faults": {Fault[name]: names.count(name) for name in names}, **terms}


def table(
    system: type[NodeSystem[Any, Any]], rows: dict[str, dict[str, Any]], **terms: Any
) -> dict[str, Scenario]:
    """By name. `terms` are for all rows that do not say otherwise."""
    return {name: Scenario(system=system, name=name, **{**terms, **rows[name]}) for name in rows}


SCENARIOS = {
    "multicast": table(
        MulticastSystem,
        {
            "any timer": row("LOSS", size=2, patient=False),
            "two senders": row("LOSS", size=2, senders=(0, 1), messages=1),
            "duplicate": row("DUPLICATE"),
            "haste": row("HASTE"),
            "loss": row("LOSS"),
            "uniform": row("DUPLICATE", stream=Stream.UNIFORM),
            "uniform loss": row("LOSS", stream=Stream.UNIFORM),
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
}
"""By command, by name."""
