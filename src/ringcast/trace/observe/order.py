"""Total messages of a member: what it accepts, and what its application takes of the one order."""

from __future__ import annotations

from typing import Any, TypeGuard

from ringcast.events import Delivered, Event, ViewInstalled
from ringcast.model import Origin, Stream
from ringcast.trace.rows import member_key, naming, naming_id


def is_total(event: Event) -> TypeGuard[Delivered]:
    return isinstance(event, Delivered) and event.run.stream is Stream.TOTAL


def said_of(event: Delivered) -> str:
    """What an `order` row says of messages in its `detail`."""
    return ("carried" * event.carried + " seen" * event.seen).strip()


def order_of(event: Delivered) -> dict[str, Any]:
    """The columns of an `order` row: the numbers, and the position of the first."""
    run = event.run
    place = {"seqno": run.first, "seqno2": run.last, "low": event.position}
    named = naming(Origin(event.sender, Stream.TOTAL))
    return {**named, **place, "detail": said_of(event), **naming_id(event.view_id)}


def shown_of(event: ViewInstalled) -> dict[str, Any]:
    """The columns of a `shown` row: where the view stands in the order, who has come to it from
    elsewhere, and who is gone."""
    came, gone = (tuple(map(member_key, members)) for members in (event.came, event.gone))
    return {**naming_id(event.view.id), "low": event.position, "members": came, "part": gone}
