"""Blocking groups on real sockets for tests: several members in one process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from loopback_groups import DEADLINE_S, PATIENT

from ringcast import blocking
from ringcast.aio.send_queue import PARCEL_BYTES
from ringcast.aio.sources import ListSource
from ringcast.config import DISCOVERY_WAIT_MIN_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE = [b"x" * (PARCEL_BYTES + 1)]


@contextmanager
def members(count: int, **options: Any) -> Iterator[list[blocking.Group]]:
    """So many, in the view in their order; options for all or per member."""
    per_member = options.pop("per_member", [{}] * count)
    membership = options.pop("membership", PATIENT)
    groups: list[blocking.Group] = []
    with ExitStack() as stack:
        for at in range(count):
            wait_s = DISCOVERY_WAIT_MIN_S if at == 0 else DEADLINE_S
            joining = blocking.join(
                "test",
                name="ABCDEF"[at],
                discovery=ListSource([group.me.address for group in groups]),
                membership=replace(membership, discovery_wait_s=wait_s),
                **options,
                **per_member[at],
            )
            groups.append(stack.enter_context(joining))
        yield groups


@contextmanager
def threads(count: int = 8) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def until(condition: Callable[[], object]) -> None:
    """Another thread is about to make it true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)  # let it


def read(group: blocking.Group, count: int) -> list[tuple[str, bytes]]:
    return [(message.sender.name, message.payload) for message in islice(group, count)]


def layer(group: blocking.Group, name: str) -> Any:
    return group.stats()[name]


def engines() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ringcast")]
