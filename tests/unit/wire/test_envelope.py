"""The envelope: what opens, what does not, and that nothing opens twice."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING

import pytest

from ringcast.errors import DecodeError, Reject
from ringcast.model import Address, Member, Stream
from ringcast.wire.codec import Codec, header_of
from ringcast.wire.envelope import (
    DERIVED_MAX,
    DERIVING_NS,
    EPOCH_BITS,
    SALTS_MAX,
    SEEN_BITS,
    SPACE_BYTES,
    Envelope,
    Key,
    _Channel,
)
from ringcast.wire.frames import Data, Watermark
from ringcast.wire.seal import Passage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ONE, OTHER = Key(bytes(range(32))), Key(bytes(32))
SECOND = 1_000_000_000


def envelope(salt: int = 1, keys: Sequence[Key] = (ONE,), group: str = "orders") -> Envelope:
    return Envelope(group, keys, salt.to_bytes(16, "little"))


def datagram(name: str = "a", seqno: int = 1) -> bytes:
    member = Member(Address("127.0.0.1", 7800), 42, name)
    (packed,) = Codec("orders", member, 512).pack([Watermark(Stream.FIFO, seqno)])
    return packed


def refusal(opener: Envelope, sealed: bytes, now: int = 0) -> Reject:
    refused = opener.unseal(sealed, now)
    assert isinstance(refused, DecodeError)
    return refused.reason


def let_in(opener: Envelope, sealed: bytes, now: int) -> None:
    assert not isinstance(opener.unseal(sealed, now), DecodeError)


def test_what_is_sealed_opens_once() -> None:
    sender, receiver = envelope(1), envelope(2)
    sealed = [sender.seal(datagram(seqno=seqno)) for seqno in range(1, 4)]
    assert [len(each) for each in sealed] == [len(datagram()) + Envelope.overhead] * 3
    for seqno in (1, 3, 2):
        assert receiver.unseal(memoryview(sealed[seqno - 1]), 0) == datagram(seqno=seqno)
    assert {refusal(receiver, each) for each in sealed} == {Reject.REPLAY}


def long_datagram(seqno: int, size: int) -> bytes:
    member = Member(Address("127.0.0.1", 7800), 42, "a")
    (packed,) = Codec("orders", member, 65_000).pack([Data(Stream.FIFO, seqno, [bytes(size)])])
    return packed


@pytest.mark.parametrize("size", [100, 10_000, 60_000])
def test_a_burst_is_sealed_and_opened_in_the_same_space_again_and_again(size: int) -> None:
    refused: list[DecodeError] = []
    sender = Passage(envelope(1), refused.append)
    receiver = Passage(envelope(2), refused.append)
    plain = [long_datagram(seqno, size) for seqno in range(1, 1 + 60_000 // size)]
    for _ in range(3):
        came = [*map(bytes, sender.seal_burst(plain))]
        assert [len(each) for each in came] == [len(each) + Envelope.overhead for each in plain]
        spoiled = [came[0][:40], bytes(100), *came]
        (opened,) = receiver.open_bursts(iter([spoiled]), 0)
        assert opened == plain
        assert [*receiver.open_bursts(iter([came]), 0)] == []
        assert [error.reason for error in refused[:2]] == [Reject.TOO_SHORT, Reject.NOT_OURS]
        assert {error.reason for error in refused[2:]} == {Reject.REPLAY}
        refused.clear()


def sealed_burst(sender: Envelope, seqnos: range) -> list[bytes]:
    return [*map(bytes, sender.seal_burst([datagram(seqno=seqno) for seqno in seqnos]))]


def opened(receiver: Envelope, burst: Sequence[bytes]) -> list[bytes | Reject]:
    found = receiver.unseal_burst([*map(memoryview, burst)], 0)
    return [one.reason if isinstance(one, DecodeError) else bytes(one) for one in found]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_burst_opens_as_its_datagrams_do_one_by_one(is_known: bool) -> None:
    dice = random.Random(is_known)
    for _ in range(100):
        senders, one, other = (envelope(1), envelope(2)), envelope(3), envelope(3)
        if is_known:
            for sender, name in zip(senders, "ab", strict=True):
                hello = sender.seal(datagram(name))
                assert opened(one, [hello]) == opened(other, [hello])
        sent = [
            sealed
            for sender, name in zip(senders, "ab", strict=True)
            for sealed in sender.seal_burst([datagram(name, n) for n in range(1, 20)])
        ]
        burst = [*map(bytes, sent)]
        for _ in range(dice.randrange(5)):  # lost, twice, in another order, changed, cut short
            at, to = dice.randrange(len(burst)), dice.randrange(len(burst))
            match dice.randrange(5):
                case 0:
                    del burst[at]
                case 1:
                    burst.insert(to, burst[at])
                case 2:
                    burst[at], burst[to] = burst[to], burst[at]
                case 3:
                    burst[at] = burst[at][:-1] + bytes([burst[at][-1] ^ 1])
                case _:
                    burst[at] = burst[at][: dice.randrange(len(burst[at]))]
        found = opened(one, burst)
        assert found == [each for sealed in burst for each in opened(other, [sealed])]
        again = opened(one, burst)  # all that has opened is known
        assert not any(isinstance(each, bytes) for each in again)


def test_a_burst_of_another_sender_under_this_salt_does_not_open() -> None:
    receiver, member, poser = envelope(2), envelope(1), envelope(1)
    let_in(receiver, member.seal(datagram("a")), 0)
    poser.seal(datagram())
    posed = [bytes(one) for one in poser.seal_burst([datagram("b", n) for n in (2, 3)])]
    assert opened(receiver, posed) == [Reject.POSES] * 2
    # Those of the member itself are not taken for copies.
    assert opened(receiver, sealed_burst(member, range(2, 4))) == [
        datagram(seqno=2),
        datagram(seqno=3),
    ]


def test_a_key_ends_within_a_burst() -> None:
    sender, receiver = at_epoch(envelope(1), 1), envelope(2)
    let_in(receiver, sender.seal(datagram()), 0)
    sender._counter = (2 << EPOCH_BITS) - 3
    assert opened(receiver, sealed_burst(sender, range(1, 7))) == [
        datagram(seqno=seqno) for seqno in range(1, 7)
    ]


def test_what_finds_no_room_in_that_space_opens_all_the_same() -> None:
    sender, receiver = envelope(1), envelope(2)
    opened = receiver.unseal(sender.seal(datagram()), 0, SPACE_BYTES - 1)
    assert opened == datagram()


def test_any_byte_that_differs_keeps_it_closed() -> None:
    sender = envelope(1)
    for first in (False, True):
        receiver = envelope(2)
        if not first:
            let_in(receiver, sender.seal(datagram()), 0)
        sealed = sender.seal(datagram())
        for index in range(len(sealed)):
            changed = bytearray(sealed)
            changed[index] ^= 1
            heads = {0: Reject.NOT_OURS, 1: Reject.NOT_OURS, 2: Reject.UNSEALED, 3: Reject.UNSEALED}
            expected = Reject.KEY if 4 <= index < 8 else heads.get(index, Reject.SEAL)
            if 28 <= index < 32 and not first:
                expected = Reject.LEAP
            assert refusal(receiver, bytes(changed), index * SECOND) is expected, index
        for size in range(len(sealed)):
            reason = refusal(receiver, sealed[:size], (size + 1000) * SECOND)
            assert reason in (Reject.TOO_SHORT, Reject.SEAL)
        assert receiver.unseal(sealed, 0) == datagram()


def test_neither_what_is_not_sealed_nor_what_another_key_or_group_has_sealed_opens() -> None:
    receiver = envelope(2)
    assert refusal(receiver, bytes(48) + datagram()) is Reject.NOT_OURS
    assert refusal(receiver, datagram() + bytes(48)) is Reject.UNSEALED
    assert refusal(receiver, envelope(1, [OTHER]).seal(datagram())) is Reject.KEY
    assert refusal(receiver, envelope(1, group="payments").seal(datagram())) is Reject.SEAL


def test_a_salt_is_of_one_member() -> None:
    sender, receiver = envelope(1), envelope(2)
    let_in(receiver, sender.seal(datagram("a")), 0)
    assert refusal(receiver, sender.seal(datagram("b"))) is Reject.POSES
    assert receiver.unseal(sender.seal(datagram("a", 2)), 0) == datagram("a", 2)


def test_a_member_has_one_salt() -> None:
    """Who has the key and comes later does not pass for a member that is known."""
    member, poser, receiver = envelope(1), envelope(3), envelope(2)
    let_in(receiver, member.seal(datagram("a")), 0)
    assert refusal(receiver, poser.seal(datagram("a", 2))) is Reject.POSES
    assert refusal(receiver, poser.seal(datagram("a", 3)), 1) is Reject.POSES
    assert receiver.unseal(poser.seal(datagram("b")), 2) == datagram("b")
    member.use_keys([OTHER])
    receiver.use_keys([OTHER, ONE])
    assert receiver.unseal(member.seal(datagram("a", 4)), 3) == datagram("a", 4)


def test_a_salt_is_of_one_member_whatever_key_it_is_used_with() -> None:
    """Otherwise the member that changes its key later would be the one that poses."""
    member, poser, receiver = envelope(1, [ONE, OTHER]), envelope(1, [OTHER]), envelope(2)
    receiver.use_keys([ONE, OTHER])
    let_in(receiver, member.seal(datagram("a")), 0)
    assert refusal(receiver, poser.seal(datagram("x"))) is Reject.POSES
    for each in (member, receiver):
        each.use_keys([OTHER, ONE])
    assert receiver.unseal(member.seal(datagram("a", 2)), 0) == datagram("a", 2)


def test_who_names_nobody_pins_no_salt() -> None:
    """A beginning that fits everybody of so long a name would pass for any of them."""
    receiver, poser, said = envelope(2), envelope(3), datagram("a")
    for cut in range(5, 5 + said[4]):
        assert refusal(receiver, poser.seal(said[:cut]), cut * SECOND) is Reject.POSES
    let_in(receiver, envelope(1).seal(said), 0)
    assert refusal(receiver, poser.seal(said)) is Reject.POSES


def test_keys_are_exchanged_without_a_loss() -> None:
    """Add the new one everywhere, seal with it, remove the old one."""
    one, two = envelope(1), envelope(2)
    for keys in ([ONE], [ONE, OTHER], [OTHER, ONE], [OTHER]):
        for changed, other in ((one, two), (two, one)):
            sealed = other.seal(datagram())
            changed.use_keys(keys)
            assert changed.unseal(sealed, 0) == datagram()
            assert other.unseal(changed.seal(datagram()), 0) == datagram()
    assert refusal(one, envelope(3).seal(datagram())) is Reject.KEY
    assert refusal(one, envelope(2).seal(datagram())) is Reject.KEY


def test_a_copy_of_a_process_seals_with_another_salt() -> None:
    sender = envelope(1)
    first = sender.seal(datagram())
    sender.renew(bytes(16))
    again = sender.seal(datagram())
    assert first[32:] != again[32:]
    assert envelope(2).unseal(first, 0) == envelope(2).unseal(again, 0) == datagram()


def test_another_key_is_derived_after_so_many_datagrams() -> None:
    sender, receiver = envelope(1), envelope(2)
    before = [sender.seal(datagram(seqno=seqno)) for seqno in (1, 2)]
    sender._counter = (1 << EPOCH_BITS) - 2
    around = [sender.seal(datagram(seqno=seqno)) for seqno in (3, 4, 5)]
    assert receiver.unseal(before[0], 0) == datagram(seqno=1)
    for at in (0, 2, 1):
        assert receiver.unseal(around[at], 0) == datagram(seqno=3 + at)
    assert refusal(receiver, before[1]) is Reject.REPLAY


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 20))]
)
def test_what_was_seen_is_known_and_nothing_else_as_far_as_is_remembered(seed: int) -> None:
    dice = random.Random(seed)
    channel, seen, high = _Channel(b"", None, 0), set[int](), 0  # type: ignore[arg-type]
    for _ in range(3000):
        leap = dice.choice([1, 1, 2, 9, 1000, SEEN_BITS - 1, SEEN_BITS, 3 * SEEN_BITS])
        counter = max(1, dice.choice([high + leap, high - leap, high - dice.randrange(70_000)]))
        if counter > high - SEEN_BITS + 8:
            assert channel.has_seen(counter) == (counter in seen)
        else:
            assert channel.has_seen(counter)
        if not channel.has_seen(counter):
            channel.see(counter)
            seen.add(counter)
            high = max(high, counter)


def test_unknown_senders_cost_a_bounded_number_of_keys() -> None:
    receiver, known = envelope(0), envelope(1)
    let_in(receiver, known.seal(datagram()), 0)
    head = known.seal(datagram())[:8]
    forged = [head + bytes([salt]) * 16 + bytes(99) for salt in range(2, 9)]
    for start in (DERIVING_NS, 2 * DERIVING_NS, 99 * DERIVING_NS):
        for number in range(DERIVED_MAX + 20):
            expected = Reject.SEAL if number < DERIVED_MAX else Reject.SALTS
            assert refusal(receiver, forged[number % 7], start + number) is expected
        assert receiver.unseal(known.seal(datagram()), start) == datagram()


def numbered(whose: bytes, counter: int) -> bytes:
    """A forgery."""
    return whose[:24] + counter.to_bytes(8, "little") + bytes(99)


def at_epoch(sender: Envelope, epoch: int) -> Envelope:
    sender._counter = epoch << EPOCH_BITS
    return sender


def test_counters_far_behind_cost_no_more() -> None:
    receiver, known = envelope(0), at_epoch(envelope(1), 9)
    let_in(receiver, known.seal(datagram()), 0)
    forged = [numbered(known.seal(datagram()), number << EPOCH_BITS) for number in (2, 3)]
    receiver._channels[forged[0][:24]].high = 0  # as if they were not known to be old
    found = [refusal(receiver, forged[number % 2], SECOND) for number in range(99)]
    assert found == [Reject.SEAL] * DERIVED_MAX + [Reject.SALTS] * (99 - DERIVED_MAX)


def test_a_counter_leaps_no_further_than_anybody_counts() -> None:
    """By somebody who has the key, too: a member would be silent for ever behind it."""
    receiver, member = envelope(0), envelope(1)
    let_in(receiver, member.seal(datagram()), 0)
    for epoch, now, expected in (
        (2, SECOND - 1, Reject.LEAP),
        (1 << 39, SECOND - 1, Reject.LEAP),
        (2, SECOND, None),
        (6, 3 * SECOND, Reject.LEAP),
        (6, 4 * SECOND, None),
    ):
        sealed = at_epoch(envelope(1), epoch).seal(datagram())
        found = receiver.unseal(sealed, now)
        assert (found.reason if isinstance(found, DecodeError) else None) is expected


def test_another_key_of_a_known_salt_is_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many datagrams somebody forges of it, and whatever their counters."""
    derived: list[tuple[bytes, int]] = []
    plain = Key.derive

    def derive(self: Key, group: str, salt: bytes, epoch: int) -> AESGCM:
        derived.append((self.id, epoch))
        return plain(self, group, salt, epoch)

    receiver, known = envelope(0, [ONE, OTHER]), at_epoch(envelope(1, [ONE, OTHER]), 1)
    let_in(receiver, known.seal(datagram()), 0)
    whose = envelope(1, [OTHER]).seal(datagram())
    monkeypatch.setattr(Key, "derive", derive)
    for number in range(1, 400):
        forged = numbered(whose, (number % 4) << EPOCH_BITS | number)
        assert refusal(receiver, forged) is (Reject.LEAP if number % 4 == 3 else Reject.SEAL)
    assert sorted(derived) == [(OTHER.id, epoch) for epoch in range(3)]
    known.use_keys([OTHER, ONE])
    assert receiver.unseal(known.seal(datagram()), 0) == datagram()


