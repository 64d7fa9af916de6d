"""Who opens a TCP connection proves who it is, and who does not is no burden."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import DEADLINE_S, FIRST, PATIENT, read, until, with_members
from test_tcp import HEAD_BYTES, Mesh, Raw, framed, hello, read_frame, turns, with_stack

from ringcast import Address, Member, View, ViewId
from ringcast.aio import acceptor, connector, peers, tcp
from ringcast.aio.framing import Malformed
from ringcast.aio.handshake import CHALLENGE_BYTES, Handshake, Hello, Refused
from ringcast.aio.joining import join
from ringcast.aio.keys import KeyRing
from ringcast.aio.sources import ListSource
from ringcast.errors import Reject
from ringcast.wire.envelope import Key

if TYPE_CHECKING:
    from contextlib import ExitStack

    from ringcast import Group

ONE, OTHER = Key(bytes(range(32))), Key(bytes(32))
A, B, C = (Address("127.0.0.1", port) for port in (7801, 7802, 7803))


def handshake(*keys: Key, group: str = "orders") -> Handshake:
    return Handshake(group, KeyRing(keys))


def body(frame: bytes) -> bytes:
    return frame[HEAD_BYTES:]


# What is proved


def test_a_hello_counts_for_one_challenge_one_opener_one_acceptor_and_one_round() -> None:
    ours = handshake(ONE)
    challenge, another = body(ours.challenge()), body(ours.challenge())
    assert len(challenge) == CHALLENGE_BYTES
    assert challenge != another
    said = body(handshake(ONE).hello(Hello(A, 3), B, challenge))
    assert ours.check(said, [C, B], challenge) == Hello(A, 3)
    for own, heard in (([B], another), ([C], challenge), ([A], challenge), ([B], b"")):
        with pytest.raises(Refused) as caught:
            ours.check(said, own, heard)
        assert caught.value.reason is Reject.SEAL
    with pytest.raises(Refused):
        handshake(ONE, group="other").check(said, [B], challenge)


def test_no_byte_of_a_hello_can_be_changed() -> None:
    ours = handshake(ONE)
    challenge = body(ours.challenge())
    said = body(ours.hello(Hello(A, 3), B, challenge))
    for at in range(len(said)):
        for bit in (1, 128):
            changed = bytearray(said)
            changed[at] ^= bit
            with pytest.raises(Malformed):
                ours.check(bytes(changed), [B], challenge)
    for length in range(len(said)):
        with pytest.raises(Malformed):
            ours.check(said[:length], [B], challenge)


def test_who_has_another_key_or_none_is_known_by_that() -> None:
    ours = handshake(ONE)
    challenge = body(ours.challenge())
    for theirs, reason, key_id in (
        (handshake(OTHER), Reject.KEY, OTHER.id),
        (Handshake(), Reject.UNSEALED, b""),
    ):
        with pytest.raises(Refused) as caught:
            ours.check(body(theirs.hello(Hello(A, 1), B, challenge)), [B], challenge)
        assert (caught.value.reason, caught.value.key_id) == (reason, key_id)
        assert caught.value.address == A
    both = handshake(OTHER, ONE)
    said = body(ours.hello(Hello(A, 1), B, challenge))
    assert both.check(said, [B], challenge).address == A
    with pytest.raises(Malformed):
        ours.hello(Hello(A, 1), B, b"not a challenge")


# On connections


def sealed_meshes(stack: ExitStack, *keys: Key) -> list[Mesh]:
    found = [Mesh(handshake=handshake(key)) for key in keys]
    for mesh in found:
        stack.callback(mesh.close)
    return found


def test_datagrams_wait_for_the_handshake_and_come_in_order() -> None:
    async def test(stack: ExitStack) -> None:
        a, b = sealed_meshes(stack, ONE, ONE)
        sent = [bytes([n]) * 1000 for n in range(50)]
        for datagram in sent:
            a.send(datagram, b.address)
        await until(lambda: b.got == sent)
        b.send(b"back", a.address)
        await until(lambda: a.got == [b"back"])
        assert (a.connections, b.connections, a.dropped) == (1, 1, 0)

    with_stack(test)


def test_both_that_open_one_at_once_keep_one() -> None:
    async def test(stack: ExitStack) -> None:
        a, b = sealed_meshes(stack, ONE, ONE)
        a.send(b"x", b.address)
        b.send(b"y", a.address)
        await until(lambda: (a.got, b.got) == ([b"y"], [b"x"]))
        await until(lambda: (a.connections, b.connections) == (1, 1))
        assert a.rejected == b.rejected == {}

    with_stack(test)


@pytest.mark.parametrize("theirs", [OTHER, None])
def test_who_cannot_prove_itself_gets_nothing(theirs: Key | None) -> None:
    async def test(stack: ExitStack) -> None:
        (ours,) = sealed_meshes(stack, ONE)
        them = Mesh(handshake=handshake(theirs) if theirs else Handshake())
        stack.callback(them.close)
        them.send(b"let me in", ours.address)
        reason = Reject.KEY if theirs else Reject.UNSEALED
        await until(lambda: reason.value in ours.rejected)
        assert ours._handshake.keys is not None
        (sentence,) = ours._handshake.keys.refusals.explain(ONE.id.hex())
        assert f"from {them.address} " in sentence
        ours.send(b"secret", them.address)
        await turns()
        assert ours.got == []
        assert b"secret" not in them.got

    with_stack(test)


def test_a_recorded_hello_is_not_believed_again() -> None:
    """A stranger that was told a member's hello received what was meant for that member."""

    async def test(stack: ExitStack) -> None:
        (mesh,) = sealed_meshes(stack, ONE)
        raw = Raw(stack)
        first = await raw.connect(mesh)
        challenge = await read_frame(first)
        said = handshake(ONE).hello(Hello(raw.address, 1), mesh.address, challenge)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(first, said + framed(b"I am known"))
        await until(lambda: mesh.got == [b"I am known"])
        again = await raw.connect(mesh, said)
        await read_frame(again)  # the challenge
        assert await read_frame(again) == b""
        assert mesh.rejected == {Reject.SEAL.value: 1}
        mesh.send(b"for the first", raw.address)
        assert await read_frame(first) == b"for the first"

    with_stack(test)


