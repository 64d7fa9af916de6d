"""What receivers of runs have in common: into the window, out of it as events, and why not yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.events import Delivered, FragmentsDelivered
from ringcast.model import Run

if TYPE_CHECKING:
    from ringcast.events import Event
    from ringcast.model import Member, Stream, ViewId
    from ringcast.protocols.repair import Repair
    from ringcast.window.assembler import Assembler
    from ringcast.window.windows import ReceiveWindow
    from ringcast.wire.frames import Data, UnicastData


def accept(
    data: Data | UnicastData,
    window: ReceiveWindow,
    assembler: Assembler,
    repair: Repair,
    now: int,
    datagram: int | None,
) -> int:
    """Offer a run of this datagram to the window and note what it shows to be missing; how many
    were new."""
    first, last = data.first, data.last
    if data.more:
        acceptable_last = min(last, window.low + window.capacity_max)
        assembler.mark(range(max(first, window.delivered + 1), acceptable_last + 1))
    new = 0
    if window.has_slot(first, last):
        new = window.add_run(first, data.payloads)
    repair.saw_data(window, first, last, now, datagram)
    return new


def deliver(
    sender: Member,
    stream: Stream,
    assembler: Assembler,
    first: int,
    payloads: list[bytes],
    view_id: ViewId,
    events: list[Event],
    epoch: int = 0,
) -> None:
    """Whole messages as they are; fragments are put together first."""
    if assembler.is_idle:
        events.append(Delivered(sender, Run(stream, first, payloads), view_id, epoch))
        return
    last = first + len(payloads) - 1
    for start, messages in assembler.assemble(first, payloads):
        if start > first:
            events.append(FragmentsDelivered(sender, stream, first, start - 1, view_id, epoch))
        events.append(Delivered(sender, Run(stream, start, messages), view_id, epoch))
        first = start + len(messages)
    if first <= last:
        events.append(FragmentsDelivered(sender, stream, first, last, view_id, epoch))


def explain_window(what: str, window: ReceiveWindow, repair: Repair, now: int) -> list[str]:
    """Why messages that have arrived are not delivered yet."""
    reasons = []
    at = repair.next_ask()
    if at is not None:
        gap = repair.gap_of(window.received + 1)
        (missing,) = window.missing_within(gap.first, gap.last, 1)
        first, last = missing[0], missing[-1]
        seqnos = f"{first}" if first == last else f"{first}..{last}"
        reasons.append(
            f"{what}: {seqnos} missing for {seconds(now - gap.since)}, asked "
            f"{gap.asked} times, next in {seconds(max(0, at - now))}; "
            f"{window.size - window.ready} later messages wait for it"
        )
    if window.ready:
        reasons.append(
            f"{what}: {window.ready} messages from {window.delivered + 1} on are "
            f"ready and wait for this member's application"
        )
    return reasons


def seconds(duration: int) -> str:
    """Nanoseconds for people."""
    return f"{duration / 1e9:.1f} s"
