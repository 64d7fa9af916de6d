"""What a message and a request cost, in calls: they only get fewer (`ringcast bench steps`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

MOST = {
    "a message": 120,
    "a message of 1000 B": 121,
    "a request and its reply": 84,  # 77, or 83 where round trips are so long that no resend is due
    "a sent datagram": 5,
    "a received datagram": 34,
    "two idle members, a second": 1250,
    "a message to one member": 124,
    "40 messages in a burst": 240,
}
"""Calls of functions written in Python, a few more than on a quiet machine."""

LINES_MAX = 45
PACKED_LINES_MAX = 69
"""Of each function on the way of a message; and where several runs may share a datagram."""
PACKED = ("a message to one member", "40 messages in a burst")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each Python calls otherwise")
def test_a_message_and_a_request_take_no_more_calls_than_they_did() -> None:
    command = [sys.executable, "-m", "ringcast", "bench", "steps", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {row["what"]: row for row in json.loads(done.stdout)}
    calls = {what: row["python_calls"] for what, row in found.items()}
    assert {what: calls[what] for what in calls if calls[what] > MOST[what]} == {}
    lines = {what: row["longest_function"] for what, row in found.items()}
    assert min(lines.values()) > 20
    most = dict.fromkeys(lines, LINES_MAX) | dict.fromkeys(PACKED, PACKED_LINES_MAX)
    assert {what: lines[what] for what in lines if lines[what] > most[what]} == {}
