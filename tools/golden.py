"""Golden records: what a change that keeps behaviour must leave exactly as it was.

Five parts, each a text file in tests/golden:
  seeds      per seed of each plan: a hash over every (time, source, destination, bytes) that left a
             node, a hash of the verdicts, and how many datagrams there were
  explorer   states and transitions of small scenarios, explored to their end
  datagrams  one datagram of every kind of frame: it must decode, and encode to the same bytes
  help       the help text of every command
  json       the shape of what commands print with --json: names and types, no values

`make golden` makes them anew and compares. Where seeds differ it names the first, and the first
datagram that differs: the seed runs once more in the tree of the last renewal. `make golden
RENEW="why"` accepts what there is now, and keeps in renewals.md which seeds changed, how the first
differing datagram changed, and why. `make golden LIST=1` prints all renewals; FIRST=3 looks at the
first three seeds of each plan only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ringcast.cli import main as ringcast
from ringcast.errors import DecodeError
from ringcast.explore.ring import RINGS, explore_ring
from ringcast.explore.scenarios import SCENARIOS
from ringcast.model import Address, Member
from ringcast.sim.cluster import GROUP
from ringcast.sim.member import FIRST_PORT
from ringcast.sim.network import ChecksumSeal
from ringcast.sim.plan import expand
from ringcast.sim.runner import run
from ringcast.sim.world import Network
from ringcast.wire.codec import VERSION, Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden"
RENEWALS = FOLDER / "renewals.md"


class Plan(NamedTuple):
    """Seeds from 0 on, of one kind of run."""

    protocol: str
    purge: str
    partitions: bool
    seeds: int

    @property
    def name(self) -> str:
        return f"{self.protocol}-{self.purge}{'-partitions' * self.partitions}"


# Of stability runs, half retain delivered messages: with acks, three purge modes.
PLANS = {
    plan.name: plan
    for plan in (
        Plan("multicast", "acks", False, 350),
        Plan("multicast", "stability", False, 350),
        Plan("unicast", "acks", False, 500),
        Plan("group", "acks", False, 200),
        Plan("group", "stability", False, 150),
        Plan("group", "acks", True, 150),
        Plan("uniform", "acks", False, 150),
        Plan("uniform", "stability", False, 100),
        Plan("uniform", "acks", True, 50),
    )
}

LARGE = {
    *("multicast haste", "unicast stale", "sync drop two ways", "sync operator", "sync give up"),
}
"""Scenarios that take too long for here."""

COMMANDS = (
    ("simulate", "--seeds", "0:2", "--json"),
    ("simulate", "--protocol", "uniform", "--seeds", "0:1", "--json"),
    ("simulate", "--economy", "3", "--json"),
    ("explore", "ring", "--scenario", "A", "--json"),
    ("explore", "multicast", "--without", "reack", "--json"),
    ("bench", "codec", "--json"),
    ("bench", "window", "--json"),
)


# Seeds


@contextmanager
def _tapped(note: Callable[[int, int, int, bytes], None]) -> Iterator[None]:
    """While this lasts, every datagram of every simulated network is noted as it leaves: when, from
    which slot to which, its bytes."""
    send = Network.send

    def tap(network: Network, source: Address, dest: Address, datagram: bytes, *known: Any) -> None:
        slots = source.port - FIRST_PORT, dest.port - FIRST_PORT
        note(network.clock.now, *slots, datagram)
        send(network, source, dest, datagram, *known)

    Network.send = tap  # type: ignore[method-assign]
    try:
        yield
    finally:
        Network.send = send  # type: ignore[method-assign]


def _seed_line(task: tuple[str, int]) -> str:
    """One seed of a plan: its hashes."""
    name, seed = task
    plan = PLANS[name]
    wire = hashlib.blake2b(digest_size=8)
    count = 0

    def note(time: int, source: int, dest: int, datagram: bytes) -> None:
        nonlocal count
        count += 1
        wire.update(b"%d %d %d %d " % (time, source, dest, len(datagram)))
        wire.update(datagram)

    with _tapped(note):
        options = expand(seed, plan.protocol, partitions=plan.partitions, purge=plan.purge)
        summary = run(options).summary
    judged = [
        (rule, each.premises, each.violations, each.worst)
        for rule, each in sorted(summary.judged.items())
    ]
    verdicts = hashlib.blake2b(repr(judged).encode(), digest_size=4).hexdigest()
    return f"{name} {seed} {wire.hexdigest()} {verdicts} {count}"


def _dump(name: str, seed: int) -> Iterator[str]:
    """Every datagram of one seed: when, from where to where, what is in it, its bytes."""
    plan = PLANS[name]
    packets: list[tuple[int, int, int, bytes]] = []
    with _tapped(lambda *noted: packets.append(noted)):
        options = expand(seed, plan.protocol, partitions=plan.partitions, purge=plan.purge)
        run(options)
    seal = ChecksumSeal() if options.has("F6") else None
    codec = Codec(GROUP, Member(Address("golden", 0), 1, "golden"), options.datagram_bytes)
    for now, source, dest, data in packets:
        opened = data if seal is None else seal.unseal(data)
        assert not isinstance(opened, DecodeError)
        _, frames = codec.unpack(opened, overhear=True)
        yield f"{now} {source}>{dest} {frames} {data.hex()}"


# The other parts


def _explorer_line(task: tuple[str, str]) -> str:
    protocol, name = task
    is_ring = protocol == "ring"
    report = explore_ring(RINGS[name]) if is_ring else SCENARIOS[protocol][name].explore()
    assert report.complete, f"{protocol} {name} was cut short"
    return f"{protocol} {name}: {report.states} states, {report.transitions} transitions"


def _datagrams() -> Iterator[str]:
    """One for every kind of frame, taken from docs/wire.md once for each version of the format:
    that page may change."""
    kept = [bytes.fromhex(line) for line in _kept("datagrams")]
    if not kept or kept[0][2] != VERSION:
        page = (ROOT / "docs" / "wire.md").read_text("utf-8")
        for block in re.findall(r"^```vector\n(.*?)^```", page, re.M | re.S):
            if "\nrefused " not in block:
                yield "".join(re.findall(r"^hex (.*)$", block, re.M)).replace(" ", "")
        return
    reader = Member(Address("127.0.0.1", 7800), 42, "a")  # some of them are addressed to it
    for datagram in kept:
        sender, frames = Codec("orders", reader, 512).unpack(datagram, overhear=True)
        again = b"".join(Codec("orders", sender, 512).pack(frames, reader))
        if again != datagram:  # it is for everybody
            again = b"".join(Codec("orders", sender, 512).pack(frames, None))
        yield again.hex()


def _help(command: click.Command, path: str) -> Iterator[str]:
    """This command's help, then that of those below it."""
    with click.Context(command, info_name=path, terminal_width=80, max_content_width=80) as context:
        yield f"$ {path} --help"
        yield from command.get_help(context).splitlines()
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from _help(below, f"{path} {name}")


