"""FailureDetector: a member that has died is suspected soon, one that lives hardly ever.

JGroups does this with FD_ALL3 or FD_SOCK, and VERIFY_SUSPECT2. The layer that makes views is told
by signals: Suspected, and Trusted if it was a mistake. Nobody is suspected without having been
asked directly. What holds, with timers on time: a crashed member is Suspected by each member that
watches it within suspect_after_s + heartbeat_s + verify_s.

Who watches whom: in view order, a ring, each member beats to its WATCHERS successors and watches
as many predecessors; in a group of up to WATCHERS + 1 that is everybody. All to all would cost n²
beats and buy little. One neighbour would be cheaper still, but when two neighbours die together
the first of them would be missed by nobody until the second is out of the view. Here any
WATCHERS - 1 of a member's watchers may die with it. If more do, the last of the dead in ring order
is still watched by somebody who lives; the view without it moves the ring on to the others.

On any datagram of a member: it is alive. Doubts end; a suspicion is taken back with Trusted.
On Ping: answer Pong, also before there is a view, also to strangers, if Pong has no more bytes.
On Heartbeat of somebody who is not in the view, or in an older one: NonMember; it does not know
    yet. Of a member that is in a later one: MemberAhead.
Every heartbeat: Heartbeat to the watchers. Whoever is watched and has been silent for
    suspect_after_s is verified. Suspects are asked on, so that a mistake comes out even where no
    beats pass. A tick that is more than one beat late proves that it was we who slept (a stopped
    process, a suspended machine): all count as heard now, and verifications under way are dropped.
To verify: PINGS times Ping, the first at once, spread over verify_s. Nothing heard: Suspected.
    Probes are counted, not only time: a late step leaves an answer its time all the same.
On a hint of the transport (a refused port): verify. If this very machine says so, ask again at once
    where that is under way; refused again, after the probe: Suspected. From elsewhere a hint is but
    that: anybody may have sent it.
On VerifyWanted (somebody else suspects it): verify, but not twice within verify_s.
On view: who departed is forgotten, new neighbours count as heard now. Outside a view nobody is
    watched. Where the group has other times than this member, they are this member's from then on.
On close: silence. Who has left is to be missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import TYPE_CHECKING, ClassVar

from ringcast.core.effects import Layer, MemberAhead, NonMember, Suspected, Trusted, VerifyWanted
from ringcast.core.shared import Deadlines, GroupState, Named, Timers
from ringcast.core.view_change import Begin
from ringcast.protocols.stream import seconds
from ringcast.wire.frames import Frame, Heartbeat, Ping, Pong
from ringcast.wire.members import is_no_longer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast.config import MembershipConfig
    from ringcast.core.effects import Effects, Signal
    from ringcast.model import Address, Member, View

WATCHERS = 3
PINGS = 5
SILENT_HEARTBEATS = 4
"""Beats that were missed before it is worth a word. One or two are lost on any network."""

REFUSALS = 2
"""The first may be about a datagram from before; the one after our probe leaves no doubt."""


class Timer(Named):
    HEARTBEAT = auto()
    """Tell the watchers that this member is alive, and look who is silent."""
    CASE = auto()
    """Somebody in doubt: ask again, decide, or take a suspicion back."""


@dataclass(slots=True)
class Case:
    """A member in doubt: being verified, or suspected already."""

    nonce: int
    act_at: int | None
    """When to ask again or decide; None: suspected, and not heard since."""
    asked: int = 0
    refusals: int = 0
    reason: str = ""
    """Why it is suspected; empty while it is being verified."""

    @property
    def is_suspected(self) -> bool:
        return bool(self.reason)


class FailureDetector(Layer):
    """The state machine of one member: whom it beats to, whom it watches, whom it doubts."""

    frames: ClassVar[tuple[type[Frame], ...]] = (Heartbeat, Ping, Pong)

    def __init__(self, me: Member, config: MembershipConfig) -> None:
        self.me = me
        self.heartbeats_sent = 0
        self.verifications = 0
        self.suspicions = 0
        self.taken_back = 0  # suspicions that were a mistake
        self.sleeps = 0  # ticks so late that this member must have slept
        self._config = config
        self._configure(config)
        self._is_closed = False
        self._counter = 0  # of the view; 0: in none
        self._watchers: tuple[Member, ...] = ()
        self._watched: tuple[Member, ...] = ()
        self._heard: dict[Member, int] = {}
        """The last sign of life of every other member of the view, watched or not."""
        self._cases: dict[Member, Case] = {}
        self._verified_at: dict[Member, int] = {}
        """When the last verification of a member began."""
        self._heartbeat_due = 0
        self.attach(GroupState(me), Deadlines())

    def attach(self, group: GroupState, deadlines: Deadlines) -> None:
        super().attach(group, deadlines)
        self._timers: Timers[Timer] = deadlines.owner("failure")

    # Inputs

    def heard(self, source: Member, now: int) -> None:
        """A sign of life, which may end a doubt. Called for every datagram, so the common case is
        a store.

        Trusted, if it is due, comes from the timer, which is due at once.
        """
        if source in self._heard:
            self._heard[source] = now
            if self._cases:
                self._end_doubt(source, now)

    def receive(self, source: Member, frames: Sequence[Frame], now: int, out: Effects) -> None:
        self.heard(source, now)
        if self._is_closed or source == self.me:
            return
        # One reaction to each kind is enough, however many came in one datagram.
        probe = next((frame for frame in reversed(frames) if isinstance(frame, Ping)), None)
        if probe is not None and (source in self._heard or is_no_longer(self.me, source)):
            out.datagram(source, Pong(probe.nonce))
        counters = [frame.counter for frame in frames if isinstance(frame, Heartbeat)]
        is_behind = source not in self._heard or max(counters, default=0) < self._counter
        if counters and self._counter and is_behind:
            out.signal(NonMember(source))
        elif max(counters, default=0) > self._counter > 0:
            out.signal(MemberAhead(source, max(counters)))

    def transport_hint(
        self, address: Address, now: int, out: Effects, *, is_local: bool = True
    ) -> None:
        """A datagram was refused: nobody listened at this address. `is_local`: this machine says
        so, and not somebody on the way, who may be anybody."""
        member = next((member for member in self._heard if member.address == address), None)
        if member is None:
            return
        is_open = member in self._cases
        case = self._cases.get(member) or self._open_case(member, now, out)
        if case.is_suspected or not is_local:
            self._arm_case()
            return
        case.refusals += 1
        if case.refusals == REFUSALS:
            self._suspect(member, case, f"nobody listens at {address}", out)
        elif is_open and case.asked < PINGS:
            self._ask(member, case, now, out)
        self._arm_case()

    def handle_signal(self, signal: Signal, now: int, out: Effects) -> None:
        if isinstance(signal, Begin) and signal.settings is not None:
            self._configure(signal.settings.apply_to_membership(self._config))
            if self._timers.is_armed(Timer.HEARTBEAT):
                self._arm_heartbeat(now)
        elif isinstance(signal, VerifyWanted):
            self._verify_member(signal.member, now, out)

    def _verify_member(self, member: Member, now: int, out: Effects) -> None:
        if member not in self._heard or member in self._cases:
            return
        last = self._verified_at.get(member)
        if last is None or now - last >= self._verify:
            self._open_case(member, now, out)
            self._arm_case()

    def install_view(self, view: View, now: int, out: Effects) -> None:
        if self._is_closed:
            return
        self._counter = view.counter
        place = view.members.index(self.me)
        others = view.members[place + 1 :] + view.members[:place]  # in ring order from me on
        watched = others[-WATCHERS:]
        new = set(watched).difference(self._watched)
        self._watchers = others[:WATCHERS]
        self._watched = watched
        self._heard = {m: now if m in new else self._heard.get(m, now) for m in others}
        self._cases = {m: case for m, case in self._cases.items() if m in self._heard}
        self._verified_at = {m: at for m, at in self._verified_at.items() if m in self._heard}
        if not others:
            self._timers.disarm(Timer.HEARTBEAT)
        elif not self._timers.is_armed(Timer.HEARTBEAT):
            self._arm_heartbeat(now)
        self._arm_case()

    def handle_timeout(self, now: int, out: Effects) -> None:
        if self._timers.take(Timer.HEARTBEAT, now):  # first: it finds out whether we slept
            self._beat(now, out)
        if self._timers.take(Timer.CASE, now):
            self._advance_cases(now, out)
        self._arm_case()

    def close(self, reason: str, now: int, out: Effects) -> None:
        self._is_closed = True
        self._counter = 0
        self._watchers = self._watched = ()
        self._heard.clear()
        self._cases.clear()
        self._verified_at.clear()
        self._timers.disarm_all()

    # Outputs

    def stats(self) -> dict[str, object]:
        cases = self._cases.items()
        return {
            "members": len(self._heard),
            "watchers": list(map(str, self._watchers)),
            "watched": list(map(str, self._watched)),
            "verifying": {str(m): case.asked for m, case in cases if not case.is_suspected},
            "suspected": {str(m): case.reason for m, case in cases if case.is_suspected},
            "heartbeats_sent": self.heartbeats_sent,
            "verifications": self.verifications,
            "suspicions": self.suspicions,
            "taken_back": self.taken_back,
            "sleeps": self.sleeps,
        }

    def explain(self, now: int) -> list[str]:
        reasons = []
        for member in self._watched:
            silent = now - self._heard[member]
            if member not in self._cases and silent >= SILENT_HEARTBEATS * self._heartbeat:
                reasons.append(
                    f"{member} is silent for {seconds(silent)}: if it stays so, it is asked in "
                    f"{seconds(max(0, self._suspect_after - silent))} and excluded "
                    f"{seconds(self._verify)} later"
                )
        for member, case in self._cases.items():
            if case.is_suspected:
                reasons.append(f"{member} suspected: {case.reason}; waiting for a view without it")
            else:
                assert case.act_at is not None
                decided_at = case.act_at + (PINGS - case.asked) * self._probe_interval
                reasons.append(
                    f"{member} suspected: no sign of life for "
                    f"{seconds(now - self._heard[member])}; asked {case.asked} of {PINGS} times, "
                    f"decided in {seconds(max(0, decided_at - now))}"
                )
        return reasons

    def check_invariants(self) -> None:
        others = self._heard.keys()
        assert self.me not in others
        assert self._counter or not others
        assert len(self._watched) == len(self._watchers) == min(WATCHERS, len(others))
        assert others >= {*self._watched, *self._watchers}
        assert others >= self._cases.keys()
        assert others >= self._verified_at.keys()
        assert self._timers.is_armed(Timer.HEARTBEAT) == bool(others)
        waits = [case for case in self._cases.values() if case.act_at is not None]
        assert self._timers.is_armed(Timer.CASE) == bool(waits)
        for case in self._cases.values():
            assert 1 <= case.asked <= PINGS
            assert case.is_suspected or case.act_at is not None
            assert case.is_suspected or case.refusals < REFUSALS

    def _configure(self, config: MembershipConfig) -> None:
        """Times are these from now on."""
        self._heartbeat = round(config.heartbeat_s * 1e9)
        self._suspect_after = round(config.suspect_after_s * 1e9)
        self._verify = round(config.verify_s * 1e9)
        self._probe_interval = self._verify // PINGS

    # The beat

    def _beat(self, now: int, out: Effects) -> None:
        if now - self._heartbeat_due > self._heartbeat:
            self._excuse_everybody(now)
        beat = Heartbeat(self._counter)
        for member in self._watchers:
            out.datagram(member, beat)
        self.heartbeats_sent += len(self._watchers)
        for member, case in self._cases.items():
            if case.is_suspected:
                out.datagram(member, Ping(case.nonce))
        for member in self._watched:
            is_silent = now - self._heard[member] >= self._suspect_after
            if is_silent and member not in self._cases:
                self._open_case(member, now, out)
        self._arm_heartbeat(now)

    def _excuse_everybody(self, now: int) -> None:
        """We slept: that we heard nobody meanwhile says nothing about them."""
        self.sleeps += 1
        self._heard = dict.fromkeys(self._heard, now)
        self._cases = {m: case for m, case in self._cases.items() if case.is_suspected}

    def _arm_heartbeat(self, now: int) -> None:
        self._heartbeat_due = now + self._heartbeat
        self._timers.arm(Timer.HEARTBEAT, self._heartbeat_due)

    # Doubt

    def _open_case(self, member: Member, now: int, out: Effects) -> Case:
        self.verifications += 1
        case = self._cases[member] = Case(self.verifications, act_at=now)
        self._verified_at[member] = now
        self._ask(member, case, now, out)
        return case

    def _ask(self, member: Member, case: Case, now: int, out: Effects) -> None:
        """To that very incarnation: another one at its address does not answer for it."""
        case.asked += 1
        case.act_at = now + self._probe_interval
        out.datagram(member, Ping(case.nonce))

    def _advance_cases(self, now: int, out: Effects) -> None:
        for member, case in list(self._cases.items()):
            if case.act_at is None or case.act_at > now:
                continue
            if case.is_suspected:  # and heard since
                del self._cases[member]
                self.taken_back += 1
                out.signal(Trusted(member))
            elif case.asked < PINGS:
                self._ask(member, case, now, out)
            else:
                silence = seconds(now - self._heard[member])
                reason = f"no sign of life for {silence}, asked {case.asked} times"
                self._suspect(member, case, reason, out)

    def _suspect(self, member: Member, case: Case, reason: str, out: Effects) -> None:
        case.reason = reason
        case.act_at = None
        self.suspicions += 1
        out.signal(Suspected(member, reason))

    def _end_doubt(self, member: Member, now: int) -> None:
        case = self._cases.get(member)
        if case is None:
            return
        if case.is_suspected:
            case.act_at = now
        else:
            del self._cases[member]
        self._arm_case()

    def _arm_case(self) -> None:
        deadlines = [case.act_at for case in self._cases.values() if case.act_at is not None]
        if deadlines:
            self._timers.arm(Timer.CASE, min(deadlines))
        else:
            self._timers.disarm(Timer.CASE)
