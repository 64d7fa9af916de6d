"""What the rules that judge a simulated run must know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.protocols.repair import NACK_MESSAGES_MAX
from ringcast.rules.membership import GroupFacts
from ringcast.rules.uniform_liveness import HeirFacts, UniformFacts
from ringcast.sim.clock import ns
from ringcast.trace.rows import Facts, member_key

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster


def facts_of(cluster: Cluster) -> GroupFacts:
    """What the rules that judge a run depend on."""
    options = cluster.options
    stopped = [
        member_key(process.resident.harness.me)
        for process in cluster.processes
        if process.resident.application.rate is not None
    ]
    facts = Facts(
        run=f"seed {options.seed}",
        seed=options.seed,
        protocol=options.protocol,
        tau_ns=ns(max(options.tau_ms)),
        delta_ns=ns(options.delta_ms),
        ack_delay_ns=ns(options.ack_delay_ms),
        purge="retained" if options.retain else options.purge,
        stability_ns=ns(options.stability_ms) if options.has_stability else 0,
        # Nobody asks for more than has a slot.
        nack_messages_max=min(NACK_MESSAGES_MAX, *options.capacities) * options.grow,
        ack_interval_ns=ns(options.ack_delay_ms),
        expiry_ns=ns(options.expiry_ms),
        close_ns=ns(options.close_ms),
        max_retransmit_ns=ns(options.max_retransmit_ms),
        capacity={
            member_key(process.resident.harness.me): options.capacity_max(
                process.resident.harness.slot
            )
            for process in cluster.processes
        },
        stopped_members=frozenset(stopped),
        gst_ns=cluster.gst,
        end_ns=cluster.clock.now,
    )
    return _group_facts(cluster, facts)


def _group_facts(cluster: Cluster, facts: Facts) -> GroupFacts:
    late = [
        member_key(each.resident.harness.me) for each in cluster.processes if each.resident.was_late
    ]
    kind = HeirFacts if cluster.options.retain else GroupFacts
    if cluster.options.has_uniform:
        kind = UniformFacts
    return kind.of(
        facts,
        cluster.options.membership_config(),
        nodes=cluster.options.nodes,
        late_members=frozenset(late),
        component={
            member_key(each.resident.harness.me): cluster.conditions.component(
                each.resident.harness.slot
            )
            for each in cluster.processes
        },
        state_ns=_state_ns(cluster),
    )


def _state_ns(cluster: Cluster) -> int:
    """How long the largest state takes: at the worst, one datagram after the other."""
    options = cluster.options
    givers = [
        process.resident.giver
        for process in cluster.processes
        if process.resident.giver is not None
    ]
    chunks = max((giver.keeper.most_chunks for giver in givers), default=0)
    datagrams = -(-max(options.chunk_bytes) // (options.datagram_bytes // 2))
    each = 2 * options.delta_ms + options.ack_delay_ms
    return ns(options.give_ms + chunks * (options.give_ms + datagrams * each))
