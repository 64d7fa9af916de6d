"""What the rules that judge a simulated run must know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast.protocols.repair import NACK_MESSAGES_MAX
from ringcast.sim.clock import ns
from ringcast.trace.rows import Facts, member_key

if TYPE_CHECKING:
    from ringcast.sim.cluster import Cluster


def facts_of(cluster: Cluster) -> Facts:
    """What the rules that judge a run depend on."""
    options, config = cluster.options, cluster.options.membership_config()
    residents = {
        member_key(process.resident.harness.me): process.resident for process in cluster.processes
    }
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
        nack_messages_max=min(NACK_MESSAGES_MAX, *options.capacities) * options.grow,
        ack_interval_ns=ns(options.ack_delay_ms),
        expiry_ns=ns(options.expiry_ms),
        close_ns=ns(options.close_ms),
        max_retransmit_ns=ns(options.max_retransmit_ms),
        capacity={key: options.capacity_max(each.harness.slot) for key, each in residents.items()},
        stopped_members=frozenset(stopped),
        nodes=options.nodes,
        discovery_ns=round(config.discovery_wait_s * 1e9),
        heartbeat_ns=round(config.heartbeat_s * 1e9),
        suspect_ns=round(config.suspect_after_s * 1e9),
        verify_ns=round(config.verify_s * 1e9),
        leave_ns=round(config.leave_timeout_s * 1e9),
        late_members=frozenset(late),
        component={
            key: cluster.conditions.component(each.harness.slot) for key, each in residents.items()
        },
        state_ns=_state_ns(cluster),
        gst_ns=cluster.gst,
        end_ns=cluster.clock.now,
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
