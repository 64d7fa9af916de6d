"""Settings of a group: what its members must agree on, and so do not each have their own of.

Whoever starts a group brings them; every view carries them. Whoever joins takes them from there. If
it asked for something else it is refused, with both values; a default is not asked for. Where parts
of a group come together, those of the leading part count for all. How a group purges, and which
streams it has, does not change while it runs: parts that differ in that stay apart.

What concerns one member alone, such as the capacities of its windows, may differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringcast.config import StabilityConfig, is_default
from ringcast.model import Purge, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig

PURGES = {
    Purge.ACKS: "acks",
    Purge.STABILITY: "stability",
    Purge.RETAINED: "stability with retained messages",
    Purge.ACKS_RETAINED: "acks with retained messages",
}
"""In words."""

MEMBERSHIP_TIMES = ("heartbeat_s", "suspect_after_s", "verify_s", "slow_member_timeout_s")
TIMES = (*MEMBERSHIP_TIMES, "xmit_interval_s", "interval_s")
"""In this order on the wire."""

NAMES = ("purge", *TIMES, "max_message_bytes")
"""What a member may ask for."""


class Settings(NamedTuple):
    """Of one group, or what one member would have."""

    purge: Purge
    streams: tuple[Stream, ...]
    times: tuple[int, ...]
    """In nanoseconds, in the order of TIMES."""
    max_message_bytes: int
    given: frozenset[str] = frozenset()
    """Names of those that were asked for: here, or by whoever started the group."""

    @property
    def is_reporting(self) -> bool:
        """Whether members report what they have, in place of acks."""
        return self.purge in (Purge.STABILITY, Purge.RETAINED)

    @property
    def values(self) -> dict[str, Any]:
        """By name, as they are configured."""
        values: dict[str, Any] = {n: t / 1e9 for n, t in zip(TIMES, self.times, strict=True)}
        if not self.is_reporting:
            del values["interval_s"]
        return {**values, "max_message_bytes": self.max_message_bytes}

    @property
    def told(self) -> dict[str, Any]:
        """For people: with how the group purges, in words."""
        return {"purge": PURGES[self.purge], **self.values}

    def is_like(self, other: Settings) -> bool:
        """Whether members with these and with those do the same."""
        return self[:-1] == other[:-1]

    def fits(self, other: Settings) -> bool:
        """Whether groups with these and with those can become one."""
        return self.purge is other.purge and self.streams == other.streams

    def against(self, group: Settings, who: str, whose: str) -> list[str]:
        """What `who` asked for with these, and `whose` group has otherwise."""
        found = []
        if self.streams != group.streams:
            found.append(
                f"{whose} has the streams {_names(group.streams)}, and {who} "
                f"{_names(self.streams)}: give all members the same streams"
            )
        if self.purge is not group.purge and "purge" in self.given:
            found.append(
                f"{whose} purges by {PURGES[group.purge]}, and {who} by {PURGES[self.purge]}: give "
                "all members the same `stability` and `retain`"
            )
        return found + [
            f"{whose} has {name} = {theirs:.12g}, and {who} asked for {ours:.12g}: leave it out, "
            "or give all members the same"
            for name, (ours, theirs) in self.differences(group).items()
            if name in self.given
        ]

    def differences(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """Values that are not the same, by name: here, and there. How they purge is not one."""
        theirs = other.values
        return {
            name: (value, theirs[name])
            for name, value in self.values.items()
            if name in theirs and value != theirs[name]
        }

    def apply_to(self, config: GroupConfig) -> GroupConfig:
        """What a member with this configuration does in a group with these settings."""
        return replace(
            config,
            multicast=self.apply_to_multicast(config.multicast),
            membership=self.apply_to_membership(config.membership),
        )

    def apply_to_multicast(self, config: MulticastConfig) -> MulticastConfig:
        stability, capacity = None, config.capacity
        if self.is_reporting:
            stability = replace(
                config.stability or StabilityConfig(),
                interval_s=self.values["interval_s"],
                retain_delivered=self.purge is Purge.RETAINED,
            )
            capacity = min(capacity, stability.capacity_max)
        tick = self.values["xmit_interval_s"]
        return replace(
            config,
            stability=stability,
            retain=self.purge is Purge.ACKS_RETAINED,
            capacity=capacity,
            xmit_interval_s=tick,
            ack_delay_s=min(config.ack_delay_s, tick / 2),
            max_message_bytes=self.max_message_bytes,
        )

    def apply_to_membership(self, config: MembershipConfig) -> MembershipConfig:
        values = self.values
        return replace(config, **{name: values[name] for name in MEMBERSHIP_TIMES})


def settings_of(config: GroupConfig, streams: Sequence[Stream]) -> Settings:
    """What a member with this configuration would have its group agree on."""
    found = _found_in(config)
    purge = config.multicast.purge
    given = {name for name, value in found.items() if not is_default(value)}
    if purge is not Purge.ACKS:
        given.add("purge")
    return Settings(
        purge,
        tuple(sorted(streams)),
        tuple(round(found[name] * 1e9) for name in TIMES),
        found["max_message_bytes"],
        frozenset(given),
    )


def _found_in(config: GroupConfig) -> Mapping[str, Any]:
    """What is configured, by name."""
    multicast = config.multicast
    return {
        **{name: getattr(config.membership, name) for name in MEMBERSHIP_TIMES},
        "xmit_interval_s": multicast.xmit_interval_s,
        "interval_s": (multicast.stability or StabilityConfig()).interval_s,
        "max_message_bytes": multicast.max_message_bytes,
    }


def _names(streams: Sequence[Stream]) -> str:
    return " and ".join(stream.name.lower() for stream in streams)
