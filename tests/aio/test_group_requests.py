"""Requests and replies on real sockets, leaving, and one's own messages."""

from __future__ import annotations

import asyncio
import inspect
import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from loopback_groups import (
    DEADLINE_S,
    FIRST,
    PATIENT,
    Losing,
    exclude,
    numbered,
    read,
    until,
    vanish,
    with_members,
)

from ringcast import (
    ConfigError,
    Delivered,
    GroupClosed,
    MulticastConfig,
    RequestFailed,
    TimedOut,
    UnicastConfig,
    UsageError,
    ViewInstalled,
)
from ringcast.aio.joining import join
from ringcast.aio.requests import OPEN_MAX, PAYLOAD_BYTES_MAX, UNANSWERED_MAX
from ringcast.aio.sources import ListSource
from ringcast.events import ReplyReceived, RequestReceived
from ringcast.testing import cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from ringcast import Group, Member, Request
    from ringcast.node import Node


def double(request: Request) -> None:
    request.reply(2 * request.payload)


@asynccontextmanager
async def answering(group: Group, how: Callable[[Request], None] = double) -> AsyncIterator[None]:
    """Answer in the background."""

    async def answer() -> None:
        async for request in group.requests():
            how(request)

    task = asyncio.create_task(answer())
    try:
        yield
    finally:
        task.cancel()


def counted(group: Group) -> Any:
    return group.stats()["requests"]


# Asking


def test_a_request_is_answered_though_nobody_reads_the_group() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await a.send_many(numbered("A", 8))
        waiting = asyncio.create_task(a.send(b"no room for this"))
        await until(lambda: any("limited by B" in reason for reason in a.explain()))
        async with answering(b):
            assert await a.request(b.me, b"yes") == b"yesyes"
            assert await a.request(b.me, b"") == b""
        assert not waiting.done()
        assert counted(a)["open"] == counted(b)["unanswered"] == 0
        await asyncio.gather(read(a, 9), read(b, 9), waiting)

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


def test_requests_are_no_messages_whatever_they_look_like() -> None:
    async def exchange(a: Group, b: Group) -> None:
        lookalikes = [b"", b"\x3c" + bytes(8), b"\x3d" + bytes(9)]
        async with answering(b):
            for payload in lookalikes:
                await a.send(payload, to=b.me)
                assert await a.request(b.me, payload) == 2 * payload
        found = []
        async for message in b:
            found.append((message.seqno, message.payload))
            if len(found) == len(lookalikes):
                break
        assert found == list(enumerate(lookalikes, 1))

    with_members(2)(exchange)


def test_a_fifth_of_all_datagrams_is_lost_and_each_answer_fits_its_request() -> None:
    losing = Losing(5)

    async def exchange(*groups: Group) -> None:
        asks = [
            (group, peer, f"{group.me}{peer}{number}".encode())
            for group in groups
            for peer in group.view
            for number in range(OPEN_MAX + 10)
        ]
        async with answering(groups[0]), answering(groups[1]), answering(groups[2]):
            with losing:
                said = await asyncio.gather(
                    *(g.request(to, what, timeout=25) for g, to, what in asks)
                )
        assert said == [2 * what for _, _, what in asks]

    with_members(
        3,
        multicast=MulticastConfig(xmit_interval_s=0.05),
        unicast=UnicastConfig(xmit_interval_s=0.05),
        lose=losing,
    )(exchange)


def test_requests_come_in_order_and_may_be_answered_in_any() -> None:
    async def exchange(a: Group, b: Group) -> None:
        asks = [asyncio.create_task(a.request(b.me, payload)) for payload in numbered("A", 5)]
        held: list[Request] = []
        async for request in b.requests():
            held.append(request)
            if len(held) == 5:
                break
        assert [(r.sender, r.payload) for r in held] == [(a.me, p) for p in numbered("A", 5)]
        assert counted(b)["unanswered"] == 5
        for at in (3, 0, 4, 2):
            double(held[at])
        held[1].refuse("no")
        said = await asyncio.gather(*asks, return_exceptions=True)
        assert [said[at] for at in (0, 2, 3, 4)] == [2 * f"A{at}".encode() for at in (0, 2, 3, 4)]
        assert isinstance(said[1], RequestFailed)
        assert str(said[1]) == "B refuses: no"

    with_members(2)(exchange)


