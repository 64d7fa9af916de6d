"""Which of its two sides a member's frame of a change is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.core.view_change import Cut
from ringcast.protocols.views.frames import Propose, State
from ringcast.wire.changes import Finish, Flushed, Install, Installed, Refuse

if TYPE_CHECKING:
    from ringcast.model import Member
    from ringcast.protocols.views.follower import Follower
    from ringcast.protocols.views.frames import ChangeFrame, Wishes
    from ringcast.protocols.views.proposer import Proposer


def receive(
    follower: Follower, proposer: Proposer, source: Member, frame: ChangeFrame, out: Wishes
) -> None:
    match frame:
        case Propose():
            follower.on_propose(source, frame, out)
        case State():
            proposer.on_state(source, frame, out)
        case Refuse():
            proposer.on_refuse(frame)
        case Finish():
            follower.on_finish(source, frame, out)
        case Cut():
            follower.on_cut(source, frame, out)
        case Flushed():
            proposer.on_flushed(source, frame, out)
        case Install():
            follower.on_install(source, frame, out)
        case Installed():
            proposer.on_installed(source, frame)
