"""Which failures are alike: the same rule, in the same state.

The state is the phase of the run and the words of the failure, without whose it was and which
numbers it met: what is left of a thousand failing seeds is a handful of lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ringcast.trace.rows import PHASE

if TYPE_CHECKING:
    from ringcast.sim.runner import Failure
    from ringcast.trace.rows import Trace

STATE_CHARACTERS_MAX = 160
_MEMBER = re.compile(r"\b[A-J](#\d+)?\b")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def state_of(failure: Failure, trace: Trace) -> str:
    """What this failure has in common with others."""
    seen = failure.rows[-1].run_idx if failure.rows else len(trace.rows)
    phase = "start"
    for row in trace.rows[: seen + 1]:
        if row.event == PHASE:
            phase = row.kind
    words = _NUMBER.sub("n", _MEMBER.sub("M", failure.text))
    return f"{phase}: {' '.join(words.split())}"[:STATE_CHARACTERS_MAX]