def test_the_largest_request_and_answer_pass_and_larger_ones_are_refused() -> None:
    payload = random.Random(1).randbytes(PAYLOAD_BYTES_MAX)

    def answer(request: Request) -> None:
        with pytest.raises(UsageError, match="send more as a message"):
            request.reply(payload + b"x")
        with pytest.raises(UsageError, match="not str: encode it first"):
            request.reply("text")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a reason is text, not bytes"):
            request.refuse(b"no")  # type: ignore[arg-type]
        request.reply(request.payload[::-1])
        with pytest.raises(UsageError, match="has been answered"):
            request.refuse("after all")

    async def exchange(a: Group, b: Group) -> None:
        async with answering(b, answer):
            assert await a.request(b.me, payload) == payload[::-1]
        with pytest.raises(UsageError, match="send more as a message"):
            await a.request(b.me, payload + b"x")

    with_members(2)(exchange)


@pytest.mark.parametrize(
    ("member", "payload", "timeout", "error"),
    [
        ("B", b"?", 1.0, "a member is meant, not 'B'"),
        (None, b"?", 1.0, "a member is meant, not None"),
        (tuple, b"?", 1.0, "a member is meant, not \\(Address"),
        ("me", "text", 1.0, "not str: encode it first"),
        ("me", b"?", -1.0, "timeout = -1.0: must be from 0 to 86400 seconds"),
        ("me", b"?", None, "timeout = None"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    member: Any, payload: Any, timeout: Any, error: str
) -> None:
    async def exchange(a: Group) -> None:
        whom = tuple(a.me) if member is tuple else a.me if member == "me" else member
        with pytest.raises(UsageError, match=error) as caught:
            await a.request(whom, payload, timeout=timeout)
        assert isinstance(caught.value, ConfigError) == error.startswith("timeout")

    with_members(1)(exchange)


# When there is no answer


def test_the_time_is_up() -> None:
    async def exchange(a: Group, b: Group) -> None:
        with pytest.raises(TimedOut, match=r"^B has not answered within 0.05 s$"):
            await a.request(b.me, b"slow", timeout=0.05)
        assert counted(a)["open"] == 0
        await until(lambda: counted(b)["unread"] == 1)
        assert b.explain()[-1].startswith("1 request waits for this member's application")
        async with answering(b):  # the answer to the first comes to nobody
            assert await a.request(b.me, b"quick") == b"quickquick"

    with_members(2)(exchange)


def test_each_request_has_its_own_time() -> None:
    async def exchange(a: Group, b: Group) -> None:
        patient = asyncio.create_task(a.request(b.me, b"long", timeout=600))
        await until(lambda: counted(b)["unread"] == 1)
        order: list[float] = []

        async def give_up(after: float) -> None:
            with pytest.raises(TimedOut, match=f"within {after:g} s$"):
                await a.request(b.me, b"?", timeout=after)
            order.append(after)

        await asyncio.gather(*map(give_up, (0.3, 0.0, 0.15)))
        assert order == [0.0, 0.15, 0.3]
        async with answering(b):
            assert await patient == b"longlong"

    with_members(2)(exchange)


def test_a_loop_that_is_late_gets_no_later_with_each_time_that_is_up() -> None:
    ended: list[float] = []

    async def give_up(asker: Group, to: Member, after: float) -> None:
        with pytest.raises(TimedOut):
            await asker.request(to, b"?", timeout=after)
        ended.append(asyncio.get_running_loop().time())

    with cluster(2, seed=1) as group:
        a, b = (member.group for member in group.members)

        async def give_up_all() -> None:
            afters = [1 + number / 1e6 for number in range(OPEN_MAX)]  # many in one turn
            await asyncio.gather(*(give_up(a, b.me, after) for after in afters))

        group.run(give_up_all())
    assert len(ended) == OPEN_MAX
    assert max(ended) - min(ended) < 0.000_2  # else it would be a turn for each


def test_a_member_that_departs_fails_what_it_was_asked_at_once() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        asks = [
            asyncio.create_task(a.request(b.me, b"?", timeout=600)) for _ in range(OPEN_MAX + 1)
        ]
        own = asyncio.create_task(a.request(a.me, b"still there"))
        await until(lambda: counted(b)["unread"] == OPEN_MAX)
        assert f"{OPEN_MAX} requests wait for B to answer" in a.explain()
        answered = asyncio.create_task(b.request(a.me, b"forgotten", timeout=600))
        await until(lambda: counted(a)["unread"] == 2)
        vanish(b)
        said = await asyncio.gather(*asks, return_exceptions=True)
        texts = ["B departed before it answered"] * OPEN_MAX + ["B is not in the group"]
        assert [type(error) for error in said] == [RequestFailed] * (OPEN_MAX + 1)
        assert list(map(str, said)) == texts
        with pytest.raises(GroupClosed):
            await answered
        async with answering(a):  # what B has asked is forgotten
            assert await own == b"still therestill there"
        assert counted(a) == {"open": 0, "unread": 0, "unanswered": 0, "refused": 0}

    with_members(3)(exchange)


def test_an_answer_to_who_has_departed_goes_nowhere() -> None:
    async def exchange(a: Group, b: Group) -> None:
        asking = asyncio.create_task(b.request(a.me, b"?"))
        request = await anext(a.requests())
        await b.leave()
        await a.wait_for_view(lambda view: len(view) == 1)
        request.reply(b"too late")
        with pytest.raises(GroupClosed):
            await asking
        assert counted(a)["unanswered"] == 0

    with_members(2)(exchange)


def test_who_asks_too_much_at_once_is_told() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for _ in range(UNANSWERED_MAX):
            with pytest.raises(TimedOut):
                await a.request(b.me, b"?", timeout=0.001)
        await until(lambda: counted(b)["unanswered"] == UNANSWERED_MAX)
        with pytest.raises(RequestFailed, match="B refuses: it has 256 requests"):
            await a.request(b.me, b"?")
        assert counted(b)["refused"] == 1
        async with answering(b):
            await until(lambda: counted(b)["unanswered"] == 0)
            assert await a.request(b.me, b"now") == b"nownow"

    with_members(2)(exchange)


def test_who_is_left_out_is_told_and_asks_again_when_it_is_back() -> None:
    async def exchange(a: Group, b: Group) -> None:
        asking = asyncio.create_task(b.request(a.me, b"?", timeout=600))
        held = await anext(a.requests())
        exclude(b.me, by=a)
        with pytest.raises(RequestFailed, match="A departed before it answered"):
            await asking
        with pytest.raises(RequestFailed, match="B is not in the group"):
            await a.request(b.me, b"?")
        held.reply(b"to nobody")
        await until(lambda: len(a.view) == len(b.view) == 2)
        async with answering(a):
            assert await b.request(a.me, b"back") == b"backback"

    with_members(2)(exchange)


@pytest.mark.parametrize("size", [10, PAYLOAD_BYTES_MAX])
@pytest.mark.parametrize("asker", [0, 1])
def test_who_answers_and_leaves_has_been_heard(asker: int, size: int) -> None:
    """Though the answer and the news of the departure could be in one datagram."""

    async def exchange(*groups: Group) -> None:
        asking, asked = groups[asker], groups[1 - asker]

        async def answer_once() -> None:
            async for request in asked.requests():
                request.reply(bytes(size))
                await asked.leave()

        leaving = asyncio.create_task(answer_once())
        assert await asking.request(asked.me, b"") == bytes(size)
        await leaving

    with_members(2)(exchange)


def test_who_installs_the_next_view_first_asks_who_has_not() -> None:
    """Two parts merge. With this seed one of them is asked before it knows whom it merges with."""
    with cluster(4, seed=1, loss=0.1) as group:
        for member in group.members:
            member.start(answer_all)
        groups = [member.group for member in group.members]
        group.partition(group.members[:2], group.members[2:])

        async def part() -> None:
            await asyncio.gather(
                *(each.wait_for_view(lambda view: len(view) == 2) for each in groups)
            )

        async def ask(asker: Group) -> None:
            await asker.wait_for_view(lambda view: len(view) == 4)
            for asked in groups:
                assert asked is asker or await asker.request(asked.me, b"", timeout=10.0) == b""

        async def ask_all() -> None:
            await asyncio.gather(*map(ask, groups))

        group.run(part())
        group.heal()
        group.run(ask_all())


async def answer_all(group: Group) -> None:
    async for request in group.requests():
        request.reply(request.payload)


def test_requests_to_who_takes_nothing_do_not_pile_up() -> None:
    with cluster(2, seed=1) as group:
        asking, silent = (member.group for member in group.members)
        group.partition(*([member] for member in group.members))

        async def give_up() -> str:
            with pytest.raises((RequestFailed, TimedOut)) as error:
                await asking.request(silent.me, bytes(20_000), timeout=0.05)
            return str(error.value)

        async def give_up_often() -> None:
            told: set[str] = set()
            while not any("takes nothing" in text for text in told):
                told.update(await asyncio.gather(*(give_up() for _ in range(OPEN_MAX))))

        group.run(give_up_often())
        channel: Any = asking.stats()["ControlChannel"]
        assert list(channel["waiting"].values()) == [OPEN_MAX]
        assert channel["dropped"] == 0


def test_what_is_asked_twice_under_one_number_counts_once() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for _ in range(3):
            a._requests.on_request(RequestReceived(b.me, 7, b"once"))
        a._requests.on_request(RequestReceived(b.me, 8, bytes(PAYLOAD_BYTES_MAX + 1)))
        assert (counted(a)["unread"], counted(a)["refused"]) == (1, 3)

    with_members(2)(exchange)


def test_a_reason_need_not_be_proper_text() -> None:
    async def exchange(a: Group, b: Group) -> None:
        async with answering(b, lambda request: request.refuse("no file \udc80")):
            with pytest.raises(RequestFailed, match=r"refuses: no file \?"):
                await a.request(b.me, b"")

    with_members(2)(exchange)


def test_only_the_member_that_was_asked_can_answer() -> None:
    async def exchange(a: Group, b: Group, c: Group) -> None:
        asking = asyncio.create_task(a.request(b.me, b"?"))
        request = await anext(b.requests())
        a._on_event(ReplyReceived(c.me, 1, b"forged", is_refused=False))
        a._on_event(ReplyReceived(b.me, 2, b"of another request", is_refused=False))
        request.reply(b"genuine")
        assert await asking == b"genuine"

    with_members(3)(exchange)


# Cancelling


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_what_comes_behind_a_request_is_read_when_that_has_been_told(transport: str) -> None:
    """Both are there when the loop looks. A message alone does not take the way of requests."""

    async def exchange(a: Group, b: Group) -> None:
        told: list[str] = []
        receive = b._driver.node.datagrams.receive

        def spy(bursts: Iterable[Sequence[memoryview]], now: int, **options: bool) -> object:
            return receive(map(note, bursts), now, **options)

        def note(burst: Sequence[memoryview]) -> Sequence[memoryview]:
            if any(b"message" in bytes(datagram) for datagram in burst):
                told.append("the rest")  # acks and heartbeats may come at any time
            return burst

        def answer(request: Request) -> None:
            told.append(request.payload.decode())
            double(request)

        async def send() -> None:
            assert a.try_send(b"message")

        async with answering(b, answer):
            for name in ("first", "second"):
                await a.request(b.me, b"warm")
                told.clear()
                b._driver.node.datagrams.receive = spy  # type: ignore[method-assign]
                await asyncio.gather(a.request(b.me, name.encode()), send())
                assert await read(b, 1) == [("A", b"message")]
                assert told[:2] == [name, "the rest"]

    with_members(2, transport=transport)(exchange)


def test_who_is_asked_may_be_gone_before_it_reads_on() -> None:
    """By TCP what comes behind is here already, and is not looked at any more."""

    async def exchange(a: Group, b: Group) -> None:
        received = 0

        def count(*_: Any) -> None:
            nonlocal received
            received += 1

        async def send() -> None:
            assert a.try_send(b"message")

        def go(request: Request) -> None:
            if request.payload == b"go":
                vanish(b)
                b._driver.node.datagrams.receive = count  # type: ignore[method-assign]
            else:
                double(request)

        async with answering(b, go):
            await a.request(b.me, b"warm")
            with pytest.raises(RequestFailed, match="departed"):
                await asyncio.gather(a.request(b.me, b"go"), send())
        assert received == 0

    with_members(2, transport="tcp")(exchange)


def test_an_answer_has_left_when_reply_returns_and_others_share_datagrams() -> None:
    async def exchange(a: Group, b: Group) -> None:
        asks = [asyncio.create_task(a.request(b.me, b"?")) for _ in range(OPEN_MAX)]
        await until(lambda: counted(b)["unread"] == OPEN_MAX)
        requests = b.requests()
        waiting = [await anext(requests) for _ in asks]
        await asyncio.sleep(0)  # another turn
        sent = [datagrams_sent(b)]
        for request in waiting:
            double(request)
            sent.append(datagrams_sent(b) - sent[0])
        assert sent[1:] == [1] * OPEN_MAX
        assert await asyncio.gather(*asks) == [b"??"] * OPEN_MAX
        assert datagrams_sent(b) - sent[0] < OPEN_MAX / 4  # acks and signs of life among them

    with_members(2)(exchange)


def datagrams_sent(group: Group) -> int:
    transport: Any = group.stats()["transport"]
    sent: int = transport["sent"]
    return sent


def test_a_request_that_is_never_answered_is_acknowledged_as_soon_as_any() -> None:
    """Nothing else happens at who is asked: the turn that told it has to end by itself."""
    with cluster(2, seed=1) as c:
        a, b = (member.group for member in c.members)

        async def read_all(group: Group) -> None:
            async for _ in group.requests():
                pass

        async def ask() -> None:
            channel = a._driver.node.channel
            assert channel is not None
            for _ in range(4):
                asking = asyncio.create_task(a.request(b.me, b"?", timeout=0.3))
                started = c.now_s
                await asyncio.sleep(0.001)
                while not channel.unicast.senders[b.me].is_acked:
                    await asyncio.sleep(0.0002)
                assert c.now_s - started < 0.010
                with pytest.raises(TimedOut):
                    await asking

        c.members[1].start(read_all)
        c.run(ask())


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("has_more", [False, True], ids=["alone", "with a message behind it"])
def test_an_interrupt_of_who_is_asked_ends_no_turn_for_ever(transport: str, has_more: bool) -> None:
    """The loop may be run again. Whatever came with the request is read then, or has been."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def answer(group: Group) -> None:
        async for request in group.requests():
            double(request)
            if request.payload == b"stop":
                raise KeyboardInterrupt

    async def meet() -> list[Group]:
        found: list[Group] = []
        for name in "AB":
            patience = FIRST if name == "A" else PATIENT
            source = ListSource([group.me.address for group in found])
            joining = join(
                "t", name=name, discovery=source, membership=patience, transport=transport
            )
            found.append(await stack.enter_async_context(joining))
        return found

    async def ask(what: bytes, *messages: bytes) -> bytes:
        task = asyncio.create_task(answer(b))
        try:
            await a.request(b.me, b"warm")
            asking = asyncio.create_task(a.request(b.me, what))
            await asyncio.sleep(0)
            assert all(map(a.try_send, messages))
            return await asking
        finally:
            task.cancel()

    async def go_on() -> None:
        assert await stopped == b"stopstop"
        assert await ask(b"again") == b"againagain"
        if has_more:
            assert await read(b, 1) == [("A", b"message")]
        await stack.aclose()

    try:
        a, b = loop.run_until_complete(meet())
        stopped = loop.create_task(ask(b"stop", *[b"message"] * has_more))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(stopped)
        loop.run_until_complete(asyncio.wait_for(go_on(), DEADLINE_S))
    finally:
        loop.close()


def test_the_time_of_a_node_never_goes_back() -> None:
    """Though whoever is asked asks in turn, in the middle of what arrives."""
    latest: dict[Node, int] = {}
    back: list[str] = []
    inputs = 0

    def watch(node: Node, name: str) -> None:
        owner = node.datagrams if name == "receive" else node
        method = getattr(owner, name)
        signature = inspect.signature(method)

        def watched(*arguments: Any, **named: Any) -> Any:
            nonlocal inputs
            now = signature.bind(*arguments, **named).arguments["now"]
            if now < latest.get(node, 0):
                back.append(name)
            latest[node] = now
            inputs += 1
            return method(*arguments, **named)

        setattr(owner, name, watched)

    async def exchange(a: Group, b: Group) -> None:
        for node in (a._driver.node, b._driver.node):
            for name in ("receive", "say", "handle_timeout"):
                watch(node, name)

        async def send() -> None:
            assert a.try_send(b"message")

        async def answer(group: Group, peer: Member) -> None:
            async with asyncio.TaskGroup() as tasks:
                async for request in group.requests():
                    tasks.create_task(say(group, peer, request))

        async def say(group: Group, peer: Member, request: Request) -> None:
            depth = request.payload[0]
            said = await group.request(peer, bytes([depth - 1])) if depth else b""
            request.reply(bytes([depth]) + said)

        tasks = [asyncio.create_task(answer(a, b.me)), asyncio.create_task(answer(b, a.me))]
        for _ in range(20):
            said, *_ = await asyncio.gather(a.request(b.me, b"\x03"), send())
            assert said == b"\x03\x02\x01\x00"
        for task in tasks:
            task.cancel()

    with_members(2)(exchange)
    assert inputs > 100
    assert not back


def test_a_cancelled_request_leaves_nothing_open() -> None:
    async def exchange(a: Group, b: Group) -> None:
        asks = [asyncio.create_task(a.request(b.me, b"?")) for _ in range(OPEN_MAX + 1)]
        await until(lambda: counted(b)["unread"] == OPEN_MAX)
        for ask in asks:
            ask.cancel()
        results = await asyncio.gather(*asks, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}
        assert counted(a)["open"] == 0
        async with answering(b):
            await until(lambda: counted(b)["unanswered"] == 0)
            # All turns were given back.
            asks = [asyncio.create_task(a.request(b.me, b"!")) for _ in range(2 * OPEN_MAX)]
            assert await asyncio.gather(*asks) == [b"!!"] * 2 * OPEN_MAX

    with_members(2)(exchange)


def test_a_cancelled_wait_for_requests_loses_none() -> None:
    async def exchange(a: Group, b: Group) -> None:
        for number in range(20):
            waiting = asyncio.ensure_future(anext(b.requests()))
            await asyncio.sleep(0)
            asking = asyncio.create_task(a.request(b.me, str(number).encode()))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            request = await anext(b.requests())
            assert request.payload == str(number).encode()
            double(request)
            assert await asking == 2 * request.payload

    with_members(2)(exchange)


def test_a_cancelled_send_many_has_sent_the_first_so_many() -> None:
    async def exchange(a: Group, b: Group) -> None:
        generator = random.Random(3)
        reading = asyncio.create_task(read(b, 1 << 30))
        got: list[bytes] = []
        own = asyncio.create_task(_collect(a, got))
        expected: list[bytes] = []
        for attempt in range(20):
            payloads = numbered(f"{attempt}:", 50)
            sending = asyncio.create_task(a.send_many(payloads))
            for _ in range(generator.randrange(30)):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await a.send(b"end")
            await until(lambda: bool(got) and got[-1] == b"end")
            mine = got[len(expected) : -1]
            assert mine == payloads[: len(mine)]
            expected += [*mine, b"end"]
        assert got == expected
        own.cancel()
        reading.cancel()

    with_members(2, multicast=MulticastConfig(capacity=8))(exchange)


async def _collect(group: Group, got: list[bytes]) -> None:
    async for message in group:
        got.append(message.payload)
        assert message.seqno == len(got)


# One's own messages, and leaving


def test_ones_own_messages_may_be_left_out() -> None:
    async def exchange(a: Group, b: Group) -> None:
        sends = asyncio.gather(*(g.send_many(numbered(g.me.name, 30)) for g in (a, b)))
        got_a, got_b = await asyncio.gather(read(a, 30), read(b, 60))
        assert got_a == [("B", payload) for payload in numbered("B", 30)]
        assert {sender for sender, _ in got_b} == {"A", "B"}
        await sends
        await a.send(b"to myself", to=a.me)
        assert await read(a, 1) == [("A", b"to myself")]

    config = MulticastConfig(capacity=8)
    with_members(2, multicast=config, per_member=[{"receive_own": False}, {}])(exchange)


def test_leaving_before_the_block_ends() -> None:
    async def exchange(a: Group, b: Group) -> None:
        await b.send(b"farewell")
        reading = asyncio.create_task(read(b, 2))
        events = asyncio.create_task(_until_small(a))
        await b.leave()
        assert await reading == [("B", b"farewell")]
        assert await events == [b"farewell"]
        with pytest.raises(GroupClosed):
            await b.send(b"more")
        with pytest.raises(GroupClosed):
            await b.request(a.me, b"?")
        assert [request async for request in b.requests()] == []
        await b.leave()

    with_members(2)(exchange)


async def _until_small(group: Group) -> list[bytes]:
    got: list[bytes] = []
    async for event in group.events():
        match event:
            case Delivered(_, run):
                got += run.payloads
            case ViewInstalled(view) if len(view) == 1 and got:
                return got
    raise AssertionError("closed")
