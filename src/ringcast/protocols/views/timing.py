"""How long members wait for each other in a view change."""

from __future__ import annotations

REPEAT_START_NS = 40_000_000
REPEAT_MAX_NS = 80_000_000
"""How often whoever asks for a step of a change repeats itself: at first, and at the least. So it
asks seven times before it loses patience: a loss of a tenth leaves hardly anybody out."""

REQUEST_MAX_NS = 500_000_000
"""How often, at the least, a member repeats what it asks of its coordinator."""

PATIENCE_NS = 500_000_000
"""How long a member may leave a proposal unanswered, or a proposer those who have promised."""

REFUSAL_PATIENCE_NS = PATIENCE_NS // 2
"""How much longer who refuses is waited for: it verifies first whom it takes to live."""

JITTER_NS = 20_000_000
"""Proposers in each other's way wait for so long, up to twice that; each time twice as long."""
