"""Bad configuration is refused in one line that names the field, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from typing import Any

import pytest

from ringcast import (
    ConfigError,
    GroupConfig,
    MembershipConfig,
    MulticastConfig,
    StabilityConfig,
    UnicastConfig,
    UsageError,
)
from ringcast.config import settings

BAD_MULTICAST: list[tuple[dict[str, Any], str]] = [
    ({"capacity": -1}, "capacity = -1: must be a whole number from 1 to 1048576"),
    ({"capacity": 0}, "capacity = 0: must be a whole number from 1 to 1048576"),
    ({"capacity": 2**20 + 1}, "capacity = 1048577: must be a whole number from 1 to 1048576"),
    ({"capacity": 4.0}, "capacity = 4.0: must be a whole number from 1 to 1048576"),
    ({"capacity": True}, "capacity = True: must be a whole number from 1 to 1048576"),
    (
        {"capacity": 16, "ack_threshold": 5},
        "ack_threshold = 5: must be from 1 to max(1, capacity // 4) = 4, or None for that",
    ),
    (
        {"capacity": 1, "ack_threshold": 2},
        "ack_threshold = 2: must be from 1 to max(1, capacity // 4) = 1, or None for that",
    ),
    (
        {"ack_threshold": 0, "capacity": 8},
        "ack_threshold = 0: must be from 1 to max(1, capacity // 4) = 2, or None for that",
    ),
    ({"ack_delay_s": 31}, "ack_delay_s = 31: must be from 0 to 30 seconds"),
    ({"bulk_bytes": 1}, "bulk_bytes = 1: must be a whole number from 512 to 65507"),
    (
        {"ack_delay_s": 0.0, "xmit_interval_s": 0},
        "xmit_interval_s = 0: must be from 0.001 to 60 seconds",
    ),
    ({"xmit_interval_s": math.nan}, "xmit_interval_s = nan: must be from 0.04 to 60 seconds"),
    (
        {"capacity": 9, "stability": StabilityConfig(capacity_max=8)},
        "capacity = 9: must be at most 8 where members report",
    ),
    (
        {"datagram_bytes": 100},
        "datagram_bytes = 100: must be a whole number from 512 to 65507",
    ),
    (
        {"window_bytes": 60_000},
        "window_bytes = 60000: must be a whole number from 240000 to 4294967296",
    ),
    (
        {"max_message_bytes": 0},
        "max_message_bytes = 0: must be a whole number from 1 to 4294967296",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD_MULTICAST)
def test_bad_multicast_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MulticastConfig(**fields)
    assert str(caught.value) == message
    assert caught.value.field in fields


BAD_UNICAST: list[tuple[dict[str, Any], str]] = [
    ({"capacity": 0}, "capacity = 0: must be a whole number from 1 to 1048576"),
    ({"capacity": 2**20 + 1}, "capacity = 1048577: must be a whole number from 1 to 1048576"),
    (
        {"window_bytes": 2047},
        "window_bytes = 2047: must be a whole number from 2048 to 4294967296",
    ),
    ({"xmit_interval_s": 0}, "xmit_interval_s = 0: must be from 0.001 to 60 seconds"),
    ({"xmit_interval_s": math.nan}, "xmit_interval_s = nan: must be from 0.001 to 60 seconds"),
    ({"ack_interval_s": -1}, "ack_interval_s = -1: must be from 0 to 0.25 seconds"),
    (
        {"xmit_interval_s": 0.1, "ack_interval_s": 0.06},
        "ack_interval_s = 0.06: must be from 0 to 0.05 seconds",
    ),
    ({"expiry_s": 0.9}, "expiry_s = 0.9: must be from 1 to 1e+06 seconds"),
    ({"expiry_s": math.nan}, "expiry_s = nan: must be from 1 to 1e+06 seconds"),
    ({"close_s": -0.1}, "close_s = -0.1: must be from 0 to 1e+06 seconds"),
    ({"close_s": math.inf}, "close_s = inf: must be from 0 to 1e+06 seconds"),
    ({"max_retransmit_s": 1.9}, "max_retransmit_s = 1.9: must be from 2 to 1e+06 seconds"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_UNICAST)
def test_bad_unicast_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UnicastConfig(**fields)
    assert str(caught.value) == message
    assert caught.value.field in fields


def test_the_limits_of_unicast_values_are_allowed() -> None:
    UnicastConfig(
        capacity=1,
        window_bytes=2048,
        xmit_interval_s=60,
        ack_interval_s=30,
        expiry_s=120,
        close_s=0,
        max_retransmit_s=240,
    )


def test_connections_may_stay_for_ever() -> None:
    assert UnicastConfig(expiry_s=0).expiry_s == 0


def test_half_of_the_window_may_be_under_way() -> None:
    assert UnicastConfig(window_bytes=5000).in_flight_bytes == 2500
    assert GroupConfig(group="orders").unicast == UnicastConfig()


BAD_MEMBERSHIP: list[tuple[dict[str, Any], str]] = [
    ({"discovery_wait_s": 0.0}, "discovery_wait_s = 0.0: must be from 0.02 to 600 seconds"),
    ({"discovery_wait_s": 0.019}, "discovery_wait_s = 0.019: must be from 0.02 to 600 seconds"),
    ({"discovery_wait_s": 601}, "discovery_wait_s = 601: must be from 0.02 to 600 seconds"),
    ({"heartbeat_s": 0}, "heartbeat_s = 0: must be from 0.001 to 60 seconds"),
    ({"heartbeat_s": 61}, "heartbeat_s = 61: must be from 0.001 to 60 seconds"),
    ({"heartbeat_s": math.nan}, "heartbeat_s = nan: must be from 0.001 to 60 seconds"),
    (
        {"heartbeat_s": 1, "suspect_after_s": 1.9},
        "suspect_after_s = 1.9: must be from 2 to 3600 seconds",
    ),
    ({"suspect_after_s": math.inf}, "suspect_after_s = inf: must be from 0.5 to 3600 seconds"),
    ({"verify_s": 0}, "verify_s = 0: must be from 0.001 to 60 seconds"),
    ({"verify_s": 61}, "verify_s = 61: must be from 0.001 to 60 seconds"),
    ({"verify_s": True}, "verify_s = True: must be from 0.001 to 60 seconds"),
    ({"leave_timeout_s": -1}, "leave_timeout_s = -1: must be from 0 to 3600 seconds"),
    ({"leave_timeout_s": 3601}, "leave_timeout_s = 3601: must be from 0 to 3600 seconds"),
    ({"slow_member_timeout_s": -1}, "slow_member_timeout_s = -1: must be from 0 to 1e+06 seconds"),
    (
        {"join_buffer_bytes": -1},
        f"join_buffer_bytes = -1: must be a whole number from 0 to {1 << 40}",
    ),
    (
        {"join_buffer_bytes": 1.5},
        f"join_buffer_bytes = 1.5: must be a whole number from 0 to {1 << 40}",
    ),
    (
        {"slow_member_timeout_s": math.inf},
        "slow_member_timeout_s = inf: must be from 0 to 1e+06 seconds",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD_MEMBERSHIP)
def test_bad_membership_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MembershipConfig(**fields)
    assert str(caught.value) == message
    assert caught.value.field in fields


def test_the_limits_of_membership_values_are_allowed() -> None:
    MembershipConfig(
        discovery_wait_s=0.02,
        heartbeat_s=60,
        suspect_after_s=120,
        verify_s=60,
        leave_timeout_s=0,
        join_buffer_bytes=0,
        slow_member_timeout_s=0,
    )
    MembershipConfig(
        discovery_wait_s=600,
        heartbeat_s=0.001,
        suspect_after_s=3600,
        verify_s=0.001,
        leave_timeout_s=3600,
        slow_member_timeout_s=1e6,
    )
    assert GroupConfig(group="orders").membership == MembershipConfig()


@pytest.mark.parametrize("group", ["", "a\nb", "\x1b[31mred", "x" * 65, "\ud800", None])
def test_bad_group_names(group: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        GroupConfig(group=group)
    text = str(caught.value)
    assert text.startswith("group = ")
    assert "must be 1 to 64 bytes of printable text" in text
    assert len(text.splitlines()) == 1
    assert text.isprintable()


def test_a_member_needs_no_name_but_a_printable_one() -> None:
    assert GroupConfig(group="orders").name == ""
    with pytest.raises(ConfigError, match=r"^name = "):
        GroupConfig(group="orders", name="a\tb")


BAD_GROUP: list[tuple[dict[str, Any], str]] = [
    ({"listen": "nowhere"}, "listen = 'nowhere': must be host:port, such as 127.0.0.1:7800"),
    ({"listen": 7800}, "listen = 7800: must be host:port, such as 127.0.0.1:7800"),
    (
        {"members": "127.0.0.1:1"},
        "members = '127.0.0.1:1': must be a list of addresses: ['127.0.0.1:7800']",
    ),
    ({"members": ["x"]}, "members = 'x': must be host:port, such as 127.0.0.1:7800"),
    ({"transport": "pigeon"}, "transport = 'pigeon': must be 'udp', 'multicast' or 'tcp'"),
    ({"transport": []}, "transport = []: must be 'udp', 'multicast' or 'tcp'"),
    ({"must_exist": 1}, "must_exist = 1: must be True or False"),
    ({"record": 1}, "record = 1: must be a directory"),
    ({"metrics": True}, "metrics = True: must be host:port, such as 127.0.0.1:7800"),
    ({"spin_s": -0.001}, "spin_s = -0.001: must be from 0 to 1 seconds"),
    ({"spin_s": 1.5}, "spin_s = 1.5: must be from 0 to 1 seconds"),
    ({"spin_s": True}, "spin_s = True: must be from 0 to 1 seconds"),
    (
        {"receive_buffer_bytes": 1000},
        "receive_buffer_bytes = 1000: must be a whole number from 16384 to 1073741824",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD_GROUP)
def test_bad_group_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GroupConfig(group="orders", **fields)
    assert str(caught.value) == message
    assert caught.value.field in fields


def test_there_is_not_too_much_to_set() -> None:
    kinds = (GroupConfig, MulticastConfig, StabilityConfig, UnicastConfig, MembershipConfig)
    found = [f"{kind.__name__}.{name}" for kind in kinds for name in settings(kind)]
    assert len(found) <= 26, found
    assert "MulticastConfig.capacity" in found
    assert "MulticastConfig.stability" not in found  # what it holds is counted
    assert "MembershipConfig.verify_s" not in found


def test_long_names_are_measured_in_bytes() -> None:
    assert GroupConfig(group="é" * 32).group
    with pytest.raises(ConfigError, match="this has 66"):
        GroupConfig(group="é" * 33)


def test_the_ack_threshold_in_force() -> None:
    assert MulticastConfig(capacity=4096).ack_every == 1024
    assert MulticastConfig(capacity=3).ack_every == 1
    assert MulticastConfig(capacity=64, ack_threshold=7).ack_every == 7


def test_a_config_error_is_the_callers_mistake() -> None:
    assert issubclass(ConfigError, UsageError)


def test_type_checkers_see_what_has_to_be_given() -> None:
    """To them whatever else stands behind a field is its default."""
    declared = dataclasses.fields(GroupConfig)
    required = {one.name for one in declared if one.default is one.default_factory}
    assert required == {"group"}
    shown = re.findall(r"^    (\w+): .* = field\(", inspect.getsource(GroupConfig), re.M)
    assert {*shown} == required
