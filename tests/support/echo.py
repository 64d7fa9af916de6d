"""A codec for both ends: what it packs it unpacks, as a member elsewhere would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast.model import Address
from ringcast.wire.codec import Codec

if TYPE_CHECKING:
    from ringcast.model import Member


class Echo(Codec):
    """Packs as one member, and unpacks as another that has its incarnation: what seems to come
    from oneself is refused."""

    def __init__(self, group: str, me: Member, *sizes: Any) -> None:
        super().__init__(group, me, *sizes)
        self._me = me._replace(address=Address("elsewhere", 1))
