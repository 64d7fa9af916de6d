"""Configuration from a TOML file. The sections are the configuration classes and their fields are
the keys, so there is one validator: a wrong value is refused by the class, and told with its place.

    preset = "large"            # optional; what stands below goes before it

    [group]
    group = "orders"
    name = "web-1"

    [multicast]
    capacity = 8192

    [multicast.stability]       # its mere presence makes the group vote
    interval_s = 0.1

    [unicast]
    [membership]
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ringcast.config import (
    GroupConfig,
    MembershipConfig,
    MulticastConfig,
    StabilityConfig,
    UnicastConfig,
)
from ringcast.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

FILE_BYTES_MAX = 1 << 20

C = TypeVar("C", MulticastConfig, StabilityConfig, UnicastConfig, MembershipConfig, GroupConfig)

SECTIONS: dict[str, type[Any]] = {
    "group": GroupConfig,
    "multicast": MulticastConfig,
    "multicast.stability": StabilityConfig,
    "unicast": UnicastConfig,
    "membership": MembershipConfig,
}

NESTED = {"multicast", "unicast", "membership", "stability"}
"""Fields that are sections of their own."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "lan": {},
    "wan": {
        "multicast": {"datagram_bytes": 1400, "ack_delay_s": 0.05, "xmit_interval_s": 2.0},
        "unicast": {"ack_interval_s": 0.02, "xmit_interval_s": 2.0},
        "membership": {
            "discovery_wait_s": 3.0,
            "heartbeat_s": 1.0,
            "suspect_after_s": 10.0,
            "verify_s": 3.0,
            "leave_timeout_s": 30.0,
        },
    },
    "large": {
        "multicast": {"capacity": 1024},
        "multicast.stability": {"interval_s": 0.1},
        "membership": {"heartbeat_s": 0.5, "suspect_after_s": 5.0, "verify_s": 1.0},
    },
}
"""By name: fields that differ from the defaults, by section."""


def load_config(
    path: Path | str | None = None,
    *,
    preset: str | None = None,
    group: str | None = None,
    name: str | None = None,
) -> GroupConfig:
    """Read a group's configuration: `ringcast.join(ringcast.load_config("orders.toml"))`.

    What is given here goes before what stands in the file, and that before the preset. UsageError,
    and ConfigError among them, names the file, the section and the key. Without a file, only the
    preset counts.
    """
    import tomllib  # takes milliseconds, and who has no file needs none of it

    text = "" if path is None else _read(Path(path))
    where = "" if path is None else f"{path}: "
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where}not TOML: {error}") from None
    named = table.pop("preset", "lan")
    chosen = _check_preset(preset, "") if preset is not None else _check_preset(named, where)
    given = _sections(table, where)
    values = {
        section: {**PRESETS[chosen].get(section, {}), **given.get(section, {})}
        for section in SECTIONS
        if section in PRESETS[chosen] or section in given
    }
    own = values.get("group", {}) | {
        key: value for key, value in (("group", group), ("name", name)) if value is not None
    }
    multicast = values.get("multicast", {})
    if "multicast.stability" in values:
        stability = _build(StabilityConfig, "multicast.stability", values, where)
        multicast = multicast | {"stability": stability}
    parts = {
        "multicast": _build(MulticastConfig, "multicast", {"multicast": multicast}, where),
        "unicast": _build(UnicastConfig, "unicast", values, where),
        "membership": _build(MembershipConfig, "membership", values, where),
    }
    if "group" not in own:
        raise UsageError(f"{where}which group? Say it in section [group], or give it by itself")
    return _build(GroupConfig, "group", {"group": own | parts}, where)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise UsageError(f"{path} has more than {FILE_BYTES_MAX} bytes: not a configuration")
        return content.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not TOML: it is not UTF-8") from None


def _check_preset(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in PRESETS:
        raise ConfigError(f"{where}preset", value, " or ".join(map(repr, PRESETS)))
    return value


def _sections(table: Mapping[str, object], where: str) -> dict[str, dict[str, object]]:
    """By section, keys and values. All are known; whether values are right is for the classes."""
    found: dict[str, dict[str, object]] = {}
    for section, content in table.items():
        if section not in SECTIONS:
            tops = [name for name in SECTIONS if "." not in name]
            kind = "section" if isinstance(content, dict) else "key before the first section"
            raise _unknown(f"{where}no such {kind}", section, [*tops, "preset"])
        if not isinstance(content, dict):
            raise ConfigError(f"{where}{section}", content, f"a section: [{section}]")
        keys = dict(content)
        if section == "multicast" and "stability" in keys:
            stability = keys.pop("stability")
            if not isinstance(stability, dict):
                raise ConfigError(
                    f"{where}[multicast] stability", stability, "a section: [multicast.stability]"
                )
            found["multicast.stability"] = stability
        found[section] = keys
    for section, keys in found.items():
        known = _keys(section)
        for key in keys:
            if key not in known:
                raise _unknown(f"{where}no such key in [{section}]", key, known)
    return found


def _keys(section: str) -> list[str]:
    return [field.name for field in fields(SECTIONS[section]) if field.name not in NESTED]


def _unknown(what: str, key: str, known: Iterable[str]) -> UsageError:
    import difflib

    known = list(known)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return UsageError(f"{what}: {key!r}; {hint}")


def _build(kind: type[C], section: str, values: Mapping[str, Mapping[str, Any]], where: str) -> C:
    try:
        return kind(**values.get(section, {}))
    except ConfigError as error:
        # How two sections go together is checked by the outer one.
        of_inner = error.field not in _keys(section) and section == "multicast"
        place = "multicast.stability" if of_inner else section
        field = f"{where}[{place}] {error.field}"
        raise ConfigError(field, error.value, error.allowed) from None
