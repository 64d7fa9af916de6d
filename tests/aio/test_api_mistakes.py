"""What people write at first: it works, or says in one line what to write instead."""

from __future__ import annotations

import array
import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import read, run, with_members

import ringcast
import ringcast.blocking
from ringcast import ConfigError, GroupClosed, RingcastError, UsageError
from ringcast.aio import sources
from ringcast.aio.sources import ListSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ringcast import Group

ALONE: dict[str, Any] = {"discovery": ListSource([])}
BLOCK = "write `async with ringcast.join"


async def awaited() -> None:
    await ringcast.join("x", **ALONE)


async def entered_twice() -> None:
    joining = ringcast.join("x", **ALONE)
    for _ in range(2):
        async with joining:
            pass


async def entered_without_async() -> None:
    with ringcast.join("x", **ALONE):  # type: ignore[attr-defined]
        pass


async def sent_before_joining() -> None:
    await ringcast.join("x", **ALONE).send(b"x")  # type: ignore[attr-defined]


async def read_before_joining() -> None:
    async for _ in ringcast.join("x", **ALONE):  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (awaited, UsageError, f"a join is not for `await`: {BLOCK}"),
        (entered_twice, UsageError, "entered before: call join again for each block"),
        (
            entered_without_async,
            UsageError,
            "not for `with`: .*; in threads, `with ringcast.blocki",
        ),
        (sent_before_joining, AttributeError, f"no 'send' before the group was joined: {BLOCK}"),
        (read_before_joining, UsageError, f"a join is not for `async for`: {BLOCK}"),
    ],
)
def test_a_join_that_is_not_entered_says_how(
    mistake: Callable[[], Awaitable[None]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(mistake())


def test_a_join_that_was_forgotten_warns() -> None:
    with pytest.warns(RuntimeWarning, match="a join was never entered: write `async with"):
        ringcast.join("x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record_level": "full"}, "record_level= does nothing without record="),
        ({"record_interval_s": 1.0}, "record_interval_s= does nothing without record="),
        ({"record_payloads": True}, "record_payloads= does nothing without record="),
        (
            {"record_payloads": True, "record": "here", "receive": False},
            "record_payloads= keeps what is read, and with receive=False nothing is",
        ),
        ({"run_id": "monday"}, "run_id= does nothing without record="),
        ({"file_mode": 0o640}, "file_mode= does nothing without record="),
        ({"file_mode": 0o666, "record": "here"}, "file_mode = 438: must be 0o600, 0o640, .* 0o664"),
        (
            {"config": "orders.toml"},
            "config= is a GroupConfig, as load_config.* reads one, not str",
        ),
        ({"group": ringcast.GroupConfig(group="x")}, "goes by its name: join.config=…"),
        ({"members": 5}, "members = 5: must be a list of addresses"),
        ({"name": 5}, "name = 5: must be 1 to 64 bytes"),
        ({"advertise": 5}, "advertise = 5: must be host:port, such as"),
        ({"discovery": "/tmp"}, "discovery = '/tmp': must be a source with register, candidates"),
        ({"join_timeout_s": "5"}, "join_timeout_s = '5': must be from 0 to 86400 seconds"),
        ({"join_timeout_s": -1}, "join_timeout_s = -1: must be from 0 to 86400 seconds"),
        ({"join_timeout_s": None}, "join_timeout_s = None: must be from 0 to 86400 seconds"),
        ({"receive": "no"}, "receive = 'no': must be True or False"),
        ({"receive_own": "no"}, "receive_own = 'no': must be True or False"),
        ({"signals": "no"}, "signals = 'no': must be True or False"),
        ({"send_time": "no"}, "send_time = 'no': must be True or False"),
        (
            {"membership": ringcast.MulticastConfig()},
            "membership = a MulticastConfig: must be a Me",
        ),
        ({"record_payloads": "no", "record": "."}, "record_payloads = 'no': must be True or"),
        ({"lose": 0.1}, "lose = 0.1: must be a function"),
        ({"give_state": 5, "take_state": print}, "give_state = 5: must be a function"),
        ({"give_state": print, "take_state": 6}, "take_state = 6: must be a function"),
        ({"run_id": 5, "record": "."}, "run_id = 5: must be 1 to 64 bytes of printable text"),
        ({"multicast": 3}, "multicast = 3: must be a MulticastConfig"),
        ({"membership": {}}, "membership = {}: must be a MembershipConfig"),
        ({"members": "127.0.0.1:1"}, "must be a list of addresses: .'127.0.0.1:7800'"),
        ({"members": ["web-1"]}, "must be host:port, such as 127.0.0.1:7800"),
        ({"listen": "no-such-host.invalid:0"}, "no address was found for 'no-such-host.invalid'"),
        ({"when_few": "stop"}, "when_few = 'stop': must be 'raise' or 'wait'"),
        ({"key": b"short"}, "key= has 5 bytes: a key has 32"),
        ({"take_state": print}, "give_state= and take_state= go together"),
        ({"transport": "pigeon"}, "must be 'udp', 'multicast' or 'tcp'"),
        ({"group": ""}, "which group. Give its name"),
    ],
)
def test_what_cannot_be_joined_is_refused(options: dict[str, Any], message: str) -> None:
    place = {} if "members" in options else ALONE

    async def enter() -> None:
        async with ringcast.join(**{"group": "x", **place, **options}):
            pytest.fail("it was joined")

    with pytest.raises(UsageError, match=message):
        run(enter())
    with (
        pytest.raises(UsageError, match=message),
        ringcast.blocking.join(**{"group": "x", **place, **options}),
    ):
        pytest.fail("it was joined")


