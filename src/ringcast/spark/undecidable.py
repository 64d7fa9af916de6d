"""What traces of real members cannot show, and why.

Each member records for itself: nothing orders the rows of two members, their clocks differ, and
nobody knows when the network had healed. A simulation's harness knows all of that.
"""

from __future__ import annotations

_WHY = {
    "a member that is killed writes nothing down any more": "G3",
    "needs the order of the whole run, which only a simulation has": "U3",
    "counts from the end of the faults, which only a simulation knows": (
        "G8 N-L1 N-L2 U5 U7 U-L1 V-L1 V-L2 V-L3 V-L4 V-L5 V-L6"
    ),
    "members do not record when a send is blocked": "N-L3 N-L5",
    "members do not record messages to one member": (
        "S1 S2 S3 S4 S5 S6 S7 S8 S9 S-L1 S-L2 S-L3 S-L4 S-L5 S-L6 Y1 Y2 Y3 Y4 Y5 Y-L1 Y-L2 Y-L3"
    ),
    "members do not record their application's state": "T1 T2 T3 T4 T-L1",
}

UNDECIDABLE_IF_RECORDED = {name: why for why, names in _WHY.items() for name in names.split()}
"""Why, by id."""