def test_what_comes_back_from_a_mirror_does_not_open() -> None:
    member = envelope(1)
    assert refusal(member, member.seal(datagram())) is Reject.OURS


def test_a_member_that_seals_with_another_key_by_now_is_known() -> None:
    receiver, known = envelope(0, [ONE, OTHER]), envelope(1, [ONE, OTHER])
    let_in(receiver, known.seal(datagram()), 0)
    head = known.seal(datagram())[:8]
    for salt in range(2, 99):
        refusal(receiver, head + bytes([salt]) * 16 + bytes(99))
    known.use_keys([OTHER, ONE])
    assert receiver.unseal(known.seal(datagram()), 0) == datagram()


def test_copies_are_known_also_when_a_key_was_removed_and_came_back() -> None:
    receiver, known = envelope(0), envelope(1)
    sealed = known.seal(datagram())
    let_in(receiver, sealed, 0)
    receiver.use_keys([OTHER])
    assert refusal(receiver, sealed) is Reject.KEY
    receiver.use_keys([OTHER, ONE])
    assert refusal(receiver, sealed) is Reject.REPLAY


def test_the_salts_used_last_are_kept() -> None:
    receiver = envelope(0)
    senders = [envelope(salt) for salt in range(1, SALTS_MAX + 2)]
    first = [sender.seal(datagram(str(at))) for at, sender in enumerate(senders)]
    for number, sealed in enumerate(first):
        let_in(receiver, sealed, number * SECOND)
        let_in(receiver, senders[0].seal(datagram("0")), number * SECOND + 1)
    assert len(receiver._channels) == SALTS_MAX
    assert refusal(receiver, first[0]) is Reject.REPLAY
    assert refusal(receiver, first[-1]) is Reject.REPLAY
    assert len(receiver._salts) == SALTS_MAX


