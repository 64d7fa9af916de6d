"""What is known of a run beyond its trace: terms for the rules that judge it, and what happened in
it, counted, so that runs in which nothing happened are noticed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringcast.model import Stream
from ringcast.protocols.repair import NACK_MESSAGES_MAX
from ringcast.rules import membership
from ringcast.sim.clock import ns
from ringcast.sim.mishaps import KINDS
from ringcast.sim.sequencers import sequencers
from ringcast.trace import rows as trace
from ringcast.trace.observe.windows import GREW, SHRANK
from ringcast.trace.rows import Facts, MemberKey, Row, ViewKey, member_key

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster

CRASHED_SENDERS = "seeds: sender dies between data and commit"
VIEWS = ("merges", "excluded, and back", "a proposer dies")
UNIFORM = (CRASHED_SENDERS, "a sender leaves", "delivered by a cut")


def facts_of(cluster: Cluster) -> Facts:
    """What the rules that judge a run depend on."""
    options, config = cluster.options, cluster.options.membership_config()
    residents = {member_key(process.resident.me): process.resident for process in cluster.processes}
    stopped = [key for key, each in residents.items() if each.application.rate is not None]
    late = [key for key, each in residents.items() if each.was_late]
    return Facts(
        run=f"seed {options.seed}",
        seed=options.seed,
        protocol=options.protocol,
        tau_ns=ns(max(options.tau_ms)),
        delta_ns=ns(options.delta_ms),
        ack_delay_ns=ns(options.ack_delay_ms),
        purge="retained" if options.retain else options.purge,
        stability_ns=ns(options.stability_ms) if options.has_stability else 0,
        # Nobody asks for more than has a slot.
        nack_messages_max=min(NACK_MESSAGES_MAX, *options.capacities),
        growth=options.grow,
        ack_interval_ns=ns(options.ack_delay_ms),
        expiry_ns=ns(options.expiry_ms),
        close_ns=ns(options.close_ms),
        max_retransmit_ns=ns(options.max_retransmit_ms),
        capacity={
            key: options.multicast_config(each.slot).capacity_max for key, each in residents.items()
        },
        stopped_members=frozenset(stopped),
        nodes=options.nodes,
        discovery_ns=round(config.discovery_wait_s * 1e9),
        heartbeat_ns=round(config.heartbeat_s * 1e9),
        suspect_ns=round(config.suspect_after_s * 1e9),
        verify_ns=round(config.verify_s * 1e9),
        leave_ns=round(config.leave_timeout_s * 1e9),
        late_members=frozenset(late),
        component={key: cluster.conditions.component(each.slot) for key, each in residents.items()},
        state_ns=_state_ns(cluster),
        gst_ns=cluster.gst,
        end_ns=cluster.clock.now,
    )


def _state_ns(cluster: Cluster) -> int:
    """How long the largest state takes: at the worst, one datagram after the other."""
    options = cluster.options
    keepers = [process.resident.keeper for process in cluster.processes]
    chunks = max((keeper.most_chunks for keeper in keepers if keeper is not None), default=0)
    datagrams = -(-max(options.chunk_bytes) // (options.datagram_bytes // 2))
    each = 2 * options.delta_ms + options.ack_delay_ms
    return ns(options.give_ms + chunks * (options.give_ms + datagrams * each))


def happenings(cluster: Cluster) -> dict[str, int]:
    """How often what happened, as far as runs of this kind are to show it."""
    options, rows = cluster.options, cluster.recorder.rows
    sent = Counter((row.kind, bool(row.peer)) for row in rows if row.event == trace.TX)
    counts = _counts(rows)
    found = {**{name: counts[name] for name in VIEWS}, "a proposal gives way": sent["refuse", True]}
    if options.protocol != "unicast":  # where messages to the group are sent
        found["fetched for a cut"] = sent["forwarded", True]
    if options.protocol == "multicast":  # where most views are made
        found["a view is completed before the next"] = sent["finish", True]
    if options.partitions:
        found |= {kind: cluster.conditions.log.partitions[kind] for kind in KINDS}
    if options.second is Stream.UNIFORM:
        found |= {name: counts[name] for name in UNIFORM}
    if options.second is Stream.TOTAL:
        found |= sequencers(rows, has_parts=options.partitions)
    if options.has_stability:
        seen = cluster.recorder.happenings
        found |= {
            GREW: seen[GREW],
            SHRANK: seen[SHRANK],
            "a stability round ends": sent["stable", False],
            # To one member it is told again: its report showed that it had not heard.
            "a report comes from who missed the last round": sent["stable", True],
        }
    if options.retain:
        found["repaired by others"] = sent["peer_repair", True]
    return found


@dataclass(slots=True)
class _Life:
    """What one member has done so far."""

    frozen_by: str = ""  # whose proposal it is frozen by
    view: int = 0
    committed: int = 0
    is_leaving: bool = False
    met: set[str] = field(default_factory=set)  # who was in a view with it
    sent: int = 0


def _counts(rows: Iterable[Row]) -> Counter[str]:
    """What befell views and senders of uniform messages."""
    lives: defaultdict[MemberKey, _Life] = defaultdict(_Life)
    merges: set[ViewKey] = set()
    counts = Counter(dict.fromkeys((*VIEWS, *UNIFORM), 0))
    for row in rows:
        life = lives[row.node, row.inc]
        match row.event:
            case trace.VIEW:
                others = set(row.members).difference(row.part)
                counts["excluded, and back"] += len(others & life.met)
                if others & life.met:
                    merges.add(row.view_key)
                life.met.update(row.members)
                life.view, life.frozen_by = row.view, ""
            case trace.FREEZE:
                life.frozen_by = row.view_creator
            case trace.CRASH:
                counts["a proposer dies"] += life.frozen_by == row.member
                counts[CRASHED_SENDERS] |= life.sent > life.committed
            case trace.TX if row.kind == "data" and row.stream == Stream.UNIFORM:
                life.sent = max(life.sent, row.seqno2)
            case trace.TX if row.kind == "commit":
                life.committed = max(life.committed, row.seqno)
            case membership.LEAVE:
                life.is_leaving = True
            case trace.STOP:
                counts["a sender leaves"] += life.is_leaving and life.sent > 0
            case trace.DELIVER if row.stream == Stream.UNIFORM and life.view:
                counts["delivered by a cut"] += life.view > row.view
    counts["merges"] = len(merges)
    return counts
