"""Another user of the machine, with the name of a group and its ports, has no part in it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any

import pytest

from aio.loopback_groups import FIRST, PATIENT, read
from ringcast import join
from ringcast.aio.loop import run
from ringcast.aio.sources import ListSource, group_directory, runtime_directory
from ringcast.errors import JoinTimeout, Reject
from ringcast.model import Address

NOBODY = 65534
GROUP = "another user's"


async def attempt(address: Address, **options: Any) -> str:
    found = ListSource([address])
    joining = join(GROUP, discovery=found, must_exist=True, join_timeout_s=1.0, **options)
    try:
        async with joining as group:
            return f"joined {group.view}"
    except JoinTimeout as error:
        return str(error)


def try_everything(directory: str, told: socket.socket) -> None:
    """As the other user; what came of it."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.environ.pop("XDG_RUNTIME_DIR", None)
    address = Address.parse(told.recv(100).decode())
    result = {}
    for what, path in (("list", directory), ("read", f"{directory}/group.key")):
        try:
            os.listdir(path) if what == "list" else open(path).close()
            result[what] = "done"
        except OSError as error:
            result[what] = type(error).__name__
    result["own key"] = run(attempt(address))
    result["no key"] = run(attempt(address, insecure=True))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(1000):
            sock.sendto(b"RC\x02\x01" + number.to_bytes(100, "little"), address)
    told.send(json.dumps(result).encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_can_neither_join_nor_read_nor_disturb() -> None:
    ours, theirs = socket.socketpair()
    directory = str(group_directory(GROUP))
    assert runtime_directory().stat().st_mode & 0o777 == 0o700
    if not (pid := os.fork()):
        status = 1
        try:
            try_everything(directory, theirs)
            status = 0
        finally:
            os._exit(status)

    async def members() -> None:
        a_source, b_source = ListSource([]), ListSource([])
        async with join(GROUP, name="A", discovery=a_source, membership=FIRST) as a:
            b_source = ListSource([a.me.address])
            async with join(GROUP, name="B", discovery=b_source, membership=PATIENT) as b:
                view = a.view
                ours.send(str(a.me.address).encode())
                said = json.loads(await asyncio.to_thread(ours.recv, 10_000))
                assert said["list"] == said["read"] == "PermissionError"
                for how in ("own key", "no key"):
                    assert said[how].startswith(f"nobody answered at {a.me.address}"), said
                await a.send(b"undisturbed")
                assert await read(b, 1) == [("A", b"undisturbed")]
                assert a.view is view
                assert {Reject.KEY.value, Reject.UNSEALED.value} <= set(a.stats()["rejected"])

    try:
        run(asyncio.wait_for(members(), 30))
    finally:
        ours.close()
        theirs.close()
        _, status = os.waitpid(pid, 0)
    assert status == 0
