"""Settings of a group, as a member would have them that was given no others than these."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ringcast.config import GroupConfig, MembershipConfig, MulticastConfig, StabilityConfig
from ringcast.model import Purge, Stream
from ringcast.settings import MEMBERSHIP_TIMES, settings_of

if TYPE_CHECKING:
    from ringcast.settings import Settings

STABILITY = {
    Purge.ACKS: None,
    Purge.STABILITY: StabilityConfig(retain_delivered=False),
    Purge.RETAINED: StabilityConfig(),
    Purge.ACKS_RETAINED: None,
}


def configured(purge: Purge = Purge.ACKS, **given: Any) -> GroupConfig:
    """A member that was given these."""
    stability = STABILITY[purge]
    if stability is not None and "interval_s" in given:
        stability = replace(stability, interval_s=given.pop("interval_s"))
    times = {name: given.pop(name) for name in MEMBERSHIP_TIMES if name in given}
    return GroupConfig(
        group="any",
        multicast=MulticastConfig(
            stability=stability, retain=purge is Purge.ACKS_RETAINED, **given
        ),
        membership=MembershipConfig(**times),
    )


def wanted(
    purge: Purge = Purge.ACKS, streams: tuple[Stream, ...] = (Stream.FIFO,), **given: Any
) -> Settings:
    """What that one would have its group agree on."""
    return settings_of(configured(purge, **given), streams)


PLAIN = wanted()
"""Of who was given none."""
