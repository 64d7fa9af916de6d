"""Waiting: for whom a member that has promised a proposal waits, and for whom no more.

what comes                                   then
nothing for PATIENCE                         verify the proposer, and who stands before me; who
                                             is next verifies all, and so do all
nothing for twice that                       wait no more (`passed`): the next proposes
nothing again                                nor for that one; then for two more, for four
its proposer is in a later view without me   nothing comes of what I promised: the next proposes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.protocols.views.election import coordinator

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ringcast.model import Member, View


class Waiting:
    def __init__(self) -> None:
        self.passed: set[Member] = set()
        """Who was waited for in vain."""
        self.times = 0
        """How often."""

    def begin(self) -> None:
        """Something was promised, or a view has begun."""
        self.passed.clear()
        self.times = 0

    def end(self, proposer: Member) -> None:
        """Nothing comes of its proposal."""
        self.passed.add(proposer)
        self.times = max(self.times, 2)

    def lose_patience(
        self, proposer: Member, view: View, lost: AbstractSet[Member], me: Member
    ) -> None:
        self.times += 1
        if self.times <= 2 and proposer != me:
            self.passed |= {proposer} if self.times == 2 else set()
            return
        for _ in range(1 << max(0, min(self.times - 3, 9))):
            first = coordinator(view, lost | self.passed, me)
            if first != me:
                self.passed.add(first)
