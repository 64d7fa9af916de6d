"""Configuration files: what they say is what members get, and what they may not say is told."""

from __future__ import annotations

import collections.abc
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import ringcast
from ringcast import (
    ConfigError,
    GroupConfig,
    JoinOptions,
    MembershipConfig,
    MulticastConfig,
    StabilityConfig,
    UnicastConfig,
    UsageError,
    load_config,
)
from ringcast.arguments import PROGRAM
from ringcast.config import settings
from ringcast.config_file import FILE_BYTES_MAX, PRESETS, SECTIONS
from tools.settings_page import PAGE, described, generated

NAMES = vars(ringcast.config) | {"Sequence": collections.abc.Sequence, "Path": Path}
"""What annotations of settings may name."""

WHOLE = """
[group]
group = "orders"
name = "web-1"
listen = "127.0.0.1:7800"
members = ["127.0.0.1:7801", "127.0.0.1:7802"]
transport = "tcp"
must_exist = true
record = "traces"
metrics = "127.0.0.1:9464"
memory_limit = 1000000000
spin_s = 0.001

[multicast]
capacity = 64

[multicast.stability]
interval_s = 0.1

[unicast]
max_retransmit_s = 30

[membership]
min_members = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("orders.toml")


def test_every_section(file: Path) -> None:
    file.write_text(WHOLE)
    assert load_config(file) == GroupConfig(
        group="orders",
        name="web-1",
        listen="127.0.0.1:7800",
        members=["127.0.0.1:7801", "127.0.0.1:7802"],
        transport="tcp",
        must_exist=True,
        record="traces",
        metrics="127.0.0.1:9464",
        memory_limit=1_000_000_000,
        spin_s=0.001,
        multicast=MulticastConfig(capacity=64, stability=StabilityConfig(interval_s=0.1)),
        unicast=UnicastConfig(max_retransmit_s=30),
        membership=MembershipConfig(min_members=3),
    )


def test_what_is_given_goes_before_the_file_and_that_before_the_preset(file: Path) -> None:
    file.write_text('preset = "wan"\n' + WHOLE)
    config = load_config(str(file), group="bills", name="b")
    assert (config.group, config.name) == ("bills", "b")
    assert config.multicast.xmit_interval_s == 2.0
    assert config.multicast.capacity == 64
    large = load_config(file, preset="large")
    assert large.multicast.xmit_interval_s == MulticastConfig().xmit_interval_s
    assert large.multicast.capacity == 64


def test_a_section_makes_a_group_vote(file: Path) -> None:
    file.write_text("[multicast.stability]\n")
    assert load_config(file, group="x").multicast.stability == StabilityConfig()
    assert load_config(group="x").multicast.stability is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[multicast]\ncapcity = 3",
            "no such key in [multicast]: 'capcity'; did you mean 'capacity'?",
        ),
        (
            "[multicast.stability]\ninterval = 3",
            "no such key in [multicast.stability]: 'interval'; did you mean 'interval_s'?",
        ),
        (
            "[unicast]\nxyz = 3",
            "no such key in [unicast]: 'xyz'; there are max_retransmit_s",
        ),
        (
            "[group]\nmembership = 3",
            "no such key in [group]: 'membership'; did you mean 'members'?",
        ),
        (
            "[membership]\nverify_s = 3",
            "[membership] verify_s is internal: leave it to a preset",
        ),
        ("[multicst]", "no such section: 'multicst'; did you mean 'multicast'?"),
        (
            "capacity = 3",
            "no such key before the first section: 'capacity'; there are group, multicast, "
            "unicast, membership, preset",
        ),
        ("group = 'x'", "group = 'x': must be a section: [group]"),
        (
            "[multicast]\nstability = true",
            "[multicast] stability = True: must be a section: [multicast.stability]",
        ),
        (
            "[multicast]\ncapacity = '3'",
            "[multicast] capacity = '3': must be a whole number from 1 to 1048576",
        ),
        (
            "[group]\ngroup = 'x'\nmust_exist = 'yes'",
            "[group] must_exist = 'yes': must be true or false",
        ),
        (
            "[unicast]\nmax_retransmit_s = ''",
            "[unicast] max_retransmit_s = '': must be from 2 to 1e+06 seconds",
        ),
        (
            "[membership]\nsuspect_after_s = [1]",
            "[membership] suspect_after_s = [1]: must be from 0.5 to 3600 seconds",
        ),
        (
            "[multicast]\ncapacity = 100000\n[multicast.stability]",
            "[multicast] capacity = 100000: must be at most 65536 where members report",
        ),
        ("[group]\ngroup = 3", "[group] group = 3: must be 1 to 64 bytes of printable text"),
        (
            "[unicast]",
            "which group? Give its name, or say it in section [group] of a file, or with "
            "RINGCAST_GROUP",
        ),
        ("preset = 'man'", "preset = 'man': must be 'lan' or 'alert' or 'wan' or 'large'"),
        ("preset = 3", "preset = 3: must be 'lan' or 'alert' or 'wan' or 'large'"),
        ("[group", "not TOML: Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_mistakes_are_told_with_their_place(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(file)
    assert str(caught.value) == f"orders.toml: {message}"


def test_options_are_lines_of_a_file_and_go_before_it(file: Path) -> None:
    file.write_text(WHOLE)
    options = [
        "multicast.capacity=32",
        "group.transport = multicast",  # words need no quotes
        'group.members = ["127.0.0.1:7803"]',
        "multicast.stability.retain_delivered=false",
        "multicast.capacity=16",  # the last one counts
    ]
    config = load_config(file, options=options)
    assert config.multicast.capacity == 16
    assert config.transport == "multicast"
    assert config.members == ["127.0.0.1:7803"]
    assert config.multicast.stability == StabilityConfig(interval_s=0.1, retain_delivered=False)
    assert load_config(options=["group.group=bills"]).group == "bills"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("capacity=3", "'capacity=3' is not SECTION.KEY=VALUE, such as multicast.capacity=8192"),
        (
            "multicast.capacity",
            "'multicast.capacity' is not SECTION.KEY=VALUE, such as multicast.capacity=8192",
        ),
        (
            "multicast.capcity=3",
            "no such key in [multicast]: 'capcity'; did you mean 'capacity'?",
        ),
        (
            "multicast.capacity=many",
            "[multicast] capacity = 'many': must be a whole number from 1 to 1048576",
        ),
        ("multicst.capacity=3", "no such section: 'multicst'; did you mean 'multicast'?"),
        ("unicast.close_s=3", "[unicast] close_s is internal: leave it to a preset"),
    ],
)
def test_mistakes_in_options_are_not_the_files(file: Path, option: str, message: str) -> None:
    file.write_text(WHOLE)
    with pytest.raises(UsageError) as caught:
        load_config(file, options=[option])
    assert str(caught.value) == message


def test_files_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read orders\.toml: No such file or directory"):
        load_config(file)
    with pytest.raises(UsageError, match=r"cannot read \.: Is a directory"):
        load_config(".")
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"orders\.toml: not TOML: it is not UTF-8"):
        load_config(file)
    file.write_text("a = " + "[" * 100_000)
    with pytest.raises(UsageError, match=r"orders\.toml: not TOML: "):
        load_config(file)
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="has more than 1048576 bytes"):
        load_config(file)


def test_a_mistake_of_the_caller_is_not_the_files(file: Path) -> None:
    file.write_text(WHOLE)
    with pytest.raises(ConfigError, match=r"^preset = 'man': must be"):
        load_config(file, preset="man")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_right_and_say_nothing_twice(preset: str) -> None:
    config = load_config(preset=preset, group="x")
    parts: dict[str, Any] = {
        "multicast": config.multicast,
        "multicast.stability": config.multicast.stability,
        "unicast": config.unicast,
        "membership": config.membership,
    }
    for section, values in PRESETS[preset].items():
        for key, value in values.items():
            assert getattr(parts[section], key) == value
            assert value != getattr(SECTIONS[section](), key)


def test_the_tables_of_the_manual_are_those_of_the_declarations() -> None:
    """`python -m tools.settings_page` renews them."""
    page = PAGE.read_text()
    assert generated(page) == page
    for section, kind in SECTIONS.items():
        for key in settings(kind):
            assert page.count(f"`[{section}] {key}`") >= 1
    assert generated(page.replace("| `4096` |", "| `4095` |")) == page


def test_every_setting_is_declared_in_one_place() -> None:
    """With what it may be and, below it, what it does; arguments of `join` have the same names."""
    classes = [GroupConfig, MembershipConfig]
    own = {field.name: kind for kind in classes for field in fields(kind)}
    for kind in SECTIONS.values():
        texts = described(kind)
        for field in fields(kind):
            is_part = field.metadata["kind"] and field.metadata["kind"].word == "section"
            assert (field.name in texts) is not (is_part and field.name != "stability"), field.name
    texts = described(JoinOptions)
    assert texts.keys() == {*PROGRAM, "config", "key"}
    for name, annotation in JoinOptions.__annotations__.items():
        if name not in texts:  # its type is that of the setting; None, if it is not given
            declared = get_type_hints(own[name], NAMES)[name]
            assert annotation in (declared, declared | None), name
    assert own.keys() - JoinOptions.__annotations__.keys() - {"group", "key_file"} == {
        field.name for field in fields(MembershipConfig) if field.name != "min_members"
    } | {"receive_buffer_bytes"}


def test_what_join_does_not_take_is_told() -> None:
    with pytest.raises(TypeError, match=r"^join\(\) got an unexpected keyword argument 'lissen'$"):
        ringcast.join("orders", lissen="127.0.0.1:0")  # type: ignore[call-arg]


def test_the_example_of_the_manual(file: Path) -> None:
    page = PAGE.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    file.write_text(example)
    config = load_config(file)
    assert config.group == "orders"
    assert config.multicast.stability is not None


# The environment


def test_every_setting_may_stand_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(WHOLE)
    said = {
        "RINGCAST_NAME": "7",
        "RINGCAST_MEMBERS": "10.0.0.1:7800, orders.example:7800",
        "RINGCAST_MUST_EXIST": "false",
        "RINGCAST_INSECURE": "1",
        "RINGCAST_ADVERTISE": "192.0.2.7:7800",
        "RINGCAST_RECORD": "2026-11-19",
        "RINGCAST_MULTICAST_CAPACITY": "128",
        "RINGCAST_MULTICAST_STABILITY_INTERVAL_S": "0.5",
        "RINGCAST_MEMBERSHIP_SUSPECT_AFTER_S": "10",
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    config = load_config(file)
    assert (config.group, config.name, config.must_exist) == ("orders", "7", False)
    assert (config.insecure, config.advertise) == (True, "192.0.2.7:7800")
    assert config.record == "2026-11-19"
    assert config.members == ["10.0.0.1:7800", "orders.example:7800"]
    assert config.multicast == MulticastConfig(
        capacity=128, stability=StabilityConfig(interval_s=0.5)
    )
    assert config.membership == MembershipConfig(min_members=3, suspect_after_s=10)
    given = load_config(file, name="given", options=["multicast.capacity=256"])
    assert (given.name, given.multicast.capacity) == ("given", 256)


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_MULTICAST_CAPACITY", "many")
    what = r"^RINGCAST_MULTICAST_CAPACITY: \[multicast\] capacity = 'many': must be a whole number"
    with pytest.raises(ConfigError, match=what):
        load_config(group="orders")


@pytest.mark.parametrize("text", ["True", "TRUE", "1", "true"])
def test_flags_are_as_people_write_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_INSECURE", text)
    assert load_config(group="orders").insecure is True
    monkeypatch.setenv("RINGCAST_INSECURE", "yes")
    with pytest.raises(ConfigError, match=r"insecure = 'yes': must be true or false$"):
        load_config(group="orders")


def test_what_is_empty_is_not_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(WHOLE)
    names = ("NAME", "LISTEN", "METRICS", "INSECURE", "MULTICAST_CAPACITY", "PRESET")
    for name in names:
        monkeypatch.setenv(f"RINGCAST_{name}", "")
    expected = load_config(file)
    monkeypatch.setenv("RINGCAST_MEMBERS", " ,")
    assert load_config(file) == expected
    monkeypatch.setenv("RINGCAST_MEMBERS", "10.0.0.1:7800,")
    assert load_config(file).members == ["10.0.0.1:7800"]


def test_the_environment_may_name_the_preset(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('preset = "wan"')
    monkeypatch.setenv("RINGCAST_PRESET", "large")
    assert load_config(file, group="x") == load_config(preset="large", group="x")
    assert load_config(file, preset="lan", group="x") == GroupConfig(group="x")
    monkeypatch.setenv("RINGCAST_PRESET", "nonsense")
    with pytest.raises(ConfigError, match=r"^RINGCAST_PRESET: preset = 'nonsense': must be 'lan' "):
        load_config(file, group="x")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("RECORD_LEVEL", "RINGCAST_RECORD_LEVEL is no setting: only join(record_level=…) says it"),
        ("MIN_MEMBERS", "RINGCAST_MIN_MEMBERS is no setting: did you mean RINGCAST_MEMBERSHIP_MIN"),
        ("CAPACITY", "RINGCAST_CAPACITY is no setting: did you mean RINGCAST_MULTICAST_CAPACITY?"),
        ("PRESETS", "RINGCAST_PRESETS is no setting: did you mean RINGCAST_PRESET?"),
    ],
)
def test_what_lacks_its_section_or_is_an_argument_is_told(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"RINGCAST_{name}", "3")
    assert load_config(group="orders") == GroupConfig(group="orders")
    (message,) = caplog.messages
    assert message.startswith(told)


def test_a_variable_that_is_nearly_one_is_told_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RINGCAST_MULTICAST_CAPCITY", "8")
    monkeypatch.setenv("RINGCAST_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("RINGCAST_KEY_FILE", "orders.key")
    assert load_config(group="orders") == GroupConfig(group="orders")
    assert caplog.messages == [
        "RINGCAST_MULTICAST_CAPCITY is no setting: did you mean RINGCAST_MULTICAST_CAPACITY?"
    ]
