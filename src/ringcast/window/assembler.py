"""Assembler: fragments in, whole messages out.

Fragments sit above reliability: each has its own seqno and is acked on its own, so a message may
be larger than the window it travels through. A fragment says that the next seqno continues it;
a message bears the seqno of its last fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringcast.model import alike

PART_BYTES_MIN = 64
PARTS_FREE = 64
"""How many fragments a message may have: so many, and one more for each so many bytes allowed.
Bytes alone would not bound them: a fragment may be empty."""


class Assembler:
    """Puts one origin's taken payloads together. Holds at most `max_bytes` of one message.

    `parts` are the fragments that were taken before; None: their message had been given up.
    `retain`: what was taken stays in the window, and is known to be continued, until `forget`.
    """

    __slots__ = (
        *("_given_up", "_retain", "_size", "begun", "continued", "headed", "max_bytes"),
        "oversized",
    )

    def __init__(
        self, max_bytes: int, parts: Iterable[bytes] | None = (), *, retain: bool = False
    ) -> None:
        self.max_bytes = max_bytes
        self._retain = retain
        self.continued: set[int] = set()
        self.headed = 0
        """The last known seqno of a message with headers that has not been taken; 0: none is."""
        self.begun: list[bytes] = []
        self._size = 0
        if parts is None:
            self._give_up()
        else:
            self.begun += parts
            self._size = sum(map(len, self.begun))
        self.oversized = 0
        """Messages given up: they passed `max_bytes` (a sender with another limit), or their
        beginning is lost."""
        self._given_up: list[int] = []  # of these, those of the last call of assemble

    @property
    def is_idle(self) -> bool:
        """Nothing but whole messages without headers is known or waiting: payloads are messages
        just as they are, and one run."""
        return not (self.continued or self.begun or self.headed)

    @property
    def parts(self) -> tuple[bytes, ...] | None:
        """What has been taken of the message that is not whole yet; None: it is given up."""
        return None if self._size > self.max_bytes else tuple(self.begun)

    @property
    def size(self) -> int:
        """Bytes waiting for the rest of their message."""
        return self._size

    def allow(self, max_bytes: int) -> None:
        """Hold messages of this size, too. What was given up stays so."""
        is_given_up = self._size > self.max_bytes
        self.max_bytes = max(self.max_bytes, max_bytes)
        if is_given_up:
            self._give_up()

    def mark(self, seqnos: range, *, more: bool = True, headed: bool = False) -> None:
        """These seqnos, still in the window, are each continued by the next one (`more`); or are of
        messages with headers."""
        if more:
            self.continued.update(seqnos)
        if headed:
            self.headed = max(self.headed, seqnos.stop - 1)

    def forget(self, through: int) -> None:
        """These have left the window."""
        if self.continued:
            self.continued = {seqno for seqno in self.continued if seqno > through}

    def is_continued(self, seqno: int) -> bool:
        """Whether the next seqno continues this one, which is still in the window."""
        return seqno in self.continued

    @property
    def _parts_max(self) -> int:
        return self.max_bytes // PART_BYTES_MIN + PARTS_FREE

    def _give_up(self) -> None:
        """Keep the place, not the bytes: the message is lost, its end must still be found."""
        self.begun = [b""]
        self._size = self.max_bytes + 1

    def skip(self, through: int, *, is_middle: bool) -> None:
        """Go on after `through`; `is_middle`: in a message whose beginning is lost."""
        self.forget(through)
        self.begun = []
        self._size = 0
        if is_middle:
            self._give_up()

    def take_given_up(self) -> list[int]:
        """The seqnos of messages that the last `assemble` gave up, for whoever reports them."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def assemble(self, first: int, payloads: Sequence[bytes]) -> list[tuple[int, list[bytes]]]:
        """Turn payloads taken from the window into (seqno of the first, whole messages) runs, each
        with headers throughout or without.

        What stays behind is kept for the next call.
        """
        self._given_up = []
        if not self.headed:
            return self._assemble(first, payloads)
        if first + len(payloads) > self.headed:
            self.headed = 0
        whole = self._assemble(first, payloads)
        return [run for start, messages in whole for run in alike(start, messages)]

    def _assemble(self, first: int, payloads: Sequence[bytes]) -> list[tuple[int, list[bytes]]]:
        runs: list[tuple[int, list[bytes]]] = []
        continued, count = self.continued, len(payloads)
        at = start = 0  # where the run of unfragmented messages begins that is being gathered
        while at < count:
            if first + at not in continued and not self.begun:
                at += 1
                continue
            if start < at:
                runs.append((first + start, list(payloads[start:at])))
            stop = at
            while stop < count and first + stop in continued:
                stop += 1
            if not self._retain:
                continued.difference_update(range(first + at, first + stop))
            self._add(payloads[at : stop + 1])
            at = start = stop + 1
            if stop < count:
                self._end(first + stop, runs)
        if start < count:
            runs.append((first + start, list(payloads[start:])))
        return runs

    def _add(self, parts: Sequence[bytes]) -> None:
        self.begun += parts
        self._size += sum(map(len, parts))
        if self._size > self.max_bytes or len(self.begun) > self._parts_max:
            self._give_up()

    def _end(self, seqno: int, runs: list[tuple[int, list[bytes]]]) -> None:
        """With this its message is complete."""
        if self._size <= self.max_bytes:
            kind = type(self.begun[-1])  # joined, parts are bytes
            runs.append((seqno, [kind(b"".join(self.begun))]))
        else:
            self.oversized += 1
            self._given_up.append(seqno)
        self.begun = []
        self._size = 0
