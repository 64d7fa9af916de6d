"""Each defence is needed: an attack that does nothing does harm once that is switched off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from test_strangers import FAR, STRANGER, formed, frames, tell

from ringcast.aio import acceptor, handshake, peers
from ringcast.aio.acceptor import Acceptor
from ringcast.aio.handshake import Handshake, Malformed
from ringcast.aio.handshake import Hello as MeshHello
from ringcast.aio.keys import KeyRing
from ringcast.aio.peers import PeerTable
from ringcast.errors import DecodeError
from ringcast.model import SEQNO_MAX, Address, Conn, Member, Stream
from ringcast.protocols import early, unicast_receiving
from ringcast.protocols.failure import FailureDetector
from ringcast.protocols.multicast import ReliableMulticast
from ringcast.protocols.views import change, pieces
from ringcast.protocols.views.cookies import Cookies
from ringcast.protocols.views.translation import Translator
from ringcast.window.receive import ReceiveWindow
from ringcast.wire import changes as wire
from ringcast.wire import envelope
from ringcast.wire.changes import cut_into_pieces, tag_of
from ringcast.wire.codec import Codec
from ringcast.wire.envelope import Envelope, Key
from ringcast.wire.frames import Ack, Leave, UnicastData, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringcast.wire.frames import Frame
    from support.view_group import ViewGroup

KEY = Key(bytes(range(32)))
HERE, THERE = Address("127.0.0.1", 7801), Address("127.0.0.1", 7802)
MANY = 1 << 62


def always(*_: object, **__: object) -> bool:
    return True


def never(*_: object, **__: object) -> bool:
    return False


# Attacks: each says whether it has done harm


def greet(group: ViewGroup, highest: int, *, with_cookie: bool) -> None:
    layer, now = group.layer("A"), group.process("A").now
    echo = layer.cookies.make(STRANGER.address, now) if with_cookie else 7
    (hello,) = frames(group)[0]
    assert isinstance(hello, wire.Hello)
    tell(group, "A", STRANGER, replace(hello, highest=highest, echo=echo))


def meets_who_does_not_hear() -> bool:
    group = formed()
    greet(group, 1, with_cookie=False)
    return STRANGER.address in group.layer("A").discovery.candidates


def promises_a_stranger() -> bool:
    group = formed()
    for said in frames(group):
        if isinstance(said[0], wire.Propose):
            for name in "ABC":
                tell(group, name, STRANGER, said[0])
    creators = {group.layer(name).change.follower.promised.creator for name in "ABC"}
    return STRANGER in creators


def raises_counters_far() -> bool:
    group = formed()
    greet(group, FAR, with_cookie=True)
    return group.layer("A").change.highest == FAR


def raises_counters_often() -> bool:
    group = formed()
    for _ in range(5):
        greet(group, group.layer("A").change.highest + (1 << 32), with_cookie=True)
    return group.layer("A").change.highest > 2 << 32


def ends_a_stream_by_its_epoch() -> bool:
    group = formed()
    a, b = group.node("A"), group.node("B")
    tell(group, "B", a.me, UnicastData(Conn(FAR, 1), 1, [b"forged"]))
    a.send([b"mine"], group.process("A").now, to=b.me)
    group.process("A").turn()
    group.run(2_000)
    return group.delivered(b.me, a.me)[-1:] != [b"mine"]


def in_view(group: ViewGroup, name: str, source: Member, frame: Frame) -> None:
    node, now = group.node(name), group.process(name).now
    assert node.view is not None
    said = [wire.InView(tag_of(node.view.id)), frame]
    node.receive_datagrams(Codec(group.config.group, source, 60_000).pack(said, node.me), now)
    node.take_datagrams(now)


def acknowledges_what_was_never_sent() -> bool:
    group = formed()
    in_view(group, "A", group.node("B").me, Ack(Stream.FIFO, FAR, FAR, 1 << 20))
    sending = group.node("A").multicast.senders[Stream.FIFO]
    return any(received == FAR for _, received, _ in sending.acks.entries())


def misses_what_was_never_sent() -> bool:
    group = formed()
    b = group.node("B").me
    in_view(group, "A", b, Watermark(Stream.FIFO, FAR))
    receivers = group.node("A").multicast.receivers
    return any(receiver.repair.known == FAR for receiver in receivers.values())


def keeps_much_of_strangers(count: int, frames_of: Callable[[int], list[Frame]]) -> ViewGroup:
    group = formed()
    for n in range(count):
        for frame in frames_of(8):
            tell(group, "B", Member(Address("10.2.0.1", 1000 + n), 1, ""), frame)
    return group


def endless(count: int) -> list[Frame]:
    return [UnicastData(Conn(2, 1), n + 1, [b"x" * 15_000], more=True) for n in range(count)]


def unfinished(count: int) -> list[Frame]:
    whole = [cut_into_pieces(65, bytes([n]) * 30_000, 15_000) for n in range(count)]
    return [frames[0] for frames in whole]


def keeps_long_messages_of_strangers() -> bool:
    return keeps_much_of_strangers(1, endless).node("B").unicast.strangers.size > 64 << 10


def keeps_messages_of_many_strangers() -> bool:
    return len(keeps_much_of_strangers(20, endless).node("B").unicast.strangers) > 16


def keeps_long_frames_of_strangers() -> bool:
    return keeps_much_of_strangers(1, unfinished).layer("B").pieces.size > 64 << 10


def keeps_frames_of_many_strangers() -> bool:
    return keeps_much_of_strangers(20, unfinished).layer("B").pieces.size > 16 * (64 << 10)


def believes_icmp() -> bool:
    group = formed()
    a, b = group.node("A"), group.node("B")
    for _ in range(10):
        a.transport_hint(b.me.address, group.process("A").now, is_local=False)
    assert a.detector is not None
    return a.detector.suspicions > 0


def hears_what_was_meant_for_another_life() -> bool:
    group = formed()
    b, c = group.node("B"), group.node("C").me
    before = b.me._replace(incarnation=b.me.incarnation + 1)
    said = Codec(group.config.group, c, 60_000).pack([Leave()], before)
    b.receive_datagrams(said, group.process("B").now)
    return c in group.layer("B").requests.leavers


def sealed(member: bytes = b"A", salt: int = 1, group: str = "orders") -> Callable[[], bytes]:
    sealer = Envelope(group, [KEY], bytes([salt]) * 16)
    datagram = b"RC\x02\x00" + bytes([len(member)]) + member + b"the rest"
    return lambda: sealer.seal(datagram)


def opens(reader: Envelope, datagram: bytes, now: int = 0) -> bool:
    return not isinstance(reader.unseal(datagram, now), DecodeError)


def opens_copies() -> bool:
    reader, datagram = Envelope("orders", [KEY], bytes(16)), sealed()()
    assert opens(reader, datagram)
    return opens(reader, datagram)


def opens_one_member_under_two_salts() -> bool:
    reader = Envelope("orders", [KEY], bytes(16))
    assert opens(reader, sealed()())
    return opens(reader, sealed(salt=2)())


def opens_two_members_under_one_salt() -> bool:
    reader, other = Envelope("orders", [KEY], bytes(16)), sealed(b"B")
    assert opens(reader, sealed()())
    other()
    return opens(reader, other())


def believes_what_it_has_not_said() -> bool:
    group = formed()
    in_view(group, "A", group.node("A").me, Leave())
    return group.node("A").me in group.layer("A").requests.leavers


def counts_without_end() -> bool:
    reader = Envelope("orders", [KEY], bytes(16))
    assert opens(reader, sealed()())
    leaping = Envelope("orders", [KEY], bytes([1]) * 16)
    leaping._counter = 1 << 60
    return opens(reader, leaping.seal(b"RC\x02\x00\x01Athe rest"), 1_000_000_000)


def forgets_members_for_strangers() -> bool:
    reader = Envelope("orders", [KEY], bytes(16))
    reader.keep({b"RC\x02\x00\x01A"}, 1)
    assert opens(reader, sealed()())
    for n in range(1, 1100):
        stranger = Envelope("orders", [KEY], n.to_bytes(16, "big"))
        assert opens(reader, stranger.seal(b"RC\x02\x00\x04%04d" % n), n * 10_000_000)
    return opens(reader, sealed(salt=2)())


def derives_without_end() -> bool:
    reader = Envelope("orders", [KEY], bytes(16))
    return sum(opens(reader, sealed(b"%d" % n, n)()) for n in range(100)) > 10


def believes_a_hello_without_the_key() -> bool:
    ours, theirs = (Handshake("orders", KeyRing([each])) for each in (KEY, Key(bytes(32))))
    challenge = ours.challenge()[handshake_head(ours) :]
    said = bytearray(ours.hello(MeshHello(HERE, 1), THERE, challenge)[handshake_head(ours) :])
    forged = theirs.hello(MeshHello(HERE, 1), THERE, challenge)[handshake_head(ours) :]
    said[8:40] = forged[8:40]  # the proof, of another key
    return is_believed(ours, bytes(said), challenge)


def believes_a_recorded_hello() -> bool:
    ours = Handshake("orders", KeyRing([KEY]))
    head = handshake_head(ours)
    said = ours.hello(MeshHello(HERE, 1), THERE, ours.challenge()[head:])[head:]
    return is_believed(ours, said, ours.challenge()[head:])


def handshake_head(ours: Handshake) -> int:
    return len(ours.challenge()) - handshake.CHALLENGE_BYTES


def is_believed(ours: Handshake, said: bytes, challenge: bytes) -> bool:
    try:
        ours.check(said, [THERE], challenge)
    except Malformed:
        return False
    return True


@dataclass(eq=False)
class Connection:
    source: Address | None = None
    peer: Any = None
    begun_at: int = 0


def silent(hosts: int, of_each: int) -> int:
    door = Acceptor(Address("127.0.0.1", 0))
    try:
        for n in range(hosts * of_each):
            link: Any = Connection(Address(f"10.0.0.{n % hosts}", 1 + n))
            door.strangers[link] = None
            while (surplus := door.surplus()) is not None:
                del door.strangers[surplus]
        return len(door.strangers)
    finally:
        door.close()


def keeps_silent_connections_of_a_host() -> bool:
    return silent(1, 100) > 64


def keeps_silent_connections_of_all() -> bool:
    return silent(50, 10) > 128


def outsiders(count: int) -> tuple[PeerTable, list[Connection]]:
    table, links = PeerTable(), []
    for n in range(count):
        peer = table.meet(Address("10.0.0.1", 1 + n))
        assert peer is not None
        links.append(Connection(peer=peer))
        peer.links.append(links[-1])  # type: ignore[arg-type]
    return table, links


def keeps_connections_of_many_outsiders() -> bool:
    table, _ = outsiders(513)
    return table.surplus() is None


def keeps_connections_of_outsiders_for_long() -> bool:
    table, links = outsiders(1)
    return table.expired(61_000_000_000) != links


# Defences, switched off


def believe_hints(plain: Callable[..., None]) -> Callable[..., None]:
    return lambda self, address, now, out, **_: plain(self, address, now, out, is_local=True)


def overhear(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, datagram, **_: plain(self, datagram, overhear=True)


def take_any_ack(self: ReliableMulticast, source: Member, ack: Ack, now: int, out: Any) -> None:
    self.senders[ack.stream].on_ack(source, ack, now, out)
    self._note_ready(self.senders[ack.stream])


class Forgetful(dict[bytes, bytes]):
    def setdefault(self, key: bytes, default: bytes) -> bytes:  # type: ignore[override]
        return default


def forget_salts(plain: Callable[..., None]) -> Callable[..., None]:
    def make(self: Envelope, *given: Any) -> None:
        plain(self, *given)
        self._salts = Forgetful()

    return make


def believe_oneself(plain: Callable[..., Any]) -> Callable[..., Any]:
    def decode(self: Codec, view: memoryview, **_: object) -> tuple[Member, Any]:
        me, self._me = self._me, STRANGER._replace(incarnation=self._me.incarnation)
        try:
            return plain(self, view, overhear=False)  # type: ignore[no-any-return]
        finally:
            self._me = me

    return decode


def forget_identities(plain: Callable[..., None]) -> Callable[..., None]:
    return lambda self, _, aead, epoch: plain(self, b"", aead, epoch)


@dataclass(frozen=True)
class Defence:
    attack: Callable[[], bool]
    where: Any
    name: str
    off: Any
    """In its place; a function of it, if `wraps`."""
    wraps: bool = False


DEFENCES = {
    "cookie": Defence(meets_who_does_not_hear, Cookies, "is_mine", always),
    "permit": Defence(promises_a_stranger, Translator, "is_permitted", always),
    "counter leap": Defence(raises_counters_far, change, "COUNTER_LEAP_MAX", MANY),
    "counter leaps in a second": Defence(raises_counters_often, change, "LEAP_NS", 0),
    "epoch leap": Defence(ends_a_stream_by_its_epoch, unicast_receiving, "EPOCH_LEAP_MAX", MANY),
    "ack of what was sent": Defence(
        acknowledges_what_was_never_sent, ReliableMulticast, "_on_ack", take_any_ack
    ),
    "offset in the window": Defence(
        misses_what_was_never_sent, ReceiveWindow, "last_slot", SEQNO_MAX
    ),
    "bytes of a stranger": Defence(
        keeps_long_messages_of_strangers, early, "STRANGER_BYTES_MAX", MANY
    ),
    "number of strangers": Defence(keeps_messages_of_many_strangers, early, "STRANGERS_MAX", MANY),
    "bytes of a stranger's frames": Defence(
        keeps_long_frames_of_strangers, pieces, "STRANGER_BYTES_MAX", MANY
    ),
    "number of strangers with frames": Defence(
        keeps_frames_of_many_strangers, pieces, "STRANGERS_MAX", MANY
    ),
    "ICMP": Defence(believes_icmp, FailureDetector, "transport_hint", believe_hints, wraps=True),
    "addressee": Defence(
        hears_what_was_meant_for_another_life, Codec, "unpack", overhear, wraps=True
    ),
    "replay": Defence(opens_copies, envelope._Channel, "has_seen", never),
    "one salt": Defence(
        opens_one_member_under_two_salts, Envelope, "__init__", forget_salts, wraps=True
    ),
    "one member": Defence(
        opens_two_members_under_one_salt,
        *(envelope._Channel, "__init__", forget_identities),
        wraps=True,
    ),
    "oneself": Defence(
        believes_what_it_has_not_said, Codec, "_decode_head", believe_oneself, wraps=True
    ),
    "counter of datagrams": Defence(counts_without_end, envelope, "EPOCH_NS", 1e-9),
    "salts of members": Defence(
        *(forgets_members_for_strangers, Envelope, "keep"),
        lambda plain: lambda self, *_: plain(self, (), 0),
        wraps=True,
    ),
    "derivations": Defence(derives_without_end, envelope, "DERIVED_MAX", MANY),
    "TCP proof": Defence(
        believes_a_hello_without_the_key, handshake.hmac, "compare_digest", always
    ),
    "TCP nonce": Defence(believes_a_recorded_hello, handshake, "urandom", bytes),
    "connections of a host": Defence(
        keeps_silent_connections_of_a_host, acceptor, "STRANGERS_OF_HOST_MAX", MANY
    ),
    "connections": Defence(keeps_silent_connections_of_all, acceptor, "STRANGERS_MAX", MANY),
    "connections of outsiders": Defence(
        keeps_connections_of_many_outsiders, peers, "OUTSIDERS_MAX", MANY
    ),
    "time of outsiders": Defence(
        keeps_connections_of_outsiders_for_long, peers, "OUTSIDER_NS", MANY
    ),
}


@pytest.mark.parametrize("name", DEFENCES)
def test_an_attack_does_harm_only_without_its_defence(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defence = DEFENCES[name]
    assert not defence.attack()
    plain = getattr(defence.where, defence.name)
    off = defence.off(plain) if defence.wraps else defence.off
    monkeypatch.setattr(defence.where, defence.name, off)
    assert defence.attack()
