"""What people read: names, sentences, the table and its colours."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ringcast.cli.audit import print_report, print_reports
from ringcast.spark.report import HALVES, RECORDED, TITLES, Names, Reach, Report, Verdict, Violation
from ringcast.trace.rows import Row

ALL = len(TITLES)


def report_of(*changed: Verdict, names: Names | None = None) -> Report:
    """A report in which all else is ok."""
    by_id = {verdict.id: verdict for verdict in changed}
    verdicts = [by_id.get(name, Verdict(name, premises=7)) for name in TITLES]
    return Report("run", 2, 3, 40, verdicts, [], names or Names([]))


def printed(report: Report, *, color: bool = False) -> list[str]:
    command = click.command()(lambda: print_report(report))
    return CliRunner().invoke(command, color=color).output.splitlines()


def test_a_name_that_two_incarnations_share_is_told_apart() -> None:
    names = Names([("a", 1), ("b", 2), ("a", 3), ("b", 2)])
    assert [names.of(("a", 1)), names.of(("b", 2))] == ["a#1", "b"]
    assert [names.of_key("a#3"), names.of_key("b#2")] == ["a#3", "b"]
    assert [names.of_origin(("b", 2, stream)) for stream in (0, 1, 9)] == [
        *("b", "b (uniform)", "b (stream 9)")
    ]


@pytest.mark.parametrize(
    ("changed", "sentence", "status"),
    [
        ([], f"All {ALL} guarantees were judged and held.", 0),
        (
            [Verdict("N5", undecidable=["needs the order"])],
            f"{ALL - 1} of {ALL} guarantees were judged and held.",
            0,
        ),
        (
            [
                Verdict("N3", premises=3, unjudged="that sends were blocked is not recorded"),
                Verdict("N6", inconclusive=["needs more"], is_beyond_level=True),
            ],
            f"{ALL - 1} of {ALL} guarantees were judged and held, 1 of them in part; "
            "frames and windows were not recorded.",
            0,
        ),
        (
            [Verdict("G1", unknown={"m2"})],
            f"All {ALL} guarantees were judged and held; the end of m2's trace is unknown because "
            "it was killed.",
            0,
        ),
        (
            [Verdict("G1", unknown={"m2", "m0"}), Verdict("content", unknown={"m1"})],
            f"All {ALL} guarantees were judged and held; the traces of m0, m1 and m2 have unknown "
            "ends because they were killed.",
            0,
        ),
        ([Verdict("VS1", violation_count=2)], "1 guarantee violated.", 1),
        (
            [Verdict("VS1", violation_count=1), Verdict("N1", violation_count=1)],
            "2 guarantees violated.",
            1,
        ),
        (
            [Verdict("G1", incomplete=["a file is gone"], unknown={"m2"})],
            "No violation was found, but rows are missing from the traces: "
            f"{ALL - 1} of {ALL} guarantees were judged and held.",
            3,
        ),
        (
            [Verdict("VS1", inconclusive=["nothing to judge"])],
            "No violation was found, but not everything could be judged: "
            f"{ALL - 1} of {ALL} guarantees were judged and held.",
            3,
        ),
    ],
)
def test_one_sentence_says_it_all(changed: list[Verdict], sentence: str, status: int) -> None:
    report = report_of(*changed)
    assert report.summary == sentence
    assert report.exit_status == status
    assert printed(report)[-1] == sentence


def test_an_unknown_tail_says_whose() -> None:
    assert Verdict("G1", unknown={"b"}).detail == "ok as far as b's trace goes (killed)"
    two = Verdict("G1", unknown={"b", "a"})
    assert (two.status, two.detail) == (
        *("unknown tail", "ok as far as the traces of a and b go (killed)"),
    )


def test_columns_are_aligned_and_statuses_have_their_colour() -> None:
    report = report_of(
        Verdict("N1", premises=123456, violation_count=1), Verdict("G1", unknown={"b"})
    )
    _, header, *plain = printed(report)[: 2 + len(TITLES)]
    at, checks = header.index("verdict"), header.index("checks") + len("checks")
    for line, verdict in zip(plain, report.verdicts, strict=True):
        assert line[at:].startswith(f"{verdict.status} ")
        assert line[:checks].endswith(f" {verdict.premises}")
        assert line[checks:].startswith(f"  {verdict.title}")
    coloured = printed(report, color=True)[2 : 2 + len(TITLES)]
    assert [click.unstyle(line) for line in coloured] == plain
    codes = [line.split("\x1b[")[1][:2] for line in coloured]
    odd = {"G1": "33", "N1": "31"}  # yellow and red; the others are green
    assert codes == [odd.get(verdict.id, "32") for verdict in report.verdicts]


def test_what_cannot_be_judged_is_noted_by_its_reason_and_is_no_failure() -> None:
    report = report_of(
        Verdict("N5", undecidable=["needs the order"]),
        Verdict("U3", undecidable=["needs the order"]),
        Verdict("N6", inconclusive=["needs more"], is_beyond_level=True),
        Verdict("N11", inconclusive=["there was nothing to judge"], is_optional=True),
    )
    lines = printed(report)
    assert [line for line in lines if line.startswith("note: ")] == [
        "note: not judged: N5, U3: needs the order",
        "note: not judged: N6: needs more",
        "note: not judged: N11: there was nothing to judge",
    ]
    assert not any(line.startswith("N5 ") for line in lines)
    assert report.exit_status == 0
    assert Verdict("N5", undecidable=["needs the order"]).status == "undecidable"


def test_a_part_that_cannot_be_judged_hides_no_violation() -> None:
    report = report_of(Verdict("N5", undecidable=["needs the order"], violation_count=1))
    assert report.exit_status == 1
    torn = report_of(Verdict("N5", undecidable=["needs the order"], incomplete=["a file is gone"]))
    assert torn.exit_status == 3


def test_an_ok_of_half_a_rule_says_which_half() -> None:
    verdict = Verdict("G3", premises=3, unjudged=HALVES["G3"])
    assert (verdict.status, verdict.title, verdict.detail) == (
        "ok",
        "nothing comes from a member after its stop",
        "a member that is killed writes nothing down any more",
    )
    assert set(HALVES) <= set(RECORDED)
    assert Verdict("G3", unjudged=HALVES["G3"]).detail == ""  # nothing was judged of it at all


def test_the_least_share_of_a_senders_messages_is_shown() -> None:
    whole = Verdict("N5", premises=3, reaches=[])
    assert (
        whole.detail == "each member delivered 100 % of what each sent while both were in the view"
    )
    some = Verdict("N5", premises=3, reaches=[Reach("c", "a", 1, 3), Reach("b", "a", 2, 3)])
    assert some.detail == (
        "c delivered 33 % of what a sent while both were in the view; "
        "2 pairs of members have less than all"
    )
    assert '"reach": [\n        {\n          "receiver": "c"' in report_of(some).to_json()


def test_whom_a_verdict_is_not_of_is_told() -> None:
    verdict = Verdict("N1", premises=3, without=["c: in a view, but has no file"])
    assert verdict.status == "ok"
    assert (
        verdict.detail == "not judged of those who did not record (c: in a view, but has no file)"
    )


def test_the_longest_wait_is_told() -> None:
    verdict = Verdict("N-L1", premises=3, worst=0.256)
    assert verdict.detail == "the longest wait took 0.26 of its bound"


def test_rows_of_a_simulation_stand_on_its_time_line() -> None:
    rows = [
        Row("deliver", "b", 1, 7, 12, 2_000_000, peer="a", peer_inc=1, stream=0, seqno=4, seqno2=5),
        Row("send", "a", 1, 3, 9, 1_500_000, stream=0, seqno=4, seqno2=5, low=0, hr=3, cap=8),
    ]
    lines = printed(
        report_of(Verdict("N1", violations=[Violation("late", rows)], violation_count=1))
    )
    at = lines.index("N1: late")
    assert lines[at + 1].split() == [">", "1.500", "a#1", "send", "4..5", "window", "(0,", "8]"]
    assert lines[at + 2].split() == [">", "2.000", "b#1", "deliver", "a#1:4..5"]


def test_many_runs_have_a_line_each_and_those_that_fail_their_table() -> None:
    good, bad = report_of(), report_of(Verdict("N1", violation_count=1, premises=2))
    bad.run_id = "seed-7"
    command = click.command()(lambda: print_reports([good, bad]))
    lines = CliRunner().invoke(command).output.splitlines()
    assert lines[0].startswith("run seed-7: ")
    assert lines[-2:] == [
        f"run: All {ALL} guarantees were judged and held.",
        "seed-7: 1 guarantee violated.",
    ]
    assert sum(line.startswith("run ") for line in lines) == 1


def test_names_from_traces_cannot_steer_the_terminal() -> None:
    row = Row("deliver", "a\x1b[2J", 1, 5, peer="b\n", peer_inc=2, stream=0, seqno=3, seqno2=4)
    evil = Verdict("N1", violations=[Violation("\x1b]0;x\a", [row])], violation_count=1)
    lines = printed(report_of(evil))
    assert "N1: \\x1b]0;x\\x07" in lines
    assert "    a\\x1b[2J row 5: deliver b\\n 3..4" in lines
    assert "\x1b" not in "".join(lines)


def test_a_remark_on_several_guarantees_is_said_once() -> None:
    killed, alone = {"b"}, "that sends were blocked is not recorded"
    report = report_of(
        Verdict("G1", premises=3, unknown=killed),
        Verdict("N1", premises=3, unknown=killed),
        Verdict("N3", premises=3, unjudged=alone),
    )
    lines = printed(report)
    remark = "ok as far as b's trace goes (killed)"
    assert [line for line in lines if remark in line] == [f"G1, N1: {remark}"]
    assert [line for line in lines if line.endswith(f"each send takes the next number: {alone}")]