def test_without_a_key_a_hello_is_believed() -> None:
    """So the proof is what keeps a stranger from what is meant for a member."""

    async def test(stack: ExitStack) -> None:
        mesh = Mesh()
        stack.callback(mesh.close)
        raw = Raw(stack)
        first = await raw.connect(mesh, hello(raw.address) + framed(b"I am known"))
        await until(lambda: mesh.got == [b"I am known"])
        again = await raw.connect(mesh, hello(raw.address, 2) + framed(b"I pose"))
        await until(lambda: mesh.got == [b"I am known", b"I pose"])
        mesh.send(b"for the first", raw.address)
        assert await read_frame(again) == b"for the first"
        first.close()

    with_stack(test)


def test_who_never_says_the_challenge_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "PATIENCE_S", 0.05)

    async def test(stack: ExitStack) -> None:
        (mesh,) = sealed_meshes(stack, ONE)
        raw = Raw(stack)
        mesh.send(b"secret", raw.address)
        sock = await raw.accept()
        assert await read_frame(sock) == b""  # nothing was said
        await until(lambda: mesh.peer(raw.address)["trouble"] == "no answer")
        assert mesh.dropped == 1

    with_stack(test)


def test_strangers_of_one_host_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "STRANGERS_OF_HOST_MAX", 2)

    async def test(stack: ExitStack) -> None:
        mesh = Mesh()
        stack.callback(mesh.close)
        raw = Raw(stack)
        silent = [await raw.connect(mesh) for _ in range(4)]
        for sock in silent[:2]:
            assert await read_frame(sock) == b""
        assert (mesh.turned_away, mesh.connections) == (2, 2)

    with_stack(test)


def test_a_connection_that_is_no_members_ends_and_a_members_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "SWEEP_S", 0.01)

    async def test(stack: ExitStack) -> None:
        mesh = Mesh()
        stack.callback(mesh.close)
        member, other = Raw(stack), Raw(stack)
        who = Member(member.address, 1, "m")
        mesh.enter_view(View(ViewId(who, 1), (who,)))
        kept = await member.connect(mesh, hello(member.address))
        sock = await other.connect(mesh, hello(other.address))
        await until(lambda: mesh.connections == 2 and not mesh._acceptor.strangers)
        monkeypatch.setattr(peers, "OUTSIDER_NS", 0)
        assert await read_frame(sock) == b""
        assert (mesh.turned_away, mesh.connections) == (1, 1)
        monkeypatch.setattr(peers, "OUTSIDER_NS", 10**12)
        somebody = Member(mesh.address, 2, "n")
        mesh.enter_view(View(ViewId(somebody, 2), (somebody,)))  # it was a member until now
        await asyncio.sleep(0.05)
        assert mesh.connections == 1
        monkeypatch.setattr(peers, "OUTSIDER_NS", 0)
        assert await read_frame(kept) == b""

    with_stack(test)


def test_connections_that_are_no_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "OUTSIDERS_MAX", 2)

    async def test(stack: ExitStack) -> None:
        mesh = Mesh()
        stack.callback(mesh.close)
        raws = [Raw(stack) for _ in range(4)]
        socks = [await raw.connect(mesh, hello(raw.address)) for raw in raws]
        for sock in socks[:2]:
            assert await read_frame(sock) == b""
        assert (mesh.turned_away, mesh.connections) == (2, 2)

    with_stack(test)


# Groups

SILENT = """
import socket, sys
address = "127.0.0.1", int(sys.argv[1])
socks = [socket.create_connection(address) for _ in range(1100)]
print("all here", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("options", [{}, {"insecure": True}], ids=["sealed", "insecure"])
def test_beside_1100_silent_connections_a_member_joins_at_once(options: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"only {hard} file descriptors are allowed here")

    async def exchange(a: Group) -> None:
        crowd = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SILENT, str(a.me.address.port)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert crowd.stdout is not None
        try:
            assert await crowd.stdout.readline() == b"all here\n"
            began = time.monotonic()
            found = ListSource([a.me.address])
            joining = join("test", transport="tcp", discovery=found, membership=PATIENT, **options)
            async with joining as b:
                assert time.monotonic() - began < 2.0
                await a.send(b"heard")
                assert [payload for _, payload in await read(b, 1)] == [b"heard"]
                stats: Any = a.stats()["transport"]
                assert stats["strangers"] <= acceptor.STRANGERS_OF_HOST_MAX
                assert stats["turned_away"] >= 1100 - acceptor.STRANGERS_OF_HOST_MAX
        finally:
            crowd.kill()
            await crowd.wait()

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        with_members(1, transport="tcp", membership=FIRST, **options)(exchange)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_has_no_key_is_told_that_others_have(tmp_path: object) -> None:
    async def exchange(a: Group) -> None:
        found = ListSource([a.me.address])
        one = join("test", transport="tcp", discovery=found, insecure=True, membership=FIRST)
        async with one as b:
            await until(lambda: any("sealed datagrams" in each for each in b.explain()))
            await until(lambda: any("that were not sealed" in each for each in a.explain()))
            assert len(a.view) == len(b.view) == 1

    async def within(a: Group) -> None:
        await asyncio.wait_for(exchange(a), DEADLINE_S)

    with_members(1, transport="tcp")(within)
