"""What rows tell of view changes, from what a Node tells its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.core.view_change import Begin, Freeze
from ringcast.trace.rows import cut_text, member_key, naming_id, naming_view

if TYPE_CHECKING:
    from ringcast.core.effects import ViewAgreed
    from ringcast.model import Member


def columns_of(change: ViewAgreed | Freeze | Begin, me: Member) -> dict[str, Any]:
    """Of a proposal that this member promises, or of a view that it installs."""
    match change:
        case Freeze(id, members):
            return {**naming_id(id), "members": tuple(map(member_key, members))}
        case Begin(view, cut):
            part = cut.part_of(me)
            together = tuple(map(member_key, part.members))
            cuts = tuple(sorted(cut_text(*each) for each in part.cuts.items()))
            return {**naming_view(view), "part": together, "cut": cuts}
        case _:
            return naming_view(change.view)
