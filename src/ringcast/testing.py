"""Run your own application as the members of a group, in virtual time and under seeded faults.

    with cluster(3, seed=1, loss=0.1) as c:
        c.start(app)                    # `async def app(group)`, in each of three members
        c.run(asyncio.sleep(60))        # a minute passes, in a fraction of a second
        c.members[0].crash()
        c.run(c.members[1].group.wait_for_view(lambda view: len(view) == 2))

The members are real: the code that runs over sockets runs here over a network of this process.
asyncio's timers are on a virtual clock, which jumps to whatever comes next. One seed decides what
is lost, copied and late, so a run that has failed fails again.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from ringcast.aio.host import HOST
from ringcast.aio.joining import join
from ringcast.arguments import JoinOptions
from ringcast.errors import ConfigError, UsageError
from ringcast.sim.clock import VirtualClock
from ringcast.sim.event_loop import NS_PER_S, VirtualLoop
from ringcast.sim.sockets import Internet, VirtualHost

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterator,
        Sequence,
    )
    from contextvars import Context

    from ringcast.aio.group import Group
    from ringcast.aio.state import GiveState, TakeState

T = TypeVar("T")
App: TypeAlias = "Callable[[Group], Coroutine[Any, Any, T]]"
Work: TypeAlias = "Coroutine[Any, Any, T] | Generator[Any, None, T]"

LIMIT_S = 600.0
"""How long, in virtual time, `run` waits if nothing else is said."""

CLEANUP_S = 60.0
"""How long tasks that were cancelled may take to end, in virtual time."""

__all__ = ["Cluster", "MemberOptions", "Process", "cluster"]


class MemberOptions(JoinOptions, total=False):
    """All that `ringcast.join` takes, but for the group."""

    give_state: GiveState | None
    take_state: TakeState | None


class Process:
    """One process of the cluster. Its tasks are those that `start` began, and all they make."""

    def __init__(self, host: VirtualHost, name: str, fail: Callable[[BaseException], None]) -> None:
        self.name = name
        self._host = host
        self._fail = fail
        self._group: Group | None = None
        self._main: asyncio.Task[None] | None = None
        self._may_leave = asyncio.Event()
        self._options: MemberOptions = {}

    def __repr__(self) -> str:
        return f"<{self.name}, {'running' if self.is_running else 'gone'}>"

    @property
    def is_running(self) -> bool:
        return self._host.is_up

    @property
    def group(self) -> Group:
        """Its group; UsageError if it has not joined one, or joined it by itself."""
        if self._group is None:
            raise UsageError(
                f"{self.name} has not joined here: what a launched main() joins is its own"
            )
        return self._group

    def start(self, app: App[T]) -> asyncio.Task[T]:
        """Begin `app(group)` in this process. What it raises is raised by the cluster's `run`."""
        return self._begin(app(self.group))

    def crash(self, *, silently: bool = False) -> None:
        """As after `kill -9`: nothing more is sent, its tasks are cancelled, and who sends to its
        port is told that nobody listens. `silently`: as without power, so that others have to
        wait until they miss it."""
        self._host.stop(silently=silently)

    def pause(self) -> None:
        """As after `kill -STOP`: its tasks and timers stand still, and what is sent to it waits in
        its socket buffer. What you call on its group leaves when it resumes."""
        self._check_running()
        self._host.pause()

    def resume(self) -> None:
        """As after `kill -CONT`: what has waited happens at once, in its order."""
        self._host.resume()

    def delay_timers(self, late_s: float) -> None:
        """From now on each of its timers is up to so late, as on a machine with too much to do;
        0 ends it. The seed decides how late."""
        _check_at_least_0("late_s", late_s)
        self._host.late_s = late_s

    def skew_clock(self, rate: float = 1.0, *, jump_s: float = 0.0) -> None:
        """From now on its clock runs at this rate, so many seconds ahead of what it showed:
        `loop.time()`, and every timer that is set later. It never goes back."""
        if not 0.001 <= rate <= 1000.0:
            raise ConfigError("rate", rate, "0.001 to 1000")
        _check_at_least_0("jump_s", jump_s)
        self._host.change_clock(rate, round(jump_s * NS_PER_S))

    def _check_running(self) -> None:
        if not self.is_running:
            raise UsageError(f"{self.name} is gone: join another process")

    async def leave(self) -> None:
        """In good order, as at the end of an `async with ringcast.join(…)`; then end."""
        if self._main is None:
            raise UsageError(f"{self.name} was launched: it leaves when its main() ends")
        self._may_leave.set()
        await asyncio.wait([self._main])
        self._host.stop(silently=False)

    async def _join(self, group: str, options: MemberOptions) -> None:
        self._options = options
        named: MemberOptions = {**options, "name": self.name}
        joined: asyncio.Future[Group] = asyncio.get_running_loop().create_future()

        async def main() -> None:
            try:
                async with join(group, **named) as handle:
                    joined.set_result(handle)
                    await self._may_leave.wait()
            except Exception as error:
                if joined.done():
                    raise
                joined.set_exception(error)

        self._main = self._begin(main())
        waiting: list[asyncio.Future[Any]] = [self._main, joined]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not joined.done():
            raise UsageError(f"{self.name} crashed before it was in its group")
        self._group = joined.result()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if not self.is_running:
            coroutine.close()
        self._check_running()
        task = self._host.spawn(coroutine)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.is_running:
            error.add_note(f"raised in {self.name} after {task.get_loop().time():.3f} virtual s")
            self._fail(error)


