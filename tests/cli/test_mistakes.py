"""What was asked for cannot be: the command says why in one line, and its status is 2. Never a
traceback. Each of these is a process of its own, as users have it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from terminals import COMMAND, DEADLINE_S, mistake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {
    "unknown.toml": "[multicast]\ncapcity = 3\n",
    "type.toml": "[multicast]\ncapacity = 'many'\n",
    "internal.toml": "[membership]\nverify_s = 1.0\n",
    "transport.toml": "[group]\ntransport = 'pigeon'\n",
    "broken.toml": "[multicast\n",
    "options.json": "{",
    "cut/publisher.json": '{"publisher": "p"',
    "list/publisher.json": "[]",
    "progress/published.json": "{",
    "manifest/batch-000000000000.json": "{}",
    "other/publisher.json": '{"name": "somebody else\'s"}',
    "unstaged/publisher.json": '{"publisher": "p", "kind": "a stream"}',
}
STAGED = ("staged", "cut", "list", "progress", "manifest", "other")
"""Directories that a stream has staged in, or nearly so."""

USED = "USED"
"""In place of a port where somebody listens already."""

MISTAKES: list[tuple[str, str]] = [
    # Files
    (
        "join x --config unknown.toml",
        r"unknown\.toml: no such key in \[multicast\]: 'capcity'; did you mean 'capacity'\?",
    ),
    (
        "join x --config type.toml",
        r"type\.toml: \[multicast\] capacity = 'many': must be a whole number from 1 to 1048576",
    ),
    (
        "join x --config internal.toml",
        r"internal\.toml: \[membership\] verify_s is internal: leave it to a preset",
    ),
    (
        "join x --config transport.toml",
        r"transport\.toml: \[group\] transport = 'pigeon': must be 'udp', 'multicast' or 'tcp'",
    ),
    ("join x --config broken.toml", r"broken\.toml: not TOML: .*"),
    ("join x --config none.toml", r"cannot read none\.toml: No such file or directory"),
    ("replay --options options.json", r"not the options of a run: .*"),
    # Options
    (
        "join x --set multicast.capcity=3",
        r"no such key in \[multicast\]: 'capcity'; did you mean 'capacity'\?",
    ),
    (
        "join x --transport pigeon",
        r"Invalid value for '--transport': 'pigeon' is not one of 'udp', 'multicast', 'tcp'\. "
        r"\(see ringcast join --help\)",
    ),
    (
        "join x --guarantee most",
        r"Invalid value for '--guarantee': 'most' is not one of 'fifo', 'uniform', 'total'\. "
        r"\(see ringcast join --help\)",
    ),
    ("join x --min-members 0", r"min_members = 0: must be a whole number from 1 to 512"),
    (
        "simulate --seeds 5:1",
        r"Invalid value for '--seeds': '5:1': no seeds from 0 to 2\*\*64 - 1 in it .*",
    ),
    (
        "simulate --seeds few",
        r"Invalid value for '--seeds': 'few': write FIRST:STOP, such as 0:500, or one seed .*",
    ),
    ("explore ring --scenario Z", r"Invalid value for '--scenario': 'Z' is not one of .*"),
    ("bench ring --adders 0", r"Invalid value for '--adders': 0 is not in the range .*"),
    ("top x --interval 0", r"Invalid value for '--interval': .*"),
    ("simulate --jobs 0", r"Invalid value for '--jobs': 0 is not in the range 1<=x<=256\. .*"),
    (
        "simulate --protocol unicast --partitions",
        r"--partitions needs --protocol group, uniform or total \(see ringcast simulate --help\)",
    ),
    (
        "simulate --grid capacity=4",
        r"--master, --conf, --grid, --audit and --out go with --spark "
        r"\(see ringcast simulate --help\)",
    ),
    ("replay", r"give either --seed or --options \(see ringcast replay --help\)"),
    ("replay --seed -1", r"Invalid value for '--seed': -1 is not in the range 0<=x<=\d+\. .*"),
    ("demo --loss 2", r"Invalid value for '--loss': 2\.0 is not in the range 0<=x<=0\.5\. .*"),
    ("demo --quick --keep run", r".*: --quick records nothing: leave it out \(see .*\)"),
    ("bench multicast --size big", r".*: 'big' is not a size: write 1000, or 100-mixed .*"),
    ("join", r"which group\? Give its name, or say it in section \[group\] of a file, or with .*"),
    ("join x --record-level full", r"No such option '--record-level'\. .*'--record'\? .*"),
    (
        "join x --set capacity=3",
        r"'capacity=3' is not SECTION\.KEY=VALUE, such as multicast\.capacity=8192",
    ),
    ("join x --key-file none", r"no key file none: make one with `ringcast keygen none`"),
    (
        "members --json orders",
        r".*: orders is no JSON file: end it in \.json, or write --json last .*",
    ),
    ("stats x --json --prometheus", r"--json or --prometheus, not both"),
    ("top", r"Missing argument 'GROUP'\. \(see ringcast top --help\)"),
    ("explode", r"No such command 'explode'\. Did you mean 'explore'\? \(see ringcast --help\)"),
    ("simulte", r"No such command 'simulte'\. Did you mean 'simulate'\? \(see ringcast --help\)"),
    (
        "simulate --protocol totl",
        r"Invalid value for '--protocol': 'totl' is not one of 'multicast', .*, 'total'\. .*",
    ),
    ("join x --channel locks", r"No such option '--channel'\. .*"),
    ("health", r"Missing argument 'GROUP'\. \(see ringcast health --help\)"),
    ("publish staged", r"Missing argument 'GROUP'\. \(see ringcast publish --help\)"),
    ("publish staged orders --least 1", r"Invalid value for '--least': 1 is not in the range .*"),
    ("publish staged orders --set multicast.capcity=3", r"no such key in \[multicast\]: .*"),
    ("publish staged orders --listen nowhere", r"listen = 'nowhere': must be host:port, .*"),
    ("publish staged orders --key-file none", r"no key file none: make one with .*"),
    ("archive orders here --transport pigeon", r"Invalid value for '--transport': 'pigeon' .*"),
    # Directories
    (
        "publish none orders",
        r"Invalid value for 'DIRECTORY': Directory 'none' does not exist\. .*",
    ),
    ("publish options.json orders", r"Invalid value for 'DIRECTORY': .* is a file\. .*"),
    ("publish . orders", r"\.: no stream or table was written here yet"),
    *[
        (
            f"publish {directory} orders",
            rf"{directory}/{name} is damaged, or no stream or table has .*",
        )
        for directory, name in (
            ("cut", "publisher.json"),
            ("list", "publisher.json"),
            ("progress", "published.json"),
            ("manifest", "batch-000000000000.json"),
        )
    ],
    ("publish other orders", r"other is not what a stream or a table was written to"),
    ("publish unstaged orders", r"unstaged is not what a stream or a table was written to"),
    ("audit none", r"Invalid value for 'DIRECTORY': Directory 'none' does not exist\. .*"),
    ("audit .", r"\.: no segments \(\*\.parquet\) in it: members write them with record="),
    ("audit . --report none/x.html", r".*--report: nothing can be written in \S+/none \(see .*\)"),
    (
        "tables show none",
        r"none: no tables here: build them with ringcast tables build TRACES none",
    ),
    ("tables build none", r"Invalid value for 'TRACES': Directory 'none' does not exist\. .*"),
    (
        "keygen options.json",
        r"options\.json is there already: a key is not written over, name another file",
    ),
    ("audit . --master here", r"Invalid value for '--master': 'here': write local\[\*\], .*"),
    (
        "simulate --seeds 0 --json none/figures.json",
        r"Invalid value for '--json': none is not a directory .*",
    ),
    ("simulate --seeds 0 --record options.json/x", r"options\.json/x: Not a directory"),
    ("join x --record options.json/x", r"cannot record in options\.json/x: Not a directory"),
    # The network
    (
        "join x --member 127.0.0.1:1 --must-exist",
        r"nobody answered at 127\.0\.0\.1:1: is group 'x' running, with this key \(id \w{8}\)\?",
    ),
    ("join x --listen USED", r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"),
    (
        "join x --listen USED --transport tcp",
        r"cannot listen on 127\.0\.0\.1:\d+: Address already in use",
    ),
    ("join x --metrics USED", r"cannot tell metrics on 127\.0\.0\.1:\d+: Address already in use"),
    ("join x --member nowhere", r"members = 'nowhere': must be host:port, such as .*"),
    (
        "join x --listen 192.0.2.1:7800",
        r"192\.0\.2\.1:7800 is not a loopback address: without a key .* make one with `ringcast "
        r"keygen FILE` .*",
    ),
    ("join x --listen 127.0.0.1:99999", r"listen = '127\.0\.0\.1:99999': must be host:port, .*"),
    ("join x --listen nowhere", r"listen = 'nowhere': must be host:port, such as .*"),
    # Members
    *[
        (f"{command} x", r"no member of group 'x' runs here")
        for command in ("explain", "sync --member a x")
    ],
]


@pytest.fixture(scope="module")
def used() -> Iterator[str]:
    """An address where somebody listens, for datagrams and for connections."""
    with (
        socket.create_server(("127.0.0.1", 0)) as connections,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        address = connections.getsockname()
        datagrams.bind(address)
        yield "{}:{}".format(*address)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    for directory in STAGED:
        (tmp_path / directory / "staged").mkdir(parents=True)
        about = tmp_path / directory / "publisher.json"
        if not about.exists():
            about.write_text('{"publisher": "p", "kind": "a stream"}')
    return tmp_path


@pytest.mark.parametrize(("command", "line"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_one_line_says_what_is_wrong(command: str, line: str, used: str) -> None:
    said = mistake(*command.replace(USED, used).split())
    assert re.fullmatch(line, said), said


@pytest.mark.parametrize("command", ["publish staged x", "archive x kept", "join x"])
def test_each_member_listens_where_the_environment_says(
    command: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGCAST_LISTEN", used)
    assert mistake(*command.split()) == f"cannot listen on {used}: Address already in use"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "LISTEN",
            "nowhere",
            r"RINGCAST_LISTEN: \[group\] listen = 'nowhere': must be host:port, .*",
        ),
        (
            "MULTICAST_CAPACITY",
            "many",
            r"RINGCAST_MULTICAST_CAPACITY: .*: must be a whole number .*",
        ),
        ("PRESET", "fast", r"RINGCAST_PRESET: preset = 'fast': must be 'lan' or .*"),
        ("TRANSPORT", "udp4", r"RINGCAST_TRANSPORT: .*: must be 'udp', 'multicast' or 'tcp'"),
        ("INSECURE", "maybe", r"RINGCAST_INSECURE: .*: must be true or false"),
        ("KEY", "short", r"RINGCAST_KEY, line 1: a key is 64 hex digits"),
        ("KEY_FILE", "none", r"no key file none: make one with `ringcast keygen none`"),
        ("GROUP", "x" * 65, r"RINGCAST_GROUP: \[group\] group = .*: must be 1 to 64 bytes of .*"),
    ],
)
def test_a_wrong_environment_is_told_with_its_name(
    name: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RINGCAST_{name}", value)
    said = mistake("join", *(["x"] if name != "GROUP" else []))
    assert re.fullmatch(line, said), said


MORTAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for capability in (1, 2):  # to override permissions, and to search whatever there is
    if libc.prctl(24, capability, 0, 0, 0):
        sys.exit("cannot give up privileges")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""The system's administrator may write anywhere: unless it gives that up for good."""


@pytest.mark.parametrize("command", ["join", "members", "explain"])
def test_a_runtime_directory_that_may_not_be_written_to(command: str, directory: Path) -> None:
    (directory / "ringcast").mkdir(mode=0o500 if command == "join" else 0o000)
    as_mortal = [sys.executable, "-c", MORTAL] if os.getuid() == 0 else []
    try:
        result = subprocess.run(
            [*as_mortal, *COMMAND, command, "orders"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    finally:
        (directory / "ringcast").chmod(0o700)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(
        rf"ringcast: cannot (make key file|look into) {directory}/ringcast/\w+(/group\.key)?: "
        r"Permission denied\n",
        result.stderr,
    )
