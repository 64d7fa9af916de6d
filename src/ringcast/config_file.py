"""Configuration from a TOML file, from the environment and from options. The sections are the
configuration classes and their settings are the keys, so there is one validator: a wrong value
is refused by the class, and told with its place. An option is a line of such a file with the
section before the key: `multicast.capacity = 8192`.

    preset = "large"            # optional; what stands below goes before it

    [group]
    group = "orders"
    name = "web-1"

    [multicast]
    capacity = 8192

    [multicast.stability]       # its mere presence makes the group report
    interval_s = 0.1

    [unicast]
    [membership]

In the environment the same line is RINGCAST_MULTICAST_CAPACITY=8192, and a key of [group] has no
section: RINGCAST_LISTEN; so has RINGCAST_PRESET. Text stays text, of lists parts are separated by
commas, and what is empty is not given. Other names that begin so are not ours to judge: a platform
may have made them. One that is nearly right, or an argument of `join`, is logged.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ringcast.arguments import PROGRAM
from ringcast.config import (
    GroupConfig,
    MembershipConfig,
    MulticastConfig,
    StabilityConfig,
    UnicastConfig,
    settings,
)
from ringcast.errors import ConfigError, UsageError
from ringcast.private import VARIABLE as FILE_MODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Sections: TypeAlias = dict[str, dict[str, Any]]
    """By section, keys and values."""

FILE_BYTES_MAX = 1 << 20
PREFIX = "RINGCAST_"
PRESET = "RINGCAST_PRESET"
OTHERS = {PRESET, FILE_MODE, "RINGCAST_KEY", "RINGCAST_KEY_FILE"}
"""Those for keys are for groups that are given none otherwise: they do not go before a file."""

ARGUMENTS = {"give_state", "take_state", *PROGRAM}
"""Of `join`: what belongs to a program, and not to where it runs."""
FLAGS = {"true": True, "1": True, "false": False, "0": False}

log = logging.getLogger("ringcast")

C = TypeVar("C", MulticastConfig, StabilityConfig, UnicastConfig, MembershipConfig, GroupConfig)

SECTIONS: dict[str, type[Any]] = {
    "group": GroupConfig,
    "multicast": MulticastConfig,
    "multicast.stability": StabilityConfig,
    "unicast": UnicastConfig,
    "membership": MembershipConfig,
}

PRESETS: dict[str, Sections] = {
    "lan": {},
    "alert": {"membership": {"heartbeat_s": 0.1, "suspect_after_s": 0.7, "verify_s": 0.2}},
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
    options: Sequence[str] = (),
    group: str | None = None,
    name: str | None = None,
) -> GroupConfig:
    """Read a group's configuration: `ringcast.join(config=ringcast.load_config("orders.toml"))`.

    What is given here goes before the environment (RINGCAST_MULTICAST_CAPACITY=8192), that before
    what stands in the file, and that before the preset; `options`
    are lines such as "multicast.capacity = 8192". UsageError, and ConfigError among them, names the
    file, the section and the key. Without a file, only what is given counts.
    """
    where = "" if path is None else f"{path}: "
    table = {} if path is None else _parse(_read(Path(path)), where)
    named, place = table.pop("preset", "lan"), where
    if preset is not None:
        named, place = preset, ""
    elif said := os.environ.get(PRESET):
        named, place = said, f"{PRESET}: "
    chosen = _check_preset(named, place)
    layers = [(PRESETS[chosen], ""), (_sections(table, where), where)]
    layers += [(section, f"{name}: ") for name, section in _environment().items()]
    layers += [(_sections(_parse_option(line), ""), "") for line in options]
    own = {key: value for key, value in (("group", group), ("name", name)) if value is not None}
    values = _Values([*layers, ({"group": own} if own else {}, "")])
    stability = None
    if "multicast.stability" in values:
        stability = values.build(StabilityConfig, "multicast.stability")
    parts = {
        "multicast": values.build(MulticastConfig, "multicast", stability=stability),
        "unicast": values.build(UnicastConfig, "unicast"),
        "membership": values.build(MembershipConfig, "membership"),
    }
    if "group" not in values.of("group"):
        raise UsageError(
            f"{where}which group? Give its name, or say it in section [group] of a file, or with "
            "RINGCAST_GROUP"
        )
    return values.build(GroupConfig, "group", **parts)


class _Values:
    """What is said, by section and key, and where; the later goes before the earlier."""

    def __init__(self, layers: Iterable[tuple[Sections, str]]) -> None:
        self._values: dict[str, dict[str, tuple[Any, str]]] = {}
        for sections, where in layers:
            for section, keys in sections.items():
                said = self._values.setdefault(section, {})
                said.update((key, (value, where)) for key, value in keys.items())

    def __contains__(self, section: str) -> bool:
        return section in self._values

    def of(self, section: str) -> dict[str, Any]:
        return {key: value for key, (value, _) in self._values.get(section, {}).items()}

    def build(self, kind: type[C], section: str, **parts: Any) -> C:
        try:
            return kind(**self.of(section), **parts)
        except ConfigError as error:
            _, where = self._values.get(section, {}).get(error.field, (None, ""))
            field = f"{where}[{section}] {error.field}"
            allowed = error.allowed.replace("True or False", "true or false")  # nobody writes code
            raise ConfigError(field, error.value, allowed) from None


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


def _parse(text: str, where: str) -> dict[str, Any]:
    import tomllib  # takes milliseconds, and who has no file needs none of it

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where}not TOML: {error}") from None


def _parse_option(line: str) -> dict[str, Any]:
    """SECTION.KEY=VALUE; words need no quotes."""
    key, is_given, value = (part.strip() for part in line.partition("="))
    if not is_given or "." not in key:
        raise UsageError(f"{line!r} is not SECTION.KEY=VALUE, such as multicast.capacity=8192")
    *sections, name = key.split(".")
    table = {name: _value_of(value)}
    for section in reversed(sections):
        table = {section: table}
    return table


def _environment() -> dict[str, Sections]:
    """What it says, by name of the variable."""
    known = {
        PREFIX + f"{section}_{key}".removeprefix("group_").replace(".", "_").upper(): (section, key)
        for section, kind in SECTIONS.items()
        for key in settings(kind)
    }
    by_key = {key: name for name, (_, key) in reversed(known.items())}
    found: dict[str, Sections] = {}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        if name in OTHERS:
            continue
        plain = name.removeprefix(PREFIX).lower()
        if name in known:
            section, key = known[name]
            value = _value_for(SECTIONS[section], key, os.environ[name].strip())
            if value not in ("", []):
                found[name] = {section: {key: value}}
        elif plain in ARGUMENTS:
            log.warning("%s is no setting: only join(%s=…) says it", name, plain)
        elif near := by_key.get(plain) or _nearest(name, [*known, PRESET], 0.9):
            log.warning("%s is no setting: did you mean %s?", name, near)
    return found


def _check_preset(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in PRESETS:
        raise ConfigError(f"{where}preset", value, " or ".join(map(repr, PRESETS)))
    return value


def _sections(table: Mapping[str, object], where: str) -> Sections:
    """All keys are known; whether values are right is for the classes."""
    found: Sections = {}
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
        for key in keys:
            _check_key(key, section, where)
    return found


def _check_key(key: str, section: str, where: str) -> None:
    kind = SECTIONS[section]
    known = settings(kind)
    if key in known:
        return
    if any(field.name == key and "internal" in field.metadata for field in fields(kind)):
        raise UsageError(f"{where}[{section}] {key} is internal: leave it to a preset")
    raise _unknown(f"{where}no such key in [{section}]", key, known)


def _value_for(kind: type[Any], key: str, text: str) -> Any:
    """What one variable says."""
    match next(field.metadata["kind"].word for field in fields(kind) if field.name == key):
        case "flag":
            return FLAGS.get(text.lower(), text)
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "text":
            return text
    return _value_of(text)


def _value_of(text: str) -> Any:
    """As TOML has it; words need no quotes."""
    try:
        return _parse(f"value = {text}", "")["value"]
    except UsageError:
        return text


def _unknown(what: str, key: str, known: Iterable[str]) -> UsageError:
    near = _nearest(key, known, 0.6)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
    return UsageError(f"{what}: {key!r}; {hint}")


def _nearest(key: str, known: Iterable[str], likeness: float) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(key, list(known), 1, likeness)), None)
