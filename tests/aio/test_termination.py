"""Who waits for whom when SIGTERM has come, without a process of its own."""

from __future__ import annotations

import asyncio
import signal

from ringcast.aio.termination import Block, Termination


def test_a_block_that_opens_after_the_signal_holds_nobody_up() -> None:
    """Its task was not told: it ends with the process."""
    termination = Termination()

    async def leave() -> None:
        task = asyncio.current_task()
        early, late = Block(task), Block(asyncio.create_task(asyncio.sleep(3600)))
        termination.open(early)
        try:
            early.is_told = True  # as SIGTERM does it
            termination.open(late)
            termination.close(early)
            await asyncio.wait_for(termination.wait_for_others(early), 10)
        finally:
            termination.close(late)

    asyncio.run(leave())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_block_that_was_told_is_waited_for() -> None:
    termination = Termination()

    async def leave() -> None:
        blocks = Block(asyncio.current_task()), Block(asyncio.create_task(asyncio.sleep(3600)))
        for block in blocks:
            termination.open(block)
            block.is_told = True
        termination.close(blocks[0])
        waiting = asyncio.create_task(termination.wait_for_others(blocks[0]))
        await asyncio.sleep(0)
        assert not waiting.done()
        termination.close(blocks[1])
        await asyncio.wait_for(waiting, 10)

    asyncio.run(leave())
