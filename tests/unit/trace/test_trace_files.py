"""Writing and reading traces: round trips, torn files, other versions, stable hashes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import FACTS, clean

from ringcast.errors import UsageError
from ringcast.model import Address, Member
from ringcast.trace.files import trace_hash, write_trace
from ringcast.trace.rows import Facts, Row, Trace, member_key, split_key
from support.events import EVENTS
from support.trace_files import TornTrace, read_trace

VERSION_3 = Path(__file__).parents[2] / "fixtures" / "trace-version-3.jsonl"

names = st.text(max_size=8)
integers = st.integers(-1, 2**64)
rows = st.builds(
    Row,
    event=st.sampled_from(EVENTS),
    node=names,
    inc=integers,
    idx=integers,
    run_idx=integers,
    mono_ns=integers,
    peer=names,
    members=st.lists(names, max_size=3).map(tuple),
    block_hash=integers,
    detail=names,
)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
@given(written=st.lists(rows, max_size=5))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, name: str, written: list[Row]
) -> None:
    path = tmp_path_factory.mktemp("trace") / name
    facts = replace(FACTS, stopped_members=frozenset({"a#1", "b#1"}))
    write_trace(path, Trace(written, facts))
    trace = read_trace(path)
    assert (trace.rows, trace.facts, trace.torn) == (written, facts, None)
    assert all(type(row.members) is tuple for row in trace.rows)


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("jsonl", "jsonl.gz"):
        first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
        write_trace(first, clean().trace())
        write_trace(second, read_trace(first))
        assert first.read_bytes() == second.read_bytes()


def test_a_torn_last_line_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    trace = clean().trace()
    write_trace(path, trace)
    path.write_bytes(path.read_bytes()[:-5])
    torn = read_trace(path)
    assert torn.rows == trace.rows[:-1]
    assert torn.torn is not None
    assert torn.torn.rows == len(trace.rows) - 1
    assert torn.torn.bytes_lost > 0


def test_a_torn_archive_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    trace = clean().trace()
    write_trace(path, trace)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    torn = read_trace(path)
    assert 0 < len(torn.rows) < len(trace.rows)
    assert torn.rows == trace.rows[: len(torn.rows)]
    assert torn.torn is not None
    path.write_bytes(whole[:-4])  # every row is there; only the check at the end is not
    assert read_trace(path).rows == trace.rows
    assert read_trace(path).torn == TornTrace(len(trace.rows), 1)


def write_lines(path: Path, *lines: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_there_may_be_more_columns_or_fewer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    columns = ["node", "event", "colour", "inc", "idx", "seqno"]
    header = {"schema": 3, "columns": columns, "facts": {"seed": 3, "mood": "good"}}
    write_lines(path, header, ["a", "send", "red", 1, 0, 5])
    trace = read_trace(path)
    assert trace.rows == [Row("send", "a", 1, 0, seqno=5)]
    assert trace.facts == Facts(seed=3)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_another_version_is_refused_in_one_line(tmp_path: Path, version: int) -> None:
    path = tmp_path / "run.jsonl"
    write_lines(path, {"schema": version, "columns": {"send": "otherwise"}, "facts": {}})
    with pytest.raises(UsageError) as refused:
        read_trace(path)
    assert str(refused.value) == (
        f"run.jsonl: a trace of version {version}; this ringcast reads version 3: use the "
        "ringcast that wrote it"
    )


def test_a_trace_that_was_written_long_ago_is_read() -> None:
    trace = read_trace(VERSION_3)
    assert (trace.facts.run, trace.facts.seed, trace.facts.protocol) == ("fixture", 7, "multicast")
    assert trace.facts.capacity == {"a#1": 2, "b#1": 2}
    assert trace.facts.stopped_members == {"b#1"}
    assert [row.event for row in trace.rows] == ["phase", "view", "open", "deliver", "phase"]
    assert trace.rows[1].members == ("a#1", "b#1")
    assert trace.rows[3].pair == ("b", 1, "a", 1, 0)
    assert (trace.rows[3].seqno, trace.rows[3].seqno2, trace.rows[3].run_idx) == (1, 2, 3)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [["send", "a", 1, 0]],
        [{"schema": 0, "columns": [], "facts": {}}],
        [{"schema": "one", "columns": [], "facts": {}}],
        [{"schema": 3, "columns": ["event"], "facts": 7}],
        [{"schema": 3, "columns": ["event"], "facts": {}}, ["send"]],
        [{"schema": 3, "columns": ["event", "node", "inc", "idx"], "facts": {}}, ["send"]],
        [{"schema": 3, "columns": ["event", "node", "inc", "idx"], "facts": {}}, {"a": 1}],
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "run.jsonl"
    write_lines(path, *lines)
    with pytest.raises(UsageError, match=r"run\.jsonl"):
        read_trace(path)


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_trace(path, clean().trace())
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3][:-1]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UsageError, match="line 4"):
        read_trace(path)
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(b"no archive" + gzip.compress(b"x"))
    with pytest.raises(UsageError, match="damaged"):
        read_trace(packed)


def test_the_hash_is_of_the_rows_alone() -> None:
    trace = clean().trace()
    other = clean().trace(replace(FACTS, seed=8))
    assert trace_hash(trace) == trace_hash(other)
    for at in (0, -1):
        changed = list(trace.rows)
        changed[at] = changed[at]._replace(detail="changed")
        assert trace_hash(Trace(changed, FACTS)) != trace_hash(trace)
    assert trace_hash(Trace(trace.rows[::-1], FACTS)) != trace_hash(trace)


def test_the_hash_does_not_depend_on_the_interpreter_s_hash_seed() -> None:
    program = (
        "from ringcast.trace.files import trace_hash\n"
        "from ringcast.trace.rows import Facts, Row, Trace\n"
        "rows = [Row('view', 'ä', 1, 0, members=('ä#1', 'b#1'), stream=0)] * 5000\n"
        "print(trace_hash(Trace(rows, Facts())), end='')\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    rows = [Row("view", "ä", 1, 0, members=("ä#1", "b#1"), stream=0)] * 5000
    assert printed == {trace_hash(Trace(rows, Facts()))}


def test_member_keys() -> None:
    member = Member(Address("h", 1), 2**64 - 1, "web#2")
    assert member_key(member) == "web#2#18446744073709551615"
    assert split_key(member_key(member)) == ("web#2", 2**64 - 1)
    assert Row("send", "web#2", member.incarnation, 0).member == member_key(member)


def test_bounds_grow_with_the_repair_requests_needed() -> None:
    facts = Facts(tau_ns=1_000, delta_ns=10, ack_delay_ns=5, nack_messages_max=4)
    assert [facts.delivery_bound_ns(n) for n in (0, 4, 5, 9)] == [3_050, 3_050, 4_050, 5_050]
    assert facts.drain_bound_ns(1) == 3_050 + 5 + 1_000 + 10
