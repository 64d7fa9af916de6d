"""The scenarios of each `ringcast explore` command: who is there, what is sent, what may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.explore.join import JoinSystem
from ringcast.explore.multicast import MulticastSystem
from ringcast.explore.system import Fault, Scenario
from ringcast.explore.unicast import UnicastSystem
from ringcast.explore.uniform import UniformSystem

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
            "any timer": row("LOSS", founders=2, patient=False),
            "two senders": row("LOSS", founders=2, senders=(0, 1), messages=1),
            "crash": row("CRASH"),
            "duplicate": row("DUPLICATE"),
            "haste": row("HASTE"),
            "loss": row("LOSS"),
            "join": row("JOIN", founders=2, joiners=1),
        },
    ),
    "join": table(
        JoinSystem,
        {
            "quiet": row(),
            "loss": row("LOSS"),
            "haste": row("HASTE"),
            "joiner": row("CRASH", mortals=(2,)),
            "sender": row("CRASH", mortals=(1,)),
            "coordinator": row("CRASH", mortals=(0,)),
        },
        founders=2,
        joiners=1,
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
        founders=2,
        senders=(0,),
        mortals=(1,),
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
        founders=2,
        senders=(0,),
    ),
    "uniform": table(
        UniformSystem,
        {
            "crash": row("CRASH"),
            "two messages": row("CRASH", messages=2),
            "two crashes": row("CRASH CRASH"),
            "coordinator sends": row("CRASH CRASH", senders=(0,)),
            "loss": row("CRASH LOSS"),
            "leave": row("CRASH LEAVE", leaver=1),
            "coordinator leaves": row("CRASH LEAVE", senders=(0,)),
            "late": row(
                "CRASH CRASH",
                founders=4,
                mortals=(1, 3),
                opening=("B: sends #1", "CRASH of B", *(f"{name}: installs" for name in "ACD")),
            ),
            "two senders": row("CRASH", senders=(0, 1)),
            "alone": row("CRASH JOIN", founders=1, joiners=1, senders=(0,), messages=2),
            "join": row("CRASH JOIN", founders=2, joiners=1),
            "last survivor": row("CRASH CRASH JOIN", founders=2, joiners=1),
            "four": row("CRASH CRASH", founders=4, opening=("B: sends #1", "CRASH of B")),
        },
        messages=1,
        capacity=2,
    ),
}
"""By command, by name."""
