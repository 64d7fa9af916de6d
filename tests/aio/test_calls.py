"""What a message and a request cost, in calls: they only get fewer (tools/calls.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

MOST = {
    "a message": 120,
    "a request and its reply": 84,  # 77, or 83 where round trips are so long that no resend is due
    "a sent datagram": 5,
    "a received datagram": 36,
}
"""Calls of functions written in Python, a few more than on a quiet machine."""

LINES_MAX = 60
"""Of each function on the way of a message."""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each Python calls otherwise")
def test_a_message_and_a_request_take_no_more_calls_than_they_did() -> None:
    command = [sys.executable, "tools/calls.py", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {
        what: found[what]["python"] for what in MOST if found[what]["python"] > MOST[what]
    } == {}
    lines = {name: count for what in MOST for name, count in found[what]["lines"].items()}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}
