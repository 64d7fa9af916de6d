"""Real processes that are told to end: they leave in good order, and what they sent arrives."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blocking_groups import members, threads
from loopback_groups import FIRST, with_members
from shutdown_member import MESSAGES

from ringcast import MulticastConfig, blocking
from ringcast.aio.joining import join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource
from ringcast.aio.termination import TERMINATION, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringcast import Group

PROGRAM = Path(__file__).with_name("shutdown_member.py")
ENDS_S = 280.0
"""By far: a child that does not end has been ended by its own alarm."""
HURRIED_S = 3600.0
"""Nobody waits for so long: it is cut short."""


class Child:
    def __init__(self, api: str, how: str, at: blocking.Group, count: int, patience_s: float):
        args = [api, how, str(at.me.address), str(count), str(patience_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", PROGRAM, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, line: str) -> None:
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if said.strip() == line:
                return
        raise AssertionError(f"never said {line!r}: {self.process.communicate()[1]}")

    def end(self, *signals: int, after: str = "S accepted") -> tuple[int, list[str], str]:
        """Its status, what it said after that, and what it complained of."""
        self.until(after)
        for number in signals[:-1]:
            self.process.send_signal(number)
            self.until("cancelled")
        if signals:
            self.process.send_signal(signals[-1])
        said, errors = self.process.communicate(timeout=ENDS_S)
        return self.process.returncode, said.split("\n")[:-1], errors


@contextmanager
def child(
    api: str, how: str, count: int = MESSAGES, patience_s: float = ENDS_S, *, reads: bool = True
) -> Iterator[tuple[Child, Callable[[], list[bytes]]]]:
    """A process that sends; and what arrives of it, until it has left."""
    config = MulticastConfig(datagram_bytes=8000)
    with threads(1) as pool, members(1, multicast=config) as (a,):
        reading = pool.submit(lambda: [m.payload for m in islice(a, count if reads else 0)])
        program = Child(api, how, a, count, patience_s)
        try:
            yield program, lambda: reading.result(ENDS_S)
        finally:
            program.process.kill()
            program.process.communicate()
            a.leave()


KINDS = ["asyncio", "threads"]
TERMINATED = 143


def check(errors: str) -> None:
    assert "leaves before" not in errors
    assert "never retrieved" not in errors


@pytest.mark.parametrize("api", KINDS)
def test_ctrl_c_loses_nothing(api: str) -> None:
    with child(api, "alone") as (program, arrived):
        status, said, errors = program.end(signal.SIGINT)
        assert len(arrived()) == MESSAGES
    assert status == -signal.SIGINT
    assert said == ["cancelled", "finally", "atexit"]
    assert errors.rstrip().endswith("KeyboardInterrupt")
    check(errors)


@pytest.mark.parametrize("how", ["alone", "nested"])
@pytest.mark.parametrize("api", KINDS)
def test_sigterm_loses_nothing_and_ends_the_process(api: str, how: str) -> None:
    with child(api, how) as (program, arrived):
        accepted = "T accepted" if (api, how) == ("asyncio", "nested") else "S accepted"
        status, said, errors = program.end(signal.SIGTERM, after=accepted)
        assert len(arrived()) == MESSAGES
    assert status == TERMINATED
    assert said == ["cancelled", *["finally"] * (how == "alone"), "atexit"]
    assert errors == ""


def test_sigterm_waits_until_all_tasks_have_left() -> None:
    with child("asyncio", "two") as (program, arrived):
        status, _, errors = program.end(signal.SIGTERM, after="T accepted")
        assert len(arrived()) == MESSAGES
    assert status == TERMINATED
    assert errors == ""


@pytest.mark.parametrize("api", KINDS)
def test_an_exception_loses_nothing(api: str) -> None:
    with child(api, "exception") as (program, arrived):
        status, _, errors = program.end()
        assert len(arrived()) == MESSAGES
    assert status == 1
    assert errors.rstrip().endswith("ZeroDivisionError")
    check(errors)


def test_a_task_that_asyncio_cancels_at_the_end_loses_nothing() -> None:
    with child("asyncio", "task") as (program, arrived):
        status, _, errors = program.end()
        assert len(arrived()) == MESSAGES
    assert (status, errors) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("api", KINDS)
def test_a_second_signal_ends_it_at_once_and_says_what_was_not_delivered(
    api: str, number: int
) -> None:
    count = 20
    with child(api, "alone", count, HURRIED_S, reads=False) as (program, _):
        status, said, errors = program.end(number, number)
    assert status == (TERMINATED if number == signal.SIGTERM else -number)
    assert said == ["finally", "atexit"]
    assert f"S leaves before everybody has delivered its messages: 1..{count}" in errors


def test_without_signals_sigterm_is_what_it_was() -> None:
    for api in KINDS:
        with child(api, "quiet", 1) as (program, _):
            status, said, _ = program.end(signal.SIGTERM)
        assert status == -signal.SIGTERM
        assert said == []


def test_a_handler_of_ones_own_goes_first() -> None:
    with child("asyncio", "handled") as (program, arrived):
        status, said, errors = program.end(signal.SIGTERM)
        assert len(arrived()) == MESSAGES
    assert (status, errors) == (0, "")
    assert said == ["handled", "atexit"]


def test_an_application_that_says_goodbye_first_ends_all_the_same() -> None:
    with child("asyncio", "swallowed", 2) as (program, arrived):
        status, said, errors = program.end(signal.SIGTERM)
        assert arrived()[-1] == b"goodbye"
    assert status == TERMINATED
    assert said == ["cancelled", "survived", "atexit"]
    assert errors == ""


# Whose handler it is


def handler() -> object:
    return signal.getsignal(signal.SIGTERM)


def test_the_handler_is_there_while_a_block_is_open() -> None:
    async def exchange(*groups: Group) -> None:
        assert handler() == TERMINATION._on_signal

    assert handler() is signal.SIG_DFL
    with_members(2)(exchange)
    assert handler() is signal.SIG_DFL
    with members(2):
        assert handler() == TERMINATION._on_signal
    assert handler() is signal.SIG_DFL


def test_a_handler_that_was_set_in_the_block_stays() -> None:
    async def exchange(_: Group) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        with_members(1)(exchange)
        assert handler() is signal.SIG_IGN
        with_members(1)(exchange)  # nor is it replaced
        assert handler() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert not TERMINATION._blocks


def test_a_block_that_begins_under_another_handler_is_left_alone() -> None:
    async def main() -> None:
        async with join("one", discovery=ListSource([]), membership=FIRST):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            async with join("two", discovery=ListSource([]), membership=FIRST):
                assert len(TERMINATION._blocks) == 1
            assert handler() is signal.SIG_IGN

    try:
        run(main())
        assert handler() is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("api", KINDS)
def test_other_threads_handle_no_signals(api: str) -> None:
    async def main() -> None:
        async with join("one", discovery=ListSource([]), membership=FIRST):
            seen.append(handler())

    def block() -> None:
        with blocking.join("one", discovery=ListSource([]), membership=FIRST):
            seen.append(handler())

    seen: list[object] = []
    target = block if api == "threads" else lambda: asyncio.run(main())
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_block_may_be_closed_by_another_thread() -> None:
    block = Block()
    TERMINATION.open(block)
    try:
        thread = threading.Thread(target=TERMINATION.close, args=(block,))
        thread.start()
        thread.join()
        assert not TERMINATION._blocks
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == TERMINATED
    finally:
        TERMINATION._is_received = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_who_has_nobody_to_tell_ends_the_process_by_itself() -> None:
    """The task that has entered the block is done: nobody could be cancelled."""

    async def main() -> None:
        joining = join("one", discovery=ListSource([]), membership=FIRST)
        await asyncio.create_task(joining.__aenter__())  # type: ignore[arg-type]
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == TERMINATED
        await joining.__aexit__(None, None, None)

    run(main())
    assert handler() is signal.SIG_DFL