class Cluster:
    """Processes on one virtual network and one virtual clock. Made by `cluster`."""

    def __init__(self, loop: VirtualLoop, network: Internet, group: str) -> None:
        self.members: list[Process] = []
        """All that ever were, in the order they came, those that are gone too."""
        self._loop = loop
        self._network = network
        self._group = group
        self._failure: asyncio.Future[None] = loop.create_future()
        loop.set_task_factory(_make_task)
        loop.owner_in = _owner_in

    @property
    def now_s(self) -> float:
        """Virtual seconds since the cluster began, whatever the clocks of processes show."""
        return self._network.clock.now / NS_PER_S

    def run(self, main: Awaitable[T], *, limit_s: float = LIMIT_S) -> T:
        """Let time pass until `main` is done, and return what it returns.

        What `main` raises is raised here, and what a process does that was begun with `start` or
        `launch`. TimeoutError, with what each member waits for: it took longer than `limit_s`
        virtual seconds.
        """
        if self._loop.is_running():
            if asyncio.iscoroutine(main):
                main.close()
            raise UsageError("the cluster is running already: await this instead")
        return self._loop.run_until_complete(self._watch(main, limit_s))

    def start(self, app: App[T]) -> list[asyncio.Task[T]]:
        """Begin `app(group)` in every process that is running."""
        return [process.start(app) for process in self.members if process.is_running]

    async def join(self, name: str = "", /, **options: Unpack[MemberOptions]) -> Process:
        """Another process, in the group when this returns. Options are those of `ringcast.join`:
        `c.run(c.join("late", give_state=…, take_state=…))`."""
        process = self._add(options.pop("name", name))
        await process._join(self._group, options)
        return process

    async def restart(self, process: Process, **options: Unpack[MemberOptions]) -> Process:
        """Kill a process that `join` began, if it runs, and begin another one under its name and
        address; it is in the group when this returns. Its options are those of the first, but for
        those given here."""
        if process._main is None:
            raise UsageError(f"{process.name} was launched: launch it again")
        address = process.group.me.address
        process.crash()
        again: MemberOptions = {"listen": str(address), **process._options, **options}
        return await self.join(process.name, **again)

    def launch(self, main: Callable[[], Coroutine[Any, Any, None]], name: str = "") -> Process:
        """Another process, whose `main()` calls `ringcast.join` by itself, as in its real life."""
        process = self._add(name)
        process._begin(main())
        return process

    def partition(self, *parts: Sequence[Process]) -> None:
        """Part the network: processes hear only those in their own part. Those that are in none
        are together, and so is who comes later. This replaces what was parted before."""
        named = [process for part in parts for process in part]
        if len(set(named)) < len(named):
            raise UsageError("a process is in two parts of the network")
        self._network.parts = {
            process._host: number for number, part in enumerate(parts) for process in part
        }

    def cut(self, sources: Sequence[Process], dests: Sequence[Process]) -> None:
        """Lose whatever these send to those; the other way it passes. Cuts add up until `heal`."""
        for source in sources:
            for dest in dests:
                self._network.cuts[source._host, dest._host] = None

    def heal(self) -> None:
        """One network again: no parts, no cuts."""
        self._network.parts = {}
        self._network.cuts.clear()

    def _add(self, name: str) -> Process:
        name = name or f"m{len(self.members)}"
        if any(process.name == name and process.is_running for process in self.members):
            raise UsageError(f"there is a process {name!r} already")
        # Who comes under a name of before is somebody else.
        host = VirtualHost(self._network, f"{len(self.members)} {name}")
        process = Process(host, name, self._fail)
        self.members.append(process)
        return process

    async def _gather(self, members: int, options: MemberOptions) -> None:
        for _ in range(members):
            await self.join(**options)
        for process in self.members:
            await process.group.wait_for_view(lambda view: len(view) == members)

    async def _watch(self, main: Awaitable[T], limit_s: float) -> T:
        task = asyncio.ensure_future(main)
        waiting: list[asyncio.Future[Any]] = [task, self._failure]
        try:
            await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            if task.done():
                return task.result()
            reasons = "".join(self._reasons())
            raise TimeoutError(f"not done within {limit_s:g} virtual seconds{reasons}")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=CLEANUP_S)

    def _reasons(self) -> Iterator[str]:
        for process in self.members:
            if process.is_running and process._group is not None:
                reasons = process._group.explain() or ["waits for nothing"]
                yield from (f"\n{process.name}: {reason}" for reason in reasons)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _close(self) -> None:
        for process in self.members:
            process.crash()
        try:
            self._loop.run_until_complete(self._end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _end_tasks(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=CLEANUP_S)


@contextmanager
def cluster(
    members: int,
    /,
    *,
    seed: int = 0,
    loss: float = 0.0,
    duplicates: float = 0.0,
    delay_s: float = 0.001,
    group: str = "test",
    **options: Unpack[MemberOptions],
) -> Iterator[Cluster]:
    """So many members of a group, `m0`, `m1` and so on, in virtual time.

    When the block starts they are in one view. `loss` and `duplicates` are the share of datagrams
    that are lost, and that arrive twice; each takes between half of `delay_s` and one and a half,
    so they overtake each other. `seed` decides which. `options` are those of `ringcast.join`, for
    all members. The end of the block kills whatever still runs.
    """
    if members < 0:
        raise ConfigError("members", members, "0 or more")
    for field, share in (("loss", loss), ("duplicates", duplicates)):
        if not 0.0 <= share < 1.0:
            raise ConfigError(field, share, "0.0 to less than 1.0")
    _check_at_least_0("delay_s", delay_s)
    _check_no_loop()
    clock = VirtualClock()
    loop = VirtualLoop(clock)
    network = Internet(loop, clock, seed=seed, loss=loss, duplicates=duplicates, delay_s=delay_s)
    handle = Cluster(loop, network, group)
    try:
        handle.run(handle._gather(members, options))
        yield handle
    finally:
        handle._close()


def _check_at_least_0(field: str, seconds: float) -> None:
    if not 0.0 <= seconds < float("inf"):
        raise ConfigError(field, seconds, "0.0 or more seconds")


def _owner_in(context: Context) -> VirtualHost | None:
    host = context.get(HOST)
    return host if isinstance(host, VirtualHost) else None


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "a cluster has an event loop of its own: use it in a plain function, not in an async one"
    )


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Work[T], **options: Any
) -> asyncio.Task[T]:
    """Tasks belong to the host of whoever makes them: they die with it."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    host = HOST.get() if context is None else context[HOST]
    if isinstance(host, VirtualHost):
        host.tasks[task] = None
        task.add_done_callback(host.tasks.pop)
    return task
