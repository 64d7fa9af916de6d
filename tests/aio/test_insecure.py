"""Without encryption nothing leaves the machine, unless somebody says so; then it is said aloud."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import FIRST, read, with_members
from namespace import in_own_network, open_tunnel

from ringcast import blocking, join, load_config
from ringcast.aio.loop import run
from ringcast.aio.reach import admits, check_own
from ringcast.aio.sources import ListSource
from ringcast.aio.tcp import TcpMesh
from ringcast.aio.udp import UdpSocket
from ringcast.errors import ConfigError, UsageError
from ringcast.model import Address

if TYPE_CHECKING:
    from pathlib import Path

    from ringcast import Group

HERE, SIX = Address("127.0.0.1", 7800), Address("::1", 7800)
ABROAD = "10.1.0.1"
WARNING = "is open to its network, and nothing is encrypted"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("host", "securely", "insecurely"),
    [
        ("127.0.0.1", True, True),
        ("127.9.9.9", True, True),
        ("192.0.2.1", False, True),
        ("8.8.8.8", False, True),
        ("0.0.0.0", False, False),
        ("255.255.255.255", False, False),
        ("239.255.0.1", False, False),
        ("::1", False, False),  # of the other family
        ("localhost", False, False),
        ("example.invalid", False, False),
        ("127.1", False, False),
        ("", False, False),
    ],
)
def test_who_may_be_sent_to(host: str, securely: bool, insecurely: bool) -> None:
    dest = Address(host, 7800)
    assert admits(HERE, dest, insecure=False) is securely
    assert admits(HERE, dest, insecure=True) is insecurely


def test_ipv6_is_the_same() -> None:
    assert admits(SIX, SIX, insecure=False)
    assert not admits(SIX, Address("2001:db8::1", 7800), insecure=False)
    assert admits(SIX, Address("2001:db8::1", 7800), insecure=True)
    assert not admits(SIX, Address("ff02::1", 7800), insecure=True)
    assert not admits(SIX, HERE, insecure=True)


@pytest.mark.parametrize(
    ("listen", "advertise", "member", "message"),
    [
        ("192.0.2.1:0", None, None, "192.0.2.1:0 is not a loopback address.*say insecure=True"),
        ("127.0.0.1:0", "192.0.2.1:1", None, "192.0.2.1:1 is not a loopback address"),
        ("127.0.0.1:0", None, "192.0.2.1:1", "192.0.2.1:1 is not a loopback address"),
        ("0.0.0.0:0", None, None, "0.0.0.0:0 is not a loopback address"),
        ("example.invalid:1", None, None, "example.invalid:1 is not a loopback address"),
    ],
)
def test_addresses_beyond_the_machine_are_refused(
    listen: str, advertise: str | None, member: str | None, message: str
) -> None:
    addresses = [] if member is None else [Address.parse(member)]
    forwarder = None if advertise is None else Address.parse(advertise)
    with pytest.raises(UsageError, match=message):
        check_own(Address.parse(listen), forwarder, addresses, insecure=False)


@pytest.mark.parametrize(
    ("listen", "advertise", "member", "message"),
    [
        ("0.0.0.0:0", None, None, "others cannot reach a member at 0.0.0.0:0: .* advertise="),
        ("0.0.0.0:0", "0.0.0.0:1", None, "0.0.0.0:1 is no address of one machine"),
        ("[::]:0", None, None, r"others cannot reach a member at \[::\]:0"),
        ("example.invalid:1", None, None, "example.invalid:1 is a name"),
        ("192.0.2.1:0", None, "239.255.0.1:1", "239.255.0.1:1 is no address of one machine"),
        ("127.0.0.1:0", None, "192.0.2.1:1", "cannot be reached from 127.0.0.1:0"),
    ],
)
def test_what_cannot_be_is_refused_all_the_same(
    listen: str, advertise: str | None, member: str | None, message: str
) -> None:
    addresses = [] if member is None else [Address.parse(member)]
    forwarder = None if advertise is None else Address.parse(advertise)
    with pytest.raises(UsageError, match=message):
        check_own(Address.parse(listen), forwarder, addresses, insecure=True)


def test_what_can_be_is_allowed() -> None:
    far = [Address("192.0.2.7", 7800)]
    check_own(Address("192.0.2.1", 0), None, far, insecure=True)
    check_own(Address("0.0.0.0", 0), Address("192.0.2.1", 7800), far, insecure=True)
    check_own(HERE, None, [HERE], insecure=False)


@in_own_network
def test_members_abroad_talk_and_each_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    open_tunnel(ABROAD)
    for transport in ("udp", "multicast", "tcp"):
        caplog.clear()

        @with_members(2, transport=transport, listen=f"{ABROAD}:0", insecure=True)
        async def test(a: Group, b: Group) -> None:
            assert {member.address.host for member in a.view} == {ABROAD}
            await a.send(b"to all")
            await a.send(b"to you", to=a.view["B"])
            assert sorted(await read(b, 2)) == [("A", b"to all"), ("A", b"to you")]
            said = [f"{group.me.address} {WARNING}" for group in (a, b)]
            assert [text.split(": whoever")[0] for text in warnings(caplog)] == said


@in_own_network
def test_multicast_goes_no_further_than_its_network() -> None:
    tunnel = open_tunnel(ABROAD)

    @with_members(2, transport="multicast", listen=f"{ABROAD}:0", insecure=True)
    async def test(a: Group, b: Group) -> None:
        await a.send(b"abroad")
        assert await read(b, 1) == [("A", b"abroad")]

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        select.select([tunnel], [], [], 1.0)
        packet = os.read(tunnel, 1 << 16)
        if b"abroad" in packet:
            assert packet[8] == 1  # hops
            return
    raise AssertionError("nothing left")


@in_own_network
def test_transports_stay_here_unless_they_are_told() -> None:
    open_tunnel(ABROAD)
    far = Address("10.1.0.2", 7800)
    sock = UdpSocket(Address(ABROAD, 0))
    sock.send(b"x", far)
    assert (sock.sent, sock.dropped) == (0, 1)
    sock.close()

    async def mesh() -> None:
        mesh = TcpMesh(Address(ABROAD, 0))
        mesh.start(asyncio.get_running_loop(), lambda: None)
        mesh.send(b"x", far)
        assert (mesh.dropped, mesh.stats()["connections"]) == (1, 0)
        mesh.close()

    run(mesh())


def test_on_loopback_who_has_no_key_is_warned_too(caplog: pytest.LogCaptureFixture) -> None:
    @with_members(1)
    async def sealed(group: Group) -> None:
        assert warnings(caplog) == []

    @with_members(1, insecure=True)
    async def test(group: Group) -> None:
        (warning,) = warnings(caplog)
        assert "is open to all users of this machine, and nothing is encrypted" in warning


@in_own_network
def test_it_may_stand_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_tunnel(ABROAD)
    file = tmp_path / "orders.toml"
    file.write_text('[group]\ngroup = "orders"\ninsecure = true\n')
    config = load_config(file)

    async def enter(**options: Any) -> None:
        elsewhere = ListSource([])
        listen = f"{ABROAD}:0"
        async with join(
            config=config, listen=listen, discovery=elsewhere, membership=FIRST, **options
        ):
            pass

    with pytest.raises(UsageError, match="is not a loopback address"):
        run(enter(insecure=False))  # what is given goes before the file
    assert warnings(caplog) == []
    run(enter())
    (warning,) = warnings(caplog)
    assert WARNING in warning


def test_it_is_a_truth_value(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('[group]\ngroup = "orders"\ninsecure = "yes"\n')
    with pytest.raises(ConfigError, match=r"\[group\] insecure = 'yes': must be true or false"):
        load_config(file)


@in_own_network
def test_threads_have_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    open_tunnel(ABROAD)
    with (
        pytest.raises(UsageError, match="is not a loopback address"),
        blocking.join("orders", listen=f"{ABROAD}:0"),
    ):
        raise AssertionError
    with blocking.join("orders", listen=f"{ABROAD}:0", insecure=True) as group:
        assert group.me.address.host == ABROAD
    (warning,) = warnings(caplog)
    assert WARNING in warning


@in_own_network
def test_the_command_has_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    open_tunnel(ABROAD)

    def command(*options: str) -> tuple[int, list[str]]:
        program = "from ringcast.cli import main; main(prog_name='ringcast')"
        done = subprocess.run(
            [sys.executable, "-c", program, "join", "orders", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr.splitlines()

    status, (line,) = command("--listen", f"{ABROAD}:0")
    assert (status, line[:10]) == (2, "ringcast: ")
    assert "--insecure" in line
    status, (line,) = command("--listen", f"{ABROAD}:0", "--insecure")
    assert status == 0
    assert WARNING in line
    status, (line,) = command("--listen", "10.2.0.1:0", "--insecure")  # of another machine
    assert (status, line[:34]) == (2, "ringcast: cannot listen on 10.2.0.")
