"""GroupViews and ViewChange at one member: frames in, frames and signals out."""

from __future__ import annotations

from ringcast.core.view_change import Begin, Freeze
from ringcast.model import ViewId
from ringcast.protocols.views.layer import Phase
from ringcast.wire import changes as wire
from support.view_side import A, B, C, Side


def test_a_view_to_be_finished_begins_before_the_streams_freeze_again() -> None:
    side = Side(B)
    side.join(ViewId(A, 2), A, B, C)
    first, second = ViewId(A, 3), ViewId(A, 4)
    side.flush(first, A, B)
    side.hear(A, wire.Propose(second, (A, B)))
    side.signals.clear()
    side.hear(A, wire.Finish(second, first))
    assert [type(signal) for signal in side.signals] == [Begin, Freeze]
    assert side.layer.phase is Phase.MEMBER
