"""Whether a member is ready, and what its log says of views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopback_groups import with_members

if TYPE_CHECKING:
    import pytest

    from ringcast import Group


def test_who_has_enough_others_is_ready() -> None:
    @with_members(2, min_members=2)
    async def test(a: Group, b: Group) -> None:
        assert a.health() == (True, [])
        await b.leave()
        await a.wait_for_view(lambda view: len(view) == 1)
        is_ready, (reason,) = a.health()
        assert not is_ready
        assert reason == "1 of 2 members are here"
        is_ready, (reason,) = b.health()
        assert not is_ready
        assert reason.startswith("out of its group: ")


def test_views_are_logged_with_who_came_and_who_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="ringcast"):

        @with_members(2)
        async def test(a: Group, b: Group) -> None:
            await a.send_many([b"nothing of these"] * 100)
            await b.leave()
            await a.wait_for_view(lambda view: len(view) == 1)

    assert len(caplog.messages) < 20
    assert "B is out of group 'test': left" in caplog.messages
    said = [text for text in caplog.messages if text.startswith("A: <View")]
    assert said == [
        "A: <View 1: A> of group 'test': A came",
        "A: <View 2: A, B> of group 'test': B came",
        "A: <View 3: A> of group 'test': B gone",
    ]