def _shape(value: object) -> object:
    """Names and types; of a list its first item, for all are alike."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value[:1]]
    return type(value).__name__


def _shapes() -> Iterator[str]:
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "ringcast", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        yield f"$ ringcast {' '.join(command)}"
        yield from json.dumps(_shape(json.loads(done.stdout)), indent=1).splitlines()


# Comparing and renewing


def _tasks(first: int | None) -> list[tuple[str, int]]:
    """All seeds of all plans, or the first few of each."""
    counts = {plan.name: min(plan.seeds, first or plan.seeds) for plan in PLANS.values()}
    return [(name, seed) for name, count in counts.items() for seed in range(count)]


def _made(jobs: int, seeds: list[tuple[str, int]]) -> dict[str, list[str]]:
    """All parts as this tree has them. Progress goes to the error stream."""
    small = [
        (protocol, name)
        for protocol, scenarios in {"ring": RINGS, **SCENARIOS}.items()
        for name in scenarios
        if f"{protocol} {name}" not in LARGE and protocol not in ("views", "total")
    ]
    with get_context("spawn").Pool(jobs) as pool:
        explored = pool.map_async(_explorer_line, small, chunksize=1)
        ran = []
        for line in pool.imap(_seed_line, seeds, chunksize=4):
            ran.append(line)
            if len(ran) % 100 == 0:
                click.echo(f"{len(ran)} of {len(seeds)} seeds", err=True)
        return {
            "seeds": ran,
            "explorer": explored.get(),
            "datagrams": list(_datagrams()),
            "help": list(_help(ringcast, "ringcast")),
            "json": list(_shapes()),
        }


def _path(part: str) -> Path:
    return FOLDER / f"{part}.txt"


def _kept(part: str) -> list[str]:
    return _path(part).read_text("utf-8").splitlines() if _path(part).exists() else []


class Difference(NamedTuple):
    """What differs in one part."""

    part: str
    pairs: list[tuple[str, str]]
    """Lines as kept and as made now; one of them is empty where there is no such line."""

    @property
    def seeds(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for pair in self.pairs:
            name, seed, *_ = (pair[1] or pair[0]).split()
            found.setdefault(name, []).append(int(seed))
        return found


def _differences(made: dict[str, list[str]], seeds: list[tuple[str, int]]) -> list[Difference]:
    found = []
    names = {f"{name} {seed}" for name, seed in seeds}
    for part, lines in made.items():
        kept = _kept(part)
        if part == "seeds":
            kept = [line for line in kept if line.rsplit(" ", 3)[0] in names]
        both = zip_longest(kept, lines, fillvalue="")
        pairs = [pair for pair in both if pair[0] != pair[1]]
        if pairs:
            found.append(Difference(part, pairs))
    return found


def _first_datagram(name: str, seed: int) -> str:
    """Where this seed parts from what it was at the last renewal, which runs it once more."""
    commit = _git("log", "-1", "--format=%H", "--", str(_path("seeds")))
    if not commit:
        return "no renewal is committed yet"
    with tempfile.TemporaryDirectory() as folder:
        _git("worktree", "add", "--quiet", "--detach", folder, commit)
        try:
            old = _dump_in(Path(folder), name, seed)
        finally:
            _git("worktree", "remove", "--force", folder)
    for number, (was, now) in enumerate(zip_longest(old, _dump(name, seed), fillvalue="nothing")):
        # What is printed of a frame may change its name; its time, way and bytes must not.
        if _bytes_of(was) != _bytes_of(now):
            return f"datagram {number}\n  was {_short(was)}\n  is  {_short(now)}"
    return "no datagram: the verdicts differ"


def _bytes_of(line: str) -> tuple[str, ...]:
    words = line.split()
    return (*words[:2], words[-1])


def _short(line: str) -> str:
    return line if len(line) <= 400 else f"{line[:400]}…"


def _dump_in(tree: Path, name: str, seed: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(tree / "tools" / "golden.py"), "--dump", name, str(seed)],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _tell(difference: Difference) -> str:
    """What differs, for people and for renewals.md."""
    if difference.part == "seeds":
        seeds = difference.seeds
        name, (first, *_) = next(iter(seeds.items()))
        counts = ", ".join(f"{plan} {_ranges(numbers)}" for plan, numbers in seeds.items())
        return f"seeds: {counts}. First: {name} {first}, {_first_datagram(name, first)}"
    was, now = difference.pairs[0]
    return f"{difference.part}: {len(difference.pairs)} lines, the first:\n  was {was}\n  is  {now}"


def _ranges(numbers: list[int]) -> str:
    """1 2 3 7 as 1..3 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _renew(made: dict[str, list[str]], found: list[Difference], why: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    is_first = not RENEWALS.exists()
    told = "Everything: the first record." if is_first else "\n".join(map(_tell, found))
    number = 1 if is_first else RENEWALS.read_text("utf-8").count("\n## ") + 1
    title = "# Renewals of the golden records\n" if is_first else ""
    with RENEWALS.open("a", encoding="utf-8") as file:
        file.write(f"{title}\n## {number}. {why}\n\n```\n{told}\n```\n")
    for part, lines in made.items():
        _path(part).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    click.echo(f"renewed: {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--renew", metavar="WHY", help="accept what differs, for this reason")
    parser.add_argument("--list", action="store_true", help="print all renewals")
    parser.add_argument("--dump", nargs=2, metavar=("PLAN", "SEED"), help="one seed's datagrams")
    parser.add_argument("--first", type=int, metavar="N", help="only N seeds of each plan")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.list:
        click.echo(RENEWALS.read_text("utf-8") if RENEWALS.exists() else "no renewals yet")
        return 0
    if arguments.dump:
        for line in _dump(arguments.dump[0], int(arguments.dump[1])):
            click.echo(line)
        return 0
    if arguments.first and arguments.renew:
        parser.error("a renewal needs all seeds: leave --first out")
    seeds = _tasks(arguments.first)
    made = _made(arguments.jobs, seeds)
    found = _differences(made, seeds)
    if arguments.renew and found:
        _renew(made, found, arguments.renew)
        return 0
    for difference in found:
        click.echo(f"DIFFERENT {_tell(difference)}")
    same = [part for part in made if part not in {each.part for each in found}]
    click.echo(f"equal: {', '.join(same) or 'nothing'}; {len(made['seeds'])} seeds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
