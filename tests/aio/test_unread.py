"""What waits for the application, read in the three ways there are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from ringcast import Address, Delivered, GapSkipped, Member, Run, Stream, Undeliverable, ViewId
from ringcast.aio.read_queue import NOTICES_MAX, ReadQueue
from ringcast.events import ViewInstalled
from ringcast.model import View

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = (Member(Address("127.0.0.1", 7000 + at), 1, "AB"[at]) for at in range(2))
VIEW = View(ViewId(A, 1), (A, B))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "ringcast"):
        yield caplog


def messages(first: int, *payloads: bytes, epoch: int = 0) -> Delivered:
    return Delivered(B, Run(Stream.FIFO, first, list(payloads)), VIEW.id, epoch)


def lost(seqno: int) -> GapSkipped:
    return GapSkipped(B, 2, seqno, seqno)


def test_everything_in_the_order_it_came() -> None:
    unread = ReadQueue(A)
    items = [ViewInstalled(VIEW), messages(1, b"1"), lost(2), messages(3, b"3")]
    unread.watchers += 1
    for item in items:
        unread.items.append(item) if isinstance(item, Delivered) else unread.add_notice(item)
    assert [unread.take() for _ in items] == items
    assert unread.take() is None
    assert not unread.items


def test_the_three_ways_to_read_share_one_place() -> None:
    unread = ReadQueue(A)
    unread.items.append(messages(1, b"1", b"2", b"3", epoch=5))
    unread.items.append(messages(4, b"4", b"5"))
    first = unread.take_message()
    assert first is not None
    assert (first.seqno, first.payload, first.to_me) == (1, b"1", True)
    assert unread.take() == messages(2, b"2", b"3", epoch=5)
    second = unread.take_message()
    assert second is not None
    assert (second.seqno, second.payload, second.to_me) == (4, b"4", False)
    assert unread.take_run() == messages(5, b"5")
    assert unread.take_message() is None
    assert unread.take_run() is None


def test_readers_of_messages_pass_over_notices() -> None:
    unread = ReadQueue(A)
    for _ in range(2):
        unread.add_notice(ViewInstalled(VIEW))
        unread.items.append(messages(1, b"1"))
    message = unread.take_message()
    assert message is not None
    assert message.payload == b"1"
    assert unread.take_run() == messages(1, b"1")
    assert unread.stats() == {
        "runs": 0,
        "bytes": 0,
        "notices": 0,
        "notices_dropped": 0,
        "unread_headers": 0,
    }


def test_a_loss_that_nobody_watches_for_is_logged_once(warnings: pytest.LogCaptureFixture) -> None:
    unread = ReadQueue(A)
    unread.add_notice(Undeliverable(B, 2, 4, 7, "B has answered nothing"))
    unread.add_notice(lost(9))
    texts = [
        "A: messages 4..7 to B were given up and may not have arrived: B has answered nothing",
        "A: messages 9..9 of B to this member are lost",
    ]
    assert warnings.messages == texts
    assert unread.take_message() is None
    unread.tell_losses()
    assert warnings.messages == texts


def test_a_loss_that_was_read_is_not_logged(warnings: pytest.LogCaptureFixture) -> None:
    unread = ReadQueue(A)
    unread.watchers += 1
    unread.add_notice(lost(1))
    unread.add_notice(lost(2))
    assert unread.take() == lost(1)
    unread.watchers -= 1
    unread.tell_losses()
    assert warnings.messages == ["A: messages 2..2 of B to this member are lost"]
    assert unread.take() == lost(2)  # whoever comes back still gets it
    unread.tell_losses()
    assert len(warnings.messages) == 1


def test_a_loss_that_a_reader_of_messages_passes_over_is_logged(
    warnings: pytest.LogCaptureFixture,
) -> None:
    unread = ReadQueue(A)
    unread.watchers += 1
    unread.add_notice(lost(1))
    unread.items.append(messages(2, b"2"))
    assert unread.take_run() == messages(2, b"2")
    assert warnings.messages == ["A: messages 1..1 of B to this member are lost"]


def test_notices_are_bounded_and_the_oldest_go(warnings: pytest.LogCaptureFixture) -> None:
    unread = ReadQueue(A)
    unread.watchers += 1
    unread.items.append(messages(1, b"1", b"2"))
    assert unread.take_message() is not None
    for seqno in range(1, NOTICES_MAX + 3):
        unread.add_notice(lost(seqno))
    assert unread.stats() == {
        "runs": 1,
        "bytes": 2,
        "notices": NOTICES_MAX,
        "notices_dropped": 2,
        "unread_headers": 0,
    }
    overrun, *losses = warnings.messages
    assert overrun.startswith(f"A: {NOTICES_MAX} notices wait and nobody reads them")
    assert losses == [
        f"A: messages {seqno}..{seqno} of B to this member are lost" for seqno in (1, 2)
    ]
    assert unread.take() == messages(2, b"2")  # messages are never dropped
    assert unread.take() == lost(3)
