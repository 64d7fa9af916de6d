"""Bytes compared receiver against receiver, where the sender's hashes are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster_traces import BLOCK_MESSAGES

from ringcast.spark import contents
from ringcast.spark.audit import audit
from ringcast.trace.content import HASHED_EVERY
from ringcast.trace.rows import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_traces import Traces

    from ringcast.spark.report import Report, Verdict

LAST = HASHED_EVERY
"""The block that d had begun when it was killed: a, b and c have it, d does not."""


def judged(traces: Traces, directory: Path) -> Report:
    traces.write(directory)
    return audit(None, directory)


def content(report: Report) -> Verdict:
    return next(verdict for verdict in report.verdicts if verdict.id == "content")


def alter(traces: Traces, name: str, block: int, peer: str = "d") -> None:
    at = traces.find(name, event=BLOCK, peer=peer, stream=0, kind="delivered", block=block)
    traces.change(name, at, block_hash=traces.rows[name][at].block_hash ^ 1)


def test_survivors_with_different_bytes_of_a_killed_sender_are_found(
    traces: Traces, tmp_path: Path
) -> None:
    traces.find("a", event=BLOCK, peer="d", block=LAST)
    with pytest.raises(LookupError):
        traces.find("d", event=BLOCK, peer="d", kind="sent", block=LAST)
    assert content(judged(traces, tmp_path / "whole")).violation_count == 0
    alter(traces, "b", LAST)
    report = judged(traces, tmp_path / "altered")
    assert {verdict.id for verdict in report.verdicts if verdict.violation_count} == {"content"}
    (violation,) = content(report).violations
    assert violation.text == f"block {LAST} of d has other bytes at b than at a, c"
    assert {row.node for row in violation.rows} == {"a", "b", "c"}
    assert {row.seqno for row in violation.rows} == {1 + LAST * BLOCK_MESSAGES}
    assert report.exit_status == 1


def all_files_of_it_are_gone(traces: Traces) -> None:
    del traces.rows["d"]


def its_hashes_are_lost(traces: Traces) -> None:
    rows = [row for row in traces.rows["d"] if row.event != BLOCK or row.kind != "sent"]
    traces.lost["d"] = len(traces.rows["d"]) - len(rows)
    traces.rows["d"] = rows


@pytest.mark.parametrize("lose", [all_files_of_it_are_gone, its_hashes_are_lost])
@pytest.mark.parametrize("block", [0, LAST])
def test_whatever_the_sender_did_not_record_receivers_are_compared(
    traces: Traces, tmp_path: Path, lose: Callable[[Traces], None], block: int
) -> None:
    lose(traces)
    whole = content(judged(traces, tmp_path / "whole"))
    assert whole.violation_count == 0
    alter(traces, "c", block)
    (violation,) = content(judged(traces, tmp_path / "altered")).violations
    holders = "a, b, d" if block == 0 and "d" in traces.rows else "a, b"
    assert violation.text == f"block {block} of d has other bytes at c than at {holders}"


def test_so_are_the_receivers_of_a_live_sender_that_does_not_record(
    traces: Traces, tmp_path: Path
) -> None:
    del traces.rows["a"]
    alter(traces, "b", 0, peer="a")
    report = judged(traces, tmp_path)
    (violation,) = content(report).violations
    assert violation.text == "block 0 of a has other bytes at b than at c, d"


def test_a_member_alone_is_compared_with_nobody(traces: Traces, tmp_path: Path) -> None:
    for name in "ac":
        traces.drop(name, lambda row: row.event == BLOCK and row.peer == "d")
    before = content(judged(traces, tmp_path / "whole")).premises
    alter(traces, "b", LAST)
    altered = content(judged(traces, tmp_path / "altered"))
    assert (altered.violation_count, altered.premises) == (0, before)


def test_a_block_that_was_cut_short_is_another_block(traces: Traces, tmp_path: Path) -> None:
    """b stopped a message earlier: its last block is not that of the others."""
    at = traces.find("b", event=BLOCK, peer="d", stream=0, block=LAST)
    row = traces.rows["b"][at]
    traces.change("b", at, seqno2=row.seqno2 - 1, block_hash=7)
    assert content(judged(traces, tmp_path)).violation_count == 0


def test_one_member_with_two_contents_of_a_block_is_found(traces: Traces, tmp_path: Path) -> None:
    at = traces.find("b", event=BLOCK, peer="d", stream=0, block=LAST)
    traces.insert("b", at + 1, traces.rows["b"][at]._replace(block_hash=7))
    (violation,) = content(judged(traces, tmp_path)).violations
    assert violation.text == f"block {LAST} of d has other bytes at b than at a, b, c"


def test_blocks_that_are_not_known_one_by_one_are_read_again(
    traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a fast sender, of whose spans only the sum is kept."""
    monkeypatch.setattr(contents._Holder, "block", lambda *_: contents.NOT_ONE)
    its_hashes_are_lost(traces)
    at = traces.find("c", event=BLOCK, peer="d", stream=0, block=LAST)
    traces.drop("c", lambda row: row.idx == at)  # so that the sums differ
    assert content(judged(traces, tmp_path / "whole")).violation_count == 0
    alter(traces, "b", LAST)
    (violation,) = content(judged(traces, tmp_path / "altered")).violations
    assert violation.text == f"block {LAST} of d has other bytes at b than at a"
