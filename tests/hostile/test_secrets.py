"""A key stands in nothing that people, programs or disks get to see; its id does."""

from __future__ import annotations

import base64
import copy
import json
import logging
import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from aio.loopback_groups import read, with_members
from ringcast import join
from ringcast.aio.answers import answer
from ringcast.aio.keys import keys_in, keys_of, read_key_file
from ringcast.aio.loop import run
from ringcast.aio.prometheus import exposition
from ringcast.aio.sources import ListSource
from ringcast.config import GroupConfig
from ringcast.errors import JoinTimeout, RingcastError
from ringcast.wire.envelope import Key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringcast import Group

KEY = bytes(range(100, 132))
OTHER = bytes(range(200, 232))


def forms(key: bytes) -> list[bytes]:
    texts = [key.hex(), key.hex().upper(), repr(key)[2:-1], base64.b64encode(key).decode()]
    return [key, *(text.encode() for text in texts)]


def assert_no_secret(what: object, found: bytes) -> None:
    for key in (KEY, OTHER):
        for form in forms(key):
            assert form[:12] not in found, f"{what} has a key"


def texts_of(thing: object) -> bytes:
    return f"{thing!r} {thing!s} {thing:}".encode()


def test_the_search_finds_what_it_is_for() -> None:
    for form in forms(KEY):
        with pytest.raises(AssertionError, match="a log has a key"):
            assert_no_secret("a log", b"before " + form + b" behind")


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_nothing_that_a_member_says_of_itself_has_the_key(
    transport: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "group.key"
    path.touch(0o600)
    path.write_text(f"{KEY.hex()}\n{OTHER.hex()}\n")
    traces = tmp_path / "traces"
    recorded = {"record": traces, "record_level": "full", "record_payloads": True}

    @with_members(2, key=path, transport=transport, per_member=[recorded, {}])
    async def test(a: Group, b: Group) -> None:
        await a.send(b"said")
        assert await read(b, 1) == [("A", b"said")]
        await read(a, 1)
        driver: Any = a._driver
        lock, envelope = driver._lock, driver._lock.envelope
        things = [a, b, driver, driver.node, driver.node.config, envelope, lock, lock.keys]
        things += [
            driver.transport,
            *lock.keys.keys,
            driver.node.datagrams.passage,
            driver.membership,
        ]
        things += [getattr(driver.transport, "_handshake", None), *envelope._channels.values()]
        for thing in things:
            assert_no_secret(type(thing).__name__, texts_of(thing))
        strange = Key(bytes(32))
        with pytest.raises(JoinTimeout) as caught:
            async with join(
                *("test",),
                key=bytes(32),
                transport=transport,
                discovery=ListSource([a.me.address]),
                must_exist=True,
                join_timeout_s=0.3,
            ):
                pass
        said = [
            *a.explain(),
            *map(str, caught.value.args),
            *traceback.format_exception(caught.value),
        ]
        assert_no_secret("what is said", "\n".join(said).encode())
        assert strange.id.hex() in str(caught.value)
        stats = a.stats()
        assert_no_secret("stats", json.dumps(stats, default=repr).encode())
        figures = exposition([answer({"ask": "top"}, a, driver)])
        assert_no_secret("figures", figures.encode())
        assert_no_secret("settings", repr(a.settings).encode())
        lock.keys.forget()
        path.write_text(KEY.hex()[:-1] + "\n" + OTHER.hex() + "00\n")
        lock.look(driver.now())

    assert "the keys are as they were" in caplog.text
    assert_no_secret("the log", caplog.text.encode())
    files = [file for file in traces.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert_no_secret(file.name, file.read_bytes())


DAMAGED: list[Callable[[Path], object]] = [
    lambda path: read_key_file(path),
    lambda path: keys_of(KEY[:-1]),
    lambda path: keys_of(KEY.hex()),
    lambda path: keys_of(bytearray(KEY)),  # type: ignore[arg-type]
    lambda path: keys_in(KEY.hex() + "\n" + KEY.hex(), "RINGCAST_KEY"),
    lambda path: keys_in(KEY.hex() + "zz", "RINGCAST_KEY"),
    lambda path: GroupConfig(group="test", key_file=KEY),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("mistake", DAMAGED)
def test_no_error_has_the_key(mistake: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "group.key"
    path.touch(0o600)
    path.write_text(f"{KEY.hex()}{OTHER.hex()}\n")
    with pytest.raises(RingcastError) as caught:
        mistake(path)
    assert_no_secret("an error", "".join(traceback.format_exception_only(caught.value)).encode())
    assert caught.value.__suppress_context__ or caught.value.__context__ is sys.exception()


def test_no_error_of_the_environment_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_KEY", KEY.hex() + "0")

    async def main() -> None:
        async with join("test"):
            pass

    with pytest.raises(RingcastError) as caught:
        run(main())
    assert_no_secret("an error", str(caught.value).encode())


@pytest.mark.parametrize("dump", [pickle.dumps, copy.deepcopy])
def test_a_key_is_not_copied_into_files(dump: Callable[[object], object]) -> None:
    for thing in (Key(KEY), keys_of(KEY)):
        with pytest.raises(TypeError, match="a key is not pickled"):
            dump(thing)
