"""What rows tell of view changes, from what a Node tells its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.core.view_change import Freeze
from ringcast.trace.rows import cut_text, member_key, naming_id, naming_view

if TYPE_CHECKING:
    from ringcast.core.view_change import Begin
    from ringcast.model import Member


def columns_of(change: Freeze | Begin, me: Member) -> dict[str, Any]:
    """Of a proposal that this member promises, or of a view that it installs."""
    if isinstance(change, Freeze):
        return {**naming_id(change.id), "members": tuple(map(member_key, change.members))}
    part = change.cut.part_of(me)
    together = tuple(map(member_key, part.members))
    cuts = tuple(sorted(cut_text(*each) for each in part.cuts.items()))
    return {**naming_view(change.view), "part": together, "cut": cuts}