def test_salts_of_the_view_are_kept_whatever_else_opens() -> None:
    """Who could have them forgotten would pass for a member by another salt."""
    receiver, member, poser = envelope(0, [ONE, OTHER]), envelope(1), envelope(2)
    let_in(receiver, member.seal(datagram()), 0)
    receiver.keep({header_of("orders", Member(Address("127.0.0.1", 7800), 42, "a"))}, 1)
    flood(receiver, range(10, SALTS_MAX + 20))
    assert refusal(receiver, poser.seal(datagram())) is Reject.POSES
    assert receiver.unseal(member.seal(datagram()), 0) == datagram()
    receiver.keep((), 0)
    flood(receiver, range(2000, 2000 + SALTS_MAX))
    assert receiver.unseal(poser.seal(datagram()), 0) == datagram()


def flood(receiver: Envelope, numbers: range) -> None:
    """Strangers with the key, one a second."""
    for number in numbers:
        sealed = envelope(number).seal(datagram(str(number)))
        let_in(receiver, sealed, number * SECOND)


def test_who_has_changed_its_key_stays_known_when_its_first_salt_is_forgotten() -> None:
    receiver, member, poser = envelope(0, [ONE, OTHER]), envelope(1), envelope(2)
    let_in(receiver, member.seal(datagram()), 0)
    member.use_keys([OTHER, ONE])
    let_in(receiver, member.seal(datagram()), 9999 * SECOND)
    flood(receiver, range(10, 9 + SALTS_MAX))
    assert len(receiver._channels) == SALTS_MAX
    assert refusal(receiver, poser.seal(datagram())) is Reject.POSES


def test_of_keys_that_were_removed_no_more_is_kept() -> None:
    receiver = envelope(0)
    for number in range(2 * SALTS_MAX):
        key = Key(number.to_bytes(32, "big"))
        receiver.use_keys([key])
        let_in(receiver, envelope(1 + number, [key]).seal(datagram(str(number))), number * SECOND)
    assert len(receiver._retired) <= SALTS_MAX
    assert len(receiver._salts) <= SALTS_MAX + 1


def test_a_key_stands_in_no_text() -> None:
    secret = bytes(range(32))
    for text in (repr(ONE), str(ONE), repr(vars(envelope()))):
        assert secret.hex() not in text
        assert repr(secret)[2:20] not in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(ONE)
