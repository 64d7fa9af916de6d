"""GilRingBuffer: many threads add by sequence number, one removes in order.

LOW: everything up to it is gone. HD: highest delivered. HR: highest received. The buffer holds
seqnos in (LOW, LOW + capacity]. JGroups calls this RingBuffer; rules RB1 to RB9 hold under
every interleaving of the steps below.

Theory of operation
-------------------
*Exactly one adder wins a seqno.* `tokens` holds one token for each seqno that may be added and
has not been. Taking it is one atomic step, so of any number of adders one succeeds, for ever: the
token comes back only as that of seqno + capacity, after the slot was freed. Comparing the slot
with "empty" instead, as the RingBuffer note does, lets an adder that was delayed between check
and compare-and-set fill a slot that has been emptied behind its back.

*HR is never stored.* A stored maximum is a read-modify-write, and of two racing adders the slower
would lower it. HR is the last mark in `present`, or HD where there is none. Marks stand only in
(LOW, LOW + capacity]: a token appears after LOW has made room for it, and a mark is wiped after HD
has passed it and before LOW does. Hence LOW <= HD <= HR <= LOW + capacity between any two steps.

*Only the consumer writes LOW, HD and ROOM*, in this order: HD, wipe marks, empty slots, LOW, put
tokens, ROOM. ROOM is LOW + capacity once the tokens are out. Who reads ROOM >= seqno and then
finds no token knows that somebody has added that seqno; LOW would tell it too early.

*No wake-up is missed.* A blocked adder hangs up a bell, then reads ROOM again. The consumer writes
ROOM, then looks for bells. Whichever comes second sees the other.

Steps
-----
Operations are generators that yield the name of a step just before they take it. Threads drive
them to their end; the explorer interleaves them in every possible way. Each step is one call into
C with int or identity keys, which no other thread can divide while the interpreter has a global
lock (GIL): GilRingBuffer needs no lock of its own, except inside the bell of an adder that sleeps.
Reading what only oneself writes is not a step. An adder that dies between CLAIM and MARK
(by an asynchronous exception) leaves its seqno missing: nobody can tell it from a slow one, unless
its own thread says so. Then the consumer fills the gap (`Consumer.fill`).
Use it as RingBuffer (threads.py), which adds a lock where the interpreter has none.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count, islice
from threading import Event
from time import monotonic
from typing import Final, Generic, TypeAlias, TypeVar, cast

from ringcast.checks import check_whole
from ringcast.config import CAPACITY_LIMIT
from ringcast.errors import GroupClosed, UsageError

T = TypeVar("T")
R = TypeVar("R")


class Bell(Event):
    """Rung to wake one blocked adder. Whoever sleeps on it says if it slept too long."""

    expired = False


Steps: TypeAlias = Generator[str | Event, None, R]
"""An operation: it yields the name of each step before it takes it, or an event to wait for, such
as a bell to sleep on."""

# Every step there is, and the operation of CPython that makes it indivisible.
CLAIM: Final = "take the token"  # dict.pop(int, False)
FILL: Final = "fill the slot"  # list[int] = item
MARK: Final = "mark it present"  # bytearray[int] = 1
FIND: Final = "look for the next message"  # bytearray.find(0, start, stop)
TAKE: Final = "read the slot"  # list[start:stop]
WRITE_HD: Final = "write HD"  # attribute store
WIPE: Final = "wipe the mark"  # bytearray[start:stop] = bytes of the same length
EMPTY: Final = "empty the slot"  # list[start:stop] = list of the same length
WRITE_LOW: Final = "write LOW"  # attribute store
PUT_TOKENS: Final = "put the next lap's token"  # dict.update(dict with int keys)
WRITE_ROOM: Final = "write ROOM"  # attribute store
COPY_BELLS: Final = "look for bells"  # dict.copy()
READ_ROOM: Final = "read ROOM"  # attribute load
HANG_BELL: Final = "hang up a bell"  # dict[Bell] = int; a Bell hashes by identity
READ_CLOSED: Final = "read CLOSED"  # attribute load
WRITE_CLOSED: Final = "write CLOSED"  # attribute store
READ_LOW: Final = "read LOW"  # attribute load
COPY_MARKS: Final = "copy the marks"  # bytes(bytearray)
READ_HD: Final = "read HD"  # attribute load
TAKE_HANDLE: Final = "take the consumer"  # list.pop()


def drive(steps: Steps[R]) -> R:
    """Run an operation that never sleeps to its end."""
    return cast("R", list(_steps_and_result(steps))[-1])


def _steps_and_result(steps: Steps[R]) -> Generator[str | Event | R, None, None]:
    """The result as one more step. No StopIteration is built to carry it: a third less time."""
    yield (yield from steps)


class GilRingBuffer(Generic[T]):
    """A bounded buffer of items by seqno: any thread adds, the holder of `consumer()` removes.

    A nullifying buffer frees a slot when its item is removed. A retaining one keeps removed items
    until `Consumer.stable`, so that they can be retransmitted. Which one is fixed for life: mixing
    the two would leave items below LOW that block their slot for ever.
    """

    __slots__ = (
        "_bells",
        "_capacity",
        "_closed",
        "_handles",
        "_hd",
        "_low",
        "_nullify",
        "_present",
        "_room",
        "_slots",
        "_tickets",
        "_tokens",
    )

    def __init__(self, capacity: int, *, offset: int = 0, nullify: bool = True) -> None:
        """The first seqno is offset + 1."""
        check_whole("capacity", capacity, 1, CAPACITY_LIMIT)
        self._capacity = capacity
        self._nullify = nullify
        self._low = offset
        self._hd = offset
        self._room = offset + capacity
        self._slots: list[T | None] = [None] * capacity
        self._present = bytearray(capacity)
        self._tokens = dict.fromkeys(range(offset + 1, offset + capacity + 1), True)
        self._bells: dict[Bell, int] = {}
        self._closed = False
        self._handles = [Consumer(self)]
        self._tickets = count(offset + 1)

    # What any thread may call.

    def ticket(self) -> int:
        """The next seqno, handed out once: for threads that send."""
        return next(self._tickets)

    def take_ticket(self, held: list[int]) -> None:
        """Append the next seqno, in the step that hands it out: whoever is interrupted finds it
        there, and can say that it is not to be waited for."""
        held.extend(islice(self._tickets, 1))

    def add(self, seqno: int, item: T) -> bool:
        """True if the item is in now; False, and nothing changed, for a duplicate or no room.

        Room that is being made at this instant may be refused as if it were not there yet.
        """
        self._check_addable(item)
        return drive(self.whole(self.add_steps(seqno, item)))

    def add_waiting(self, seqno: int, item: T, timeout: float | None = None) -> bool:
        """As `add`, but wait for room: False for a duplicate, or after `timeout` seconds.

        Raises GroupClosed if the buffer is closed, also while waiting.
        """
        self._check_addable(item)
        # The common case is the first round of add_waiting_steps: read ROOM, then claim.
        if seqno <= self._room:
            return drive(self.whole(self.add_steps(seqno, item)))
        deadline = None if timeout is None else monotonic() + timeout
        for step in _steps_and_result(self.whole(self.add_waiting_steps(seqno, item))):
            if isinstance(step, Bell):
                left = None if deadline is None else max(0.0, deadline - monotonic())
                step.expired = not step.wait(left)
        return step is True

    def consumer(self) -> Consumer[T]:
        """The handle that removes. There is one: two removers would deliver one item twice and
        lose another, so a second call raises UsageError. It may move between threads, but only
        one at a time may use it."""
        return drive(self.whole(self.handle_steps()))

    def missing(self, limit: int) -> list[range]:
        """The gaps in (HD, HR], ascending, at most `limit` of them.

        Beside other threads: all that is named was missing at one moment during the call.
        """
        hd, marks = drive(self.whole(self.look_steps()))
        gaps: list[range] = []
        start = marks.find(0)
        while start >= 0 and len(gaps) < limit:
            stop = marks.find(1, start)
            gaps.append(range(hd + 1 + start, hd + 1 + stop))
            start = marks.find(0, stop)
        return gaps

    def close(self) -> None:
        """Refuse new items and wake all who wait. What is in the buffer can still be removed; an
        add that runs at this moment may still succeed."""
        drive(self.whole(self.close_steps()))

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def low(self) -> int:
        """Everything up to this seqno is gone."""
        return self._low

    @property
    def hd(self) -> int:
        """The highest seqno removed."""
        return self._hd

    @property
    def hr(self) -> int:
        """The highest seqno received."""
        hd, marks = drive(self.whole(self.look_steps()))
        return hd + len(marks)

    @property
    def size(self) -> int:
        """How many items wait in (HD, HR]."""
        return drive(self.whole(self.look_steps()))[1].count(1)

    # The operations, step by step.

    def whole(self, steps: Steps[R]) -> Steps[R]:
        """One operation, as threads run it."""
        return steps

    def add_steps(self, seqno: int, item: T) -> Steps[bool]:
        slot = (seqno - 1) % self._capacity
        yield CLAIM
        if not self._tokens.pop(seqno, False):
            return False
        yield FILL
        self._slots[slot] = item
        # Last: a mark tells the consumer that the slot is filled.
        yield MARK
        self._present[slot] = 1
        return True

    def add_waiting_steps(self, seqno: int, item: T) -> Steps[bool]:
        expired = False
        while True:
            yield READ_ROOM
            room = self._room
            added = yield from self.add_steps(seqno, item)
            # The token was out before ROOM was read: if it is gone, this is a duplicate.
            if added or seqno <= room or expired:
                return added
            bell = Bell()
            try:
                yield HANG_BELL
                self._bells[bell] = seqno
                yield READ_ROOM
                room = self._room
                yield READ_CLOSED
                if self._closed:
                    raise GroupClosed("the buffer was closed")
                if room < seqno:
                    yield bell
                    expired = bell.expired
            finally:
                # No step of its own: a bell that nobody waits for does no harm.
                self._bells.pop(bell, None)

    def handle_steps(self) -> Steps[Consumer[T]]:
        yield TAKE_HANDLE
        try:
            return self._handles.pop()
        except IndexError:
            raise UsageError("this buffer's one consumer is already taken") from None

    def fill_steps(self, seqno: int, item: T) -> Steps[bool]:
        if seqno > self._room:
            return False
        slot = (seqno - 1) % self._capacity
        if seqno > self._hd:
            yield FIND
            if not self._present[slot]:
                yield CLAIM
                self._tokens.pop(seqno, None)  # gone, if the adder died after it had taken it
                yield FILL
                self._slots[slot] = item
                yield MARK
                self._present[slot] = 1
        return True

    def retained_steps(self, seqno: int) -> Steps[T | None]:
        slot = (seqno - 1) % self._capacity
        if not self._low < seqno <= self._low + self._capacity:
            return None
        yield FIND
        if not self._present[slot]:
            return None
        yield TAKE
        return self._slots[slot]

    def take_steps(self, limit: int) -> Steps[list[T]]:
        """Remove the items after HD up to the first gap, the limit or the end of the array."""
        start = self._hd % self._capacity
        in_window = self._low + self._capacity - self._hd
        stop = min(start + limit, start + in_window, self._capacity)
        yield FIND
        gap = self._present.find(0, start, stop)
        if gap >= 0:
            stop = gap
        if stop <= start:
            return []
        yield TAKE
        items = cast("list[T]", self._slots[start:stop])
        yield WRITE_HD
        self._hd += stop - start
        if self._nullify:
            yield from self.free_steps(stop - start)
        return items

    def stable_steps(self, through: int) -> Steps[int]:
        """Free what is delivered and not above `through`; the number of slots emptied."""
        low = self._low
        through = min(through, self._hd)
        while self._low < through:
            to_the_end = self._capacity - self._low % self._capacity
            yield from self.free_steps(min(through - self._low, to_the_end))
        return self._low - low

    def free_steps(self, freed: int) -> Steps[None]:
        """Free the slots of the seqnos after LOW, none of them beyond the end of the array."""
        start = self._low % self._capacity
        stop = start + freed
        yield WIPE
        self._present[start:stop] = bytes(freed)
        yield EMPTY
        self._slots[start:stop] = [None] * freed
        yield WRITE_LOW
        self._low += freed
        room = self._low + self._capacity
        # From here on adders may use the slots.
        yield PUT_TOKENS
        self._tokens.update(dict.fromkeys(range(room - freed + 1, room + 1), True))
        yield WRITE_ROOM
        self._room = room
        yield COPY_BELLS
        self._ring(self._bells.copy(), room)

    def close_steps(self) -> Steps[None]:
        yield WRITE_CLOSED
        self._closed = True
        yield COPY_BELLS
        bells = self._bells.copy()
        self._ring(bells, max(bells.values(), default=0))

    def look_steps(self) -> Steps[tuple[int, bytes]]:
        """HD, and a byte for each seqno in (HD, HR]: 1 where it is present.

        LOW is read before the marks are copied, and HD after. A seqno above that HD and within
        that LOW + capacity was in the window when the copy was made, so its byte is its own and
        not that of another lap. What was let in since LOW was read is left out.
        """
        yield READ_LOW
        low = self._low
        yield COPY_MARKS
        marks = bytes(self._present)
        yield READ_HD
        hd = self._hd
        start = low % self._capacity
        ascending = marks[start:] + marks[:start]
        return hd, ascending[hd - low :].rstrip(b"\0")

    def memory(self) -> dict[str, object]:
        """All that the threads share, as plain values, empty slots left out: for the explorer."""
        marks = [f"mark[{slot}]" for slot, mark in enumerate(self._present) if mark]
        slots = {f"slot[{i}]": item for i, item in enumerate(self._slots) if item is not None}
        return {
            "LOW": self._low,
            "HD": self._hd,
            "ROOM": self._room,
            "CLOSED": self._closed,
            **slots,
            **dict.fromkeys(marks, 1),
            **{f"token[{seqno}]": 1 for seqno in sorted(self._tokens)},
            "bells": sorted((seqno, bell.is_set()) for bell, seqno in self._bells.items()),
        }

    def _check_addable(self, item: T) -> None:
        if item is None:
            raise UsageError("None cannot be added: remove() returns it when nothing is ready")
        if self._closed:
            raise GroupClosed("the buffer was closed")

    def _ring(self, bells: dict[Bell, int], room: int) -> None:
        for bell, seqno in bells.items():
            if seqno <= room:
                bell.set()


class Consumer(Generic[T]):
    """The one remover of a RingBuffer. Get it from `RingBuffer.consumer`."""

    __slots__ = ("_ring",)

    def __init__(self, ring: GilRingBuffer[T]) -> None:
        self._ring = ring

    def remove(self) -> T | None:
        """The item of HD + 1, or None if it has not come."""
        items = self._take(1)
        return items[0] if items else None

    def remove_run(self, limit: int) -> list[T]:
        """Up to `limit` items in order, without a gap."""
        if limit <= 0:
            return []
        items = self._take(limit)
        if items and self._ring.hd % self._ring.capacity == 0:
            items += self._take(limit - len(items))
        return items

    def fill(self, seqno: int, item: T) -> bool:
        """Put an item where an adder has given up, or has died, unless it had got there: then what
        it added stays. False, and nothing changed: there is no room for this seqno yet.

        Only for a seqno that nobody else adds, or will add. Works on a closed buffer too.
        """
        return drive(self._ring.whole(self._ring.fill_steps(seqno, item)))

    def stable(self, through: int) -> int:
        """Everybody has what is not above `through`: free it; the number of slots emptied.

        Never frees what was not removed, never goes back; a nullifying buffer has nothing to free.
        """
        return drive(self._ring.whole(self._ring.stable_steps(through)))

    def retained(self, seqno: int) -> T | None:
        """The item, removed or not, if the buffer holds it: to send it again."""
        return drive(self._ring.whole(self._ring.retained_steps(seqno)))

    def _take(self, limit: int) -> list[T]:
        return drive(self._ring.whole(self._ring.take_steps(limit)))
