"""Handle: what an application holds of a structure.

Reading is of the copy that is here. What changes something takes its place in the order of all
members, and returns its result when it has had it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ringcast.replicated.encoding import encode_token
from ringcast.replicated.structures import States

if TYPE_CHECKING:
    from ringcast.replicated.encoding import Token
    from ringcast.replicated.space import Space

S = TypeVar("S", bound=States)


class Handle(Generic[S]):
    """What all of them do. Made by a space."""

    _kind: ClassVar[Any]

    def __init__(self, space: Space, name: str) -> None:
        self.name = name
        self._space = space
        self._state: S = self._kind(name)

    async def _order(self, *body: bytes, token: Token | None = None) -> Any:
        if token is not None:
            body = (b"with", *encode_token(token), *body)
        return await self._space._new(self.name, body).run(self._space.timeout_s)

    def _on_notices(self) -> None:
        """The state has changed, by an operation or a view."""
        self._state.notices.clear()

    def _on_state(self, state: S) -> None:
        """The state is another one: that of a member whose history counts."""
        self._state = state

    def _on_exile(self) -> None:
        """The others have been without this member."""

    def _on_close(self) -> None:
        """There is nothing more to come."""