def test_no_members_are_none() -> None:
    async def enter() -> None:
        members: Any = None
        async with ringcast.join("x", members=members, **ALONE) as group:
            assert len(group.view) == 1

    run(enter())


def test_a_blocking_join_that_is_not_entered_says_how() -> None:
    how = "write `with ringcast.blocking.join"
    joining: Any = ringcast.blocking.join
    with pytest.raises(AttributeError, match=f"no 'send' before the group was joined: {how}"):
        joining("x", **ALONE).send(b"x")
    with pytest.raises(UsageError, match=f"a join is not for `for`: {how}"):
        list(joining("x", **ALONE))
    twice = joining("x", **ALONE)
    with twice:
        pass
    with pytest.raises(UsageError, match="entered before: call join again for each block"), twice:
        pytest.fail("it was entered")

    async def enter() -> None:
        async with joining("x", **ALONE):
            pytest.fail("it was joined")

    with pytest.raises(
        UsageError, match=r"not for `async with`: .*; in tasks, `async with ringcast"
    ):
        run(enter())


async def _place_of_plain(group: Group) -> None:
    receipt = await group.send(b"x", receipt=True)
    async for message in group:
        assert message.payload == b"x"
        break
    await receipt.ordered()


async def _stabilized(group: Group) -> None:
    group.stabilize()


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda group: group.send("text"), "not str: encode it first, as text.encode"),
        (lambda group: group.send(7), "messages are bytes or other buffers, not int"),
        (lambda group: group.send_many(b"text"), "not bytes: write send.payload. for one"),
        (lambda group: group.send_many([b"1", None]), "other buffers, not NoneType"),
        (lambda group: group.send_many(5), "takes an iterable of messages, not int"),
        (lambda group: group.send_many(None), "takes an iterable of messages, not NoneType"),
        (
            lambda group: group.send_many(group.events()),
            r"not async_generator: write \[payload async for payload in …\]",
        ),
        (
            lambda group: group.send(b"x", guarantee=["uniform"]),
            "guarantee is 'fifo', 'uniform' or 'total'",
        ),
        (lambda group: group.wait_for_view(None), "condition = None: must be a function"),
        (lambda group: group.serve(None), "handler = None: must be a function"),
        (lambda group: group.request_all("text"), "not str: encode it first"),
        (lambda group: group.request_all(bytes(2 << 20)), "send more as a message"),
        (lambda group: group.request_all(b"x", timeout=None), "timeout = None: must be from 0"),
        (lambda group: group.send(b"x", to="web-2"), "pass group.view.'its name'"),
        (
            lambda group: group.send(b"x", guarantee="causal"),
            "guarantee is 'fifo', 'uniform' or 'total'",
        ),
        (lambda group: group.request(group.me, "text"), "not str: encode it first"),
        (lambda group: group.send(b"x", headers=[("a", "b")]), "headers are a dict of texts by na"),
        (lambda group: group.send(b"x", headers="trace"), "a dict of texts by name, not 'trace'"),
        (lambda group: group.send(b"x", headers={"a": 1}), "headers are texts, not 'a': 1"),
        (lambda group: group.send(b"x", headers={b"a": "1"}), "headers are texts, not b'a': '1'"),
        (
            lambda group: group.send(b"x", headers={"a": "x" * 1100}),
            "headers of 1104 bytes: 1024 at most; put the rest into the payload",
        ),
        (lambda group: group.send(b"x", channel="x" * 2000), "1024 at most; put the rest into"),
        (lambda group: group.send(b"x", channel=b"locks"), "channel is a text, not b'locks'"),
        (
            lambda group: group.send(b"x", headers={"channel": "locks"}),
            "the header 'channel' is the system's own: send with channel=",
        ),
        (
            lambda group: group.send_many([b"1", b"2"], headers=[{"a": "1"}, {"a": "2"}]),
            "headers are a dict of texts by name, not .{'a': '1'}, {'a': '2'}",
        ),
        (lambda group: group.send("x", headers={"a": "1"}), "not str: encode it first"),
        (
            lambda group: group.send(b"x", guarantee="total", to=group.me),
            "guarantee='total' is for messages to the group: .* so leave out to=",
        ),
        (lambda group: group.send(b"x", guarantee="Total"), "'uniform' or 'total', not 'Total'"),
        (_place_of_plain, "only total messages have a place: send with guarantee='total'"),
        (_stabilized, "this group has acks and no stability rounds: nothing waits for a report"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    misuse: Callable[[Group], Awaitable[Any]], message: str
) -> None:
    @with_members(1)
    async def test(a: Group) -> None:
        with pytest.raises(UsageError, match=message):
            await misuse(a)
        await a.send(b"still works")
        assert await read(a, 1) == [("A", b"still works")]


