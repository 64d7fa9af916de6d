"""Many threads that send through one member, and processes that check what arrives there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from blocking_groups import members, threads
from loopback_groups import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 8
RECEIVERS = 2

RECEIVER = """
import json, sys
from ringcast import Address, MembershipConfig, blocking
from ringcast.aio.sources import ListSource

address, last = Address.parse(sys.argv[1]), int(sys.argv[2])
patient = MembershipConfig(suspect_after_s=600.0, verify_s=60.0)
with blocking.join("test", discovery=ListSource([address]), membership=patient) as group:
    print("in", flush=True)
    high = 0
    seen = {}
    for batch in group.batches():
        assert batch.run.first == high + 1, (batch.run.first, high)
        high = batch.run.last
        for payload in batch.run.payloads:
            thread, number = payload.split(b":")
            assert int(number) == seen.get(thread, 0), (thread, number, seen)
            seen[thread] = int(number) + 1
        if high == last:
            break
    received = group.stats()["ViewStreams"]["received"].values()
    nack_sent = sum(entry["nack_sent"] for entry in received)
    counts = {thread.decode(): count for thread, count in seen.items()}
    print(json.dumps({"high": high, "seen": counts, "nack_sent": nack_sent}))
"""


@pytest.mark.parametrize("each", [2000, pytest.param(100_000, marks=pytest.mark.proof)])
def test_each_threads_messages_stay_in_its_order(each: int, tmp_path: Path) -> None:
    """At every receiver; all come by seqno, and nothing is asked for again."""
    program = tmp_path / "receiver.py"
    program.write_text(RECEIVER)
    with ExitStack() as stack, members(1, receive=False) as (a,):
        command = [sys.executable, program, str(a.me.address), str(THREADS * each)]
        receivers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(RECEIVERS)
        ]
        for receiver in receivers:
            stack.callback(receiver.communicate)
            stack.callback(receiver.kill)
        for receiver in receivers:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "in\n"

        def send(thread: int) -> None:
            for number in range(each):
                a.send(b"%d:%d" % (thread, number))

        begun = time.monotonic()
        with threads(THREADS) as pool:
            list(pool.map(send, range(THREADS)))
        a.flush()
        rate = THREADS * each / (time.monotonic() - begun)
        print(f"{THREADS} threads x {each}: {rate:.0f} messages/s")  # noqa: T201 - for a report
        for receiver in receivers:
            said, _ = receiver.communicate(timeout=DEADLINE_S)
            assert json.loads(said) == {
                "high": THREADS * each,
                "seen": {str(thread): each for thread in range(THREADS)},
                "nack_sent": 0,
            }
