"""The scenarios of each `ringcast explore` command: who is there, what is sent, what may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ringcast.explore.join import JoinSystem
from ringcast.explore.multicast import MulticastSystem
from ringcast.explore.system import Fault, Scenario
from ringcast.explore.unicast import UnicastSystem
from ringcast.explore.uniform import UniformSystem

if TYPE_CHECKING:
    from ringcast.explore.system import NodeSystem

Row: TypeAlias = dict[str, Any]

TWO: Row = {"founders": 2}
JOINED: Row = {"founders": 2, "joiners": 1}
LOSS: Row = {"faults": {Fault.LOSS: 1}}
CRASH: Row = {"faults": {Fault.CRASH: 1}}
PAIR: Row = {"founders": 2, "senders": (0,), "mortals": (1,)}
WIDE: Row = PAIR | {"capacity": 2}
BOTH_WAYS: Row = WIDE | {"senders": (0, 1), "messages": 1}
LASTING: Row = PAIR | {"lasting": True}
ONE: Row = {"messages": 1, "capacity": 2}

TABLE: dict[str, tuple[type[NodeSystem[Any, Any]], dict[str, Row]]] = {
    "multicast": (
        MulticastSystem,
        {
            "any timer": LOSS | TWO | {"patient": False},
            "two senders": LOSS | TWO | {"senders": (0, 1), "messages": 1},
            "crash": CRASH,
            "duplicate": {"faults": {Fault.DUPLICATE: 1}},
            "haste": {"faults": {Fault.HASTE: 1}},
            "loss": LOSS,
            "join": JOINED | {"faults": {Fault.JOIN: 1}},
        },
    ),
    "join": (
        JoinSystem,
        {
            "quiet": JOINED,
            "loss": JOINED | LOSS,
            "haste": JOINED | {"faults": {Fault.HASTE: 1}},
            "joiner": JOINED | CRASH | {"mortals": (2,)},
            "sender": JOINED | CRASH | {"mortals": (1,)},
            "coordinator": JOINED | CRASH | {"mortals": (0,)},
        },
    ),
    "unicast": (
        UnicastSystem,
        {
            "any timer": PAIR | LOSS | {"patient": False},
            "two ways": BOTH_WAYS | LOSS,
            "loss": WIDE | LOSS,
            "duplicate": WIDE | {"faults": {Fault.DUPLICATE: 1}},
            "restart": PAIR | {"faults": {Fault.RESTART: 1}},
            "crash": WIDE | CRASH,
            "closing": PAIR | {"faults": {Fault.CLOSE: 1, Fault.IDLE: 2, Fault.LOSS: 1}},
            "expiry": PAIR | {"faults": {Fault.IDLE: 4}},
            "stale": LASTING | {"faults": {Fault.IDLE: 4}},
        },
    ),
    "sync": (
        UnicastSystem,
        {
            "drop": LASTING | {"faults": {Fault.DROP: 2}},
            "operator": LASTING | {"faults": {Fault.SYNC: 1, Fault.DROP: 1}},
            "give up": LASTING | {"faults": {Fault.DROP: 1, Fault.GIVE_UP: 1}},
            "drop and loss": PAIR | {"faults": {Fault.DROP: 1, Fault.LOSS: 1}},
            "drop and duplicate": PAIR | {"faults": {Fault.DROP: 1, Fault.DUPLICATE: 1}},
            "drop two ways": BOTH_WAYS | {"faults": {Fault.DROP: 2}},
        },
    ),
    "uniform": (
        UniformSystem,
        {
            "crash": ONE | CRASH,
            "two messages": ONE | CRASH | {"messages": 2},
            "two crashes": ONE | {"faults": {Fault.CRASH: 2}},
            "coordinator sends": ONE | {"senders": (0,), "faults": {Fault.CRASH: 2}},
            "loss": ONE | {"faults": {Fault.CRASH: 1, Fault.LOSS: 1}},
            "leave": ONE | {"faults": {Fault.CRASH: 1, Fault.LEAVE: 1}, "leaver": 1},
            "coordinator leaves": ONE
            | {"senders": (0,), "faults": {Fault.CRASH: 1, Fault.LEAVE: 1}},
            "late": ONE
            | {
                "founders": 4,
                "faults": {Fault.CRASH: 2},
                "mortals": (1, 3),
                "opening": ("B: sends #1", "CRASH of B", *(f"{name}: installs" for name in "ACD")),
            },
            "two senders": ONE | CRASH | {"senders": (0, 1)},
            "alone": JOINED
            | {
                "founders": 1,
                "senders": (0,),
                "capacity": 2,
                "faults": {Fault.CRASH: 1, Fault.JOIN: 1},
            },
            "join": ONE | JOINED | {"faults": {Fault.CRASH: 1, Fault.JOIN: 1}},
            "last survivor": ONE | JOINED | {"faults": {Fault.CRASH: 2, Fault.JOIN: 1}},
            "four": ONE
            | {
                "founders": 4,
                "faults": {Fault.CRASH: 2},
                "opening": ("B: sends #1", "CRASH of B"),
            },
        },
    ),
}

SCENARIOS = {
    command: {name: Scenario(system=system, name=name, **row) for name, row in rows.items()}
    for command, (system, rows) in TABLE.items()
}
"""By command, by name."""
