"""What people do at first with structures: it works, or a line says what to do instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import run

from ringcast import UsageError, replicated
from ringcast.aio.sources import ListSource
from ringcast.replicated import Codec, Space

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE: dict[str, Any] = {"discovery": ListSource([])}


def fails(*_: object) -> Any:
    raise ZeroDivisionError("of the codec")


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: Space(timeout_s=-1.0), "timeout_s = -1.0: must be from 0 to 86400 seconds"),
        (lambda: Space(timeout_s="5"), "timeout_s = '5': must be from 0"),  # type: ignore[arg-type]
        (lambda: Space(on_diverged=5), "on_diverged = 5: must be a function"),  # type: ignore[arg-type]
        (lambda: Space().leader("x", on_leader=5), "on_leader = 5: must be a function"),  # type: ignore[arg-type]
        (lambda: Space().dict("x", "json"), r"a codec is a Codec\(encode, decode\), not 'json'"),  # type: ignore[arg-type]
        (lambda: Space().dict("x", json), r"a codec is a Codec\(encode, decode\), not <module"),  # type: ignore[arg-type]
        (lambda: Space().dict(5), "a structure is named by a text of 1 to 255 bytes, not 5"),  # type: ignore[arg-type]
        (lambda: Space().lock([]), r"a structure is named by a text .*, not \[\]"),  # type: ignore[arg-type]
        (lambda: Space().counter(""), "a structure is named by a text of 1 to 255 bytes, not ''"),
    ],
)
def test_what_cannot_be_a_structure_is_refused(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        misuse()


MISTAKES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.json.set(5, 1), "keys of json are texts, not 5"),
    (lambda s: s.json.set("\ud800", 1), "keys of json are texts, not "),
    (lambda s: s.json.compare_and_set(None, 1, 2), "keys of json are texts, not None"),
    (lambda s: s.json.delete(b"k"), "keys of json are texts, not b'k'"),
    (lambda s: s.json.set("k", {1}), r"json\['k'\] cannot be \{1\}: .* not JSON serializable"),
    (lambda s: s.json.update([("k", 1)]), r"update takes a dict of values by key, not \[\('k', 1"),
    (lambda s: s.json.set("k", 1, token=5), "a token is what a lock grants .*, not 5"),
    (lambda s: s.bytes.set("k", 3), r"bytes\['k'\] cannot be 3: memoryview: a bytes-like"),
    (lambda s: s.bytes.set("k", "text"), r"bytes\['k'\] cannot be 'text': memoryview: a bytes-"),
    (lambda s: s.fails.set("k", 1), r"fails\['k'\] cannot be 1: of the codec"),
    (lambda s: s.texts.set("k", 1), "the codec of texts makes str of a value: make bytes of it"),
    (lambda s: s.nones.set("k", 1), "the codec of nones makes NoneType of a value: make bytes"),
    (lambda s: s.count.add("1"), "count counts in whole numbers, not '1'"),
]


class Structures:
    """One of each kind that mistakes are made with."""

    def __init__(self) -> None:
        self.space = Space()
        self.json = self.space.dict("json")
        self.bytes = self.space.dict("bytes", replicated.BYTES)
        self.fails = self.space.dict("fails", Codec(fails, bytes))
        self.texts = self.space.dict("texts", Codec(str, bytes))  # type: ignore[arg-type]
        self.nones = self.space.dict("nones", Codec(lambda _: None, bytes))  # type: ignore[arg-type, return-value]
        self.unread = self.space.dict("unread", Codec(bytes, fails))
        self.count = self.space.counter("count")


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_done_is_refused_and_the_space_goes_on() -> None:
    async def main() -> None:
        all_ = Structures()
        async with all_.space.join("x", **ALONE):
            for misuse, message in MISTAKES:
                with pytest.raises(UsageError, match=message):
                    await misuse(all_)
            await all_.unread.set("k", b"bytes")
            with pytest.raises(ZeroDivisionError, match="of the codec"):
                _ = all_.unread["k"]
            await all_.bytes.set("k", bytearray(b"still works"))
            assert all_.bytes["k"] == b"still works"
            assert await all_.count.add(2) == 2

    run(main())