def test_what_threads_cannot_send_is_refused() -> None:
    nothing: Any = None
    wrong: Any = ["uniform"]
    with ringcast.blocking.join("x", **ALONE) as a:
        for misuse in (a.wait_for_view, a.serve, a.send_many):
            with pytest.raises(UsageError, match=r"must be a function|takes an iterable"):
                misuse(nothing)
        with pytest.raises(UsageError, match="guarantee is 'fifo', 'uniform' or 'total'"):
            a.try_send(b"x", guarantee=wrong)
        with pytest.raises(UsageError, match="timeout = None"):
            a.request_all(b"x", timeout=nothing)


def test_who_is_out_of_the_group_is_told_so() -> None:
    @with_members(1)
    async def test(a: Group) -> None:
        await a.leave()
        for use in (
            lambda: a.send(b"x"),
            lambda: a.send(b"x", guarantee="total"),
            lambda: a.send_many([b"x"]),
            lambda: a.request(a.me, b"x"),
            lambda: a.request_all(b"x"),
            lambda: a.flush(),
        ):
            with pytest.raises(GroupClosed, match="this member is out of its group: left"):
                await use()
        with pytest.raises(GroupClosed, match="this member is out of its group: left"):
            a.try_send(b"x")

    with ringcast.blocking.join("x", **ALONE) as threaded:
        wrong: Any = {"a": 1}
        with pytest.raises(UsageError, match="headers are texts, not 'a': 1"):
            threaded.send(b"x", headers=wrong)
        receipt = threaded.send(b"x", receipt=True)
        with pytest.raises(UsageError, match="only total messages have a place"):
            receipt.ordered(timeout=5.0)
        place = threaded.send(b"x", guarantee="total", receipt=True).ordered(timeout=20.0)
        assert place.position == 1
    with pytest.raises(GroupClosed):
        threaded.send(b"x", guarantee="total")


