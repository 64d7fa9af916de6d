"""ringcast publish: processes that are killed in the middle of sending, and those that follow."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="needs ringcast[spark]")

from terminals import COMMAND, DEADLINE_S, Terminal, mistake

from ringcast import MembershipConfig, MulticastConfig, blocking
from ringcast.model import Headed
from ringcast.trace.staging import Staging, Stretch
from ringcast.wire.headers import encode_headers

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast import Message

ROWS = 500
PROOF_ROWS = 20_000


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    monkeypatch.chdir(tmp_path)
    return Staging(tmp_path / "staged")


def stage(staging: Staging, batches: int, rows: int) -> list[bytes]:
    staging.claim("p", "a stream")
    found: list[bytes] = []
    for batch in range(batches):
        for_batch = [b"%d.%d" % (batch, row) for row in range(rows)]
        block = encode_headers({"k": "v"})
        staged = [Headed(block + each) for each in for_batch]
        assert staging.commit(batch, [staging.stage("p", [Stretch(staged)])[0]])
        found += for_batch
    return found


def wait_until_done(staging: Staging, last: int) -> None:
    deadline = time.monotonic() + 5 * DEADLINE_S
    while staging.progress().through < last:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def first_jump(messages: list[Message], expected: list[bytes]) -> str | None:
    """Where a member has got something else than was published, and what it is; None: nowhere."""
    got = [message.payload for message in messages]
    if got == expected:
        return None
    at = next(
        (at for at, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), 0
    )
    around = [
        (str(m.view), m.sender.incarnation, m.seqno, m.payload) for m in messages[at - 1 : at + 1]
    ]
    return f"{len(got)} of {len(expected)} messages; wanted {expected[at]!r}: {around}"


def check_kills(staging: Staging, *, rows: int, kills: int) -> None:
    expected = stage(staging, 3, rows)
    got: dict[str, list[Message]] = {"a": [], "b": []}

    def read(group: blocking.Group, name: str) -> None:
        for message in group:
            got[name].append(message)

    def start() -> subprocess.Popen[bytes]:
        command = (*COMMAND, "publish", "staged", "orders", "--keep", "20s")
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    few = MulticastConfig(capacity=16)
    patient = MembershipConfig(suspect_after_s=600.0)  # who is killed refuses datagrams
    with (
        blocking.join("orders", name="a", multicast=few, membership=patient) as a,
        blocking.join("orders", name="b", membership=patient) as b,
    ):
        for name, group in (("a", a), ("b", b)):
            threading.Thread(target=read, args=(group, name), daemon=True).start()
        publisher = start()
        try:
            for number in range(1, kills + 1):
                due = number * len(expected) // (kills + 1)
                deadline = time.monotonic() + 5 * DEADLINE_S
                while min(map(len, got.values())) < due:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                publisher.kill()
                publisher.wait()
                publisher = start()
            wait_until_done(staging, 2)
            deadline = time.monotonic() + DEADLINE_S  # who was parted comes back, and gets it
            while min(map(len, got.values())) < len(expected) and time.monotonic() < deadline:
                time.sleep(0.05)
            publisher.send_signal(signal.SIGTERM)
            assert publisher.wait(DEADLINE_S) == 0
        finally:
            publisher.kill()
            publisher.wait()
    assert {who: first_jump(messages, expected) for who, messages in got.items()} == dict.fromkeys(
        got
    )
    for messages in got.values():
        assert {dict(message.headers)["k"] for message in messages} == {"v"}
    staging.forget(0.0)
    assert list(staging.files.iterdir()) == []


def test_a_publisher_is_killed_in_the_middle_of_sending(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringcast")  # a failure shows the views
    check_kills(staging, rows=ROWS, kills=1)


@pytest.mark.proof
def test_ten_publishers_are_killed(staging: Staging, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ringcast")
    check_kills(staging, rows=PROOF_ROWS, kills=10)


def test_one_works_in_a_directory_and_tells_how_it_goes(staging: Staging) -> None:
    stage(staging, 1, 3)
    with (
        blocking.join("orders", name="a") as group,
        Terminal(
            "publish", "staged", "orders", "--name", "pub", "--json", "--keep", "0s"
        ) as publisher,
    ):
        publisher.until('"publisher": "p"')
        assert "another process works here" in mistake("publish", "staged", "orders")
        assert [next(iter(group)).payload for _ in range(3)] == [b"0.0", b"0.1", b"0.2"]
        wait_until_done(staging, 0)
        while staging.has_batches:
            time.sleep(0.05)
        status, shown, errors = publisher.end(signal.SIGINT)
    assert (status, errors) == (130, "ringcast: interrupted\n")
    assert "pub" in json.loads(shown.splitlines()[0])["members"]


def test_a_directory_without_anything_staged_is_a_mistake(staging: Staging) -> None:
    staging.path.mkdir()
    with blocking.join("orders", name="a"):
        assert "no stream or table was written here yet" in mistake("publish", "staged", "orders")
