"""Cookies: what proves that somebody hears at the address that it names; and permits to propose.

A member keeps nothing of who is not in its view, and says no more to it than it was told, before
that one has brought back a cookie: a MAC over its address and the minute, under a secret of this
member. So whoever names an address at which it does not hear gets nothing done there. The cookie
binds the address alone: whoever hears there may call itself what it likes.

A permit is a MAC over the member that it is for, under a secret of a view that its members learn
from the cut with which it begins. The coordinator of a part gives one to who is to lead it; with
that, and not without, members of its view answer the proposal of somebody who is not in it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ringcast.wire.changes import SECRET_BYTES
from ringcast.wire.members import encode_member, encode_text, encode_view_id

if TYPE_CHECKING:
    from ringcast.model import Address, Member, ViewId

MINUTE_NS: Final = 60_000_000_000
"""A cookie counts in the minute in which it was made, and in the next."""


def _mac(secret: bytes, purpose: bytes, *parts: bytes) -> int:
    """Never 0: that stands for none."""
    mac = blake2b(b"".join(parts), key=secret, digest_size=SECRET_BYTES, person=purpose)
    return int.from_bytes(mac.digest(), "little") or 1


class Cookies:
    """Those of one member."""

    def __init__(self, me: Member, secret: bytes) -> None:
        """`secret`: up to 64 random bytes. No two members make the same cookies, even if they are
        given the same."""
        self._secret = blake2b(encode_member(me), key=secret, person=b"member").digest()

    def make(self, address: Address, now: int) -> int:
        """For who is at that address."""
        place = encode_text(address.host), b"%d %d" % (address.port, now // MINUTE_NS)
        return _mac(self._secret, b"cookie", *place)

    def is_mine(self, cookie: int, address: Address, now: int) -> bool:
        """Whether who is at that address was given it, lately."""
        made = (self.make(address, then) for then in (now, now - MINUTE_NS))
        return cookie != 0 and cookie in made

    def secret_of(self, view_id: ViewId) -> int:
        """Of a view that this member makes."""
        return _mac(self._secret, b"view", encode_view_id(view_id))


def permit(secret: int, member: Member) -> int:
    """To propose to the members of the view with this secret."""
    return _mac(secret.to_bytes(SECRET_BYTES, "little"), b"permit", encode_member(member))