def test_messages_are_any_buffers_and_many_any_iterable() -> None:
    @with_members(2)
    async def test(a: Group, b: Group) -> None:
        changing = bytearray(b"as it is now")
        await a.send(changing)
        changing[:] = b"................"
        await a.send(memoryview(b"a view"))
        await a.send(array.array("B", b"an array"), to=b.me)
        assert a.try_send(bytearray(b"tried"))
        await a.send_many(b"%d" % number for number in range(3))
        await a.send_many({b"key": 1, bytes(2): 2})
        await a.send_many([bytearray(b"one"), b"two"])
        got = {payload for _, payload in await read(b, 11)}
        assert {b"as it is now", b"a view", b"an array", b"tried", b"one", b"two"} <= got
        assert {b"0", b"1", b"2", b"key", bytes(2)} <= got


def test_a_group_has_no_internals_in_public() -> None:
    assert [name for name in dir(ringcast.Group) if name.startswith("on_")] == []


# Names


def test_localhost_is_this_machine() -> None:
    async def meet() -> None:
        async with (
            ringcast.join("names", name="A", listen="localhost:0", **ALONE) as a,
            ringcast.join("names", members=[f"localhost:{a.me.address.port}"]) as b,
        ):
            assert a.me.address.host == "127.0.0.1"
            assert "A" in b.view

    run(meet())


def test_names_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service has no address before its first member is ready."""
    real, known = socket.getaddrinfo, dict[str, str]()

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host == "orders.example":
            if host not in known:
                raise socket.gaierror(socket.EAI_NONAME, "not known")
            host = known[host]
        return real(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(sources, "AGAIN_S", 0.05)

    async def meet() -> None:
        async with ringcast.join("names", name="A", **ALONE) as a:
            place = f"orders.example:{a.me.address.port}"
            async with ringcast.join("names", name="B", members=[place]) as b:
                assert len(b.view) == 1
                known["orders.example"] = "127.0.0.1"
                async with asyncio.timeout(20):
                    await b.wait_for_view(lambda view: "A" in view)

    run(meet())


def test_a_name_that_leads_away_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    far = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("192.0.2.7", 7800))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: far)

    async def enter() -> None:
        async with ringcast.join("names", members=["orders.example:7800"]):
            pytest.fail("it was joined")

    with pytest.raises(UsageError, match="is not a loopback address: without a key"):
        run(enter())


def test_a_whole_configuration(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('[group]\ngroup = "orders"\nname = "web-1"\n')

    async def enter() -> tuple[str, str]:
        config = ringcast.load_config(file)
        async with ringcast.join(config=config, **ALONE) as group:
            first = group.me.name
        async with ringcast.join("others", config=config, name="web-2", **ALONE) as group:
            return first, group.me.name

    assert run(enter()) == ("web-1", "web-2")


def test_what_is_not_given_is_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_GROUP", "orders")
    monkeypatch.setenv("RINGCAST_NAME", "web-1")
    monkeypatch.setenv("RINGCAST_LISTEN", "localhost:0")

    async def enter() -> tuple[str, str]:
        async with ringcast.join(**ALONE) as first:
            assert first.me.name == "web-1"
        async with ringcast.join("others", name="web-2", **ALONE) as group:
            return group.me.name, group.me.address.host

    assert run(enter()) == ("web-2", "127.0.0.1")


def test_mistakes_are_usage_errors() -> None:
    assert issubclass(ConfigError, UsageError)
    assert issubclass(UsageError, RingcastError)
