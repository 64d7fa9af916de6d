"""What is planted in clean simulations is found: by the rules in process and on Spark, alike.

All that Spark audits here are files. The rules of the simulator say the same of the same rows; so,
where members record for themselves, do summaries, and for some rules plain SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plants_group import GROUP_PLANTS
from plants_multicast import MULTICAST_PLANTS
from plants_unicast import UNICAST_PLANTS

from ringcast.rules.table import BY_PROTOCOL, ORDER, verdicts
from ringcast.rules.table import audit as audit_in_process
from ringcast.spark.audit import audit_all
from ringcast.spark.reading import WITNESS_ROWS_MAX
from ringcast.spark.report import (
    NEED_FULL,
    RECORDED,
    TITLES,
    UNDECIDABLE_IF_RECORDED,
    VIOLATIONS_SHOWN_MAX,
    verdict_id,
)
from ringcast.trace.segments import write_trace_segments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from planting import Plant
    from pyspark.sql import SparkSession

    from ringcast.rules.findings import Verdict as Folded
    from ringcast.spark.report import Report, Verdict
    from ringcast.trace.rows import Row

PLANTS = [*MULTICAST_PLANTS, *UNICAST_PLANTS, *GROUP_PLANTS]
SOME = ["G2", "G3", "N5", "N7", "N10", "N-L1", "S1", "S-L1", "Y1", "T3"]
SOME += ["VS1", "VS2", "VS3", "VS4", "VS6", "VS9"]
SHORT = [next(plant for plant in PLANTS if plant.id == id) for id in SOME]
NAMES = {"ok": "held", "inconclusive": "vacuous"}
"""What rules call what the audit says."""


def test_every_predicate_has_something_planted() -> None:
    ids = {rule.id for rules in BY_PROTOCOL.values() for rule in rules}
    ids -= {rule.id for rule in ORDER}  # those have nodes that are broken: tests/sim/test_sim_total
    assert {plant.id for plant in PLANTS} == ids
    assert len(PLANTS) >= 40


def test_all_that_is_planted_is_found_in_process() -> None:
    for plant in PLANTS:
        trace, rows = plant.grow()
        rules = (rule for rule in BY_PROTOCOL[trace.facts.protocol] if rule.id == plant.id)
        (found,) = verdicts(rules, trace.rows, trace.facts)
        check_witnesses(plant, found, rows)


def test_what_is_planted_is_found_in_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, SHORT)


@pytest.mark.proof
def test_all_that_is_planted_is_found_in_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    reports = check(spark, tmp_path, PLANTS)
    check_sql(spark, tmp_path, reports)


def check(spark: SparkSession, directory: Path, plants: Sequence[Plant]) -> dict[str, Report]:
    runs = list(dict.fromkeys(plant.run for plant in plants))
    grown = {plant.name: plant.grow() for plant in plants}
    traces = {run.name: run.trace() for run in runs} | {
        name: trace for name, (trace, _) in grown.items()
    }
    for name, trace in traces.items():
        write_trace_segments(directory / name, name, trace.rows, trace.facts)
    reports = {report.run_id: report for report in audit_all(spark, directory)}
    assert set(reports) == set(traces)
    for name, report in reports.items():
        folded = audit_in_process(traces[name])
        assert list(map(outline, report.verdicts)) == list(map(folded_outline, folded)), name
    for run in runs:
        assert reports[run.name].exit_status == 0, run.name
        assert sum(verdict.premises for verdict in reports[run.name].verdicts) > 100, run.name
    for plant in plants:
        report = reports[plant.name]
        found = next(each for each in report.verdicts if each.id == verdict_id(plant.id))
        check_witnesses(plant, found, grown[plant.name][1])
        assert report.exit_status == 1, plant.name
    return reports


def outline(verdict: Verdict) -> tuple[object, ...]:
    return (
        *(verdict.id, verdict.title, NAMES.get(verdict.status, verdict.status)),
        *(verdict.premises, verdict.violation_count, verdict.worst, verdict.undecidable),
        [(found.text, found.rows) for found in verdict.violations],
    )


def folded_outline(verdict: Folded) -> tuple[object, ...]:
    return (
        *(verdict_id(verdict.id), verdict.title, verdict.status),
        *(verdict.premises, verdict.violation_count, verdict.worst),
        [verdict.undecidable] if verdict.undecidable else [],
        [(text, list(rows)) for text, rows in verdict.violations[:VIOLATIONS_SHOWN_MAX]],
    )


def check_witnesses(plant: Plant, found: Verdict | Folded, rows: list[Row]) -> None:
    assert found.status == "violated", plant.name
    assert rows, plant.name
    shown = {place(row) for each in found.violations for row in each.rows}
    assert set(map(place, rows)) <= shown, plant.name
    assert all(0 < len(each.rows) <= WITNESS_ROWS_MAX for each in found.violations), plant.name


def place(row: Row) -> tuple[str, int, int]:
    """Of a run of deliveries, rules may show one row for several, from the first on."""
    return row.node, row.inc, row.idx


# Asked in plain SQL, row by row

SQL = {
    "G2 N2": """
        SELECT run_id FROM (
          SELECT *, explode(sequence(seqno, seqno2)) AS message FROM rows
          WHERE event IN ('deliver', 'unicast_deliver') AND seqno <= seqno2)
        GROUP BY run_id, node, inc, peer, peer_inc, stream, epoch, message HAVING count(*) > 1
    """,
    "G3": """
        SELECT crash.run_id FROM rows AS crash JOIN rows AS later
          ON crash.event = 'crash' AND later.run_id = crash.run_id
          AND later.node = crash.node AND later.inc = crash.inc AND later.idx > crash.idx
        WHERE later.event IN ('start', 'send', 'deliver', 'tx', 'view', 'open', 'purge',
                              'unicast_send', 'unicast_deliver', 'conn')
    """,
    "VS1": """
        SELECT run_id FROM (
          SELECT run_id, node, inc, members, view,
                 LAG(view) OVER (PARTITION BY run_id, node, inc ORDER BY idx) AS earlier
          FROM rows WHERE event = 'view')
        WHERE view <= earlier OR NOT array_contains(members, concat(node, '#', inc))
        UNION
        SELECT run_id FROM (
          SELECT run_id, view,
                 LAG(view) OVER (PARTITION BY run_id, node, inc ORDER BY idx) AS earlier
          FROM rows WHERE event = 'view_freeze')
        WHERE view < earlier
        UNION
        SELECT run_id FROM rows WHERE event = 'view'
        GROUP BY run_id, view_creator, view HAVING count(DISTINCT members) > 1
        UNION
        SELECT run_id FROM rows WHERE event = 'view'
        GROUP BY run_id, view_creator, view, part HAVING count(DISTINCT cut) > 1
        UNION
        SELECT one.run_id FROM rows AS one JOIN rows AS two
          ON one.event = 'view' AND two.event = 'view' AND one.run_id = two.run_id
          AND one.view = two.view AND one.view_creator = two.view_creator
          AND one.part <> two.part AND arrays_overlap(one.part, two.part)
    """,
    "N7": """
        SELECT run_id FROM (
          SELECT *, LAST(IF(event = 'view', members, NULL), TRUE) OVER
            (PARTITION BY run_id, node, inc ORDER BY idx) AS present
          FROM rows WHERE event IN ('view', 'ackmap'))
        WHERE event = 'ackmap' AND array_sort(members) <> array_sort(present)
    """,
    "N10": "SELECT run_id FROM rows WHERE event = 'xmit_mismatch'",
    "VS4": """
        WITH views AS (
               SELECT *, LEAD(part) OVER lives AS together FROM (
                 SELECT v.run_id, v.node, v.inc, v.idx, v.view, v.view_creator, v.part
                 FROM rows AS v JOIN rows AS s
                   ON v.event = 'view' AND s.event = 'shown' AND s.run_id = v.run_id
                   AND s.node = v.node AND s.inc = v.inc AND s.view = v.view
                   AND s.view_creator = v.view_creator)
               WINDOW lives AS (PARTITION BY run_id, node, inc ORDER BY idx)),
             sent AS (
               SELECT run_id, node AS peer, inc AS peer_inc, stream, view, view_creator,
                      MAX(seqno2) AS last
               FROM rows WHERE event = 'send' GROUP BY ALL),
             taken AS (
               SELECT run_id, node, inc, peer, peer_inc, stream, view, view_creator,
                      MAX(seqno2) AS through
               FROM rows WHERE event = 'deliver' GROUP BY ALL)
        SELECT DISTINCT views.run_id FROM views
          JOIN sent ON sent.run_id = views.run_id AND sent.view = views.view
            AND sent.view_creator = views.view_creator
            AND array_contains(together, concat(sent.peer, '#', sent.peer_inc))
          LEFT JOIN taken ON taken.run_id = views.run_id AND taken.node = views.node
            AND taken.inc = views.inc AND taken.peer = sent.peer
            AND taken.peer_inc = sent.peer_inc AND taken.stream = sent.stream
            AND taken.view = views.view AND taken.view_creator = views.view_creator
        WHERE COALESCE(through, 0) < sent.last
    """,
    "S1": """
        SELECT run_id FROM (
          SELECT run_id, seqno, COALESCE(LAG(seqno2) OVER
            (PARTITION BY run_id, node, inc, peer, peer_inc, epoch ORDER BY idx), 0) + 1 AS due
          FROM rows WHERE event = 'unicast_deliver')
        WHERE seqno <> due
    """,
}


def check_sql(spark: SparkSession, directory: Path, reports: dict[str, Report]) -> None:
    """The same runs are found wrong, by whoever knows nothing of rules."""
    files = spark.read.option("recursiveFileLookup", "true").parquet(str(directory))
    rows = files.coalesce(2).cache()
    rows.createOrReplaceTempView("rows")
    queries = [f"SELECT '{id}' AS id, run_id FROM ({query})" for id, query in SQL.items()]
    asked = {(row.id, row.run_id) for row in spark.sql(" UNION ALL ".join(queries)).collect()}
    rows.unpersist()
    judged = {
        (verdict.id, name): verdict.status
        for name, report in reports.items()
        for verdict in report.verdicts
        if verdict.id in SQL
    }
    violated = {key for key, status in judged.items() if status == "violated"}
    assert asked & set(judged) == violated
    assert {id for id, _ in violated} == set(SQL)


# The same rows as if members had recorded for themselves: judged from summaries

FROM_DIGESTS = {
    *("G1", "G2 N2", "N1", "N8", "VS1", "VS2", "VS3", "VS4", "VS5", "VS6", "VS7", "VS9"),
    *NEED_FULL,
}


def test_digests_say_the_same_as_folds(spark: SparkSession, tmp_path: Path) -> None:
    check_digests(spark, tmp_path, [each for each in SHORT if each.id in ("G2", "N7", "VS4")])


@pytest.mark.proof
def test_digests_say_the_same_as_folds_of_all_plants(spark: SparkSession, tmp_path: Path) -> None:
    check_digests(spark, tmp_path, [*MULTICAST_PLANTS, *GROUP_PLANTS])


def check_digests(spark: SparkSession, directory: Path, plants: Sequence[Plant]) -> None:
    """Of what is violated; of the rest they may know less, as nobody saw the whole run.

    How the group purges is in the footers that members write, and decides what VS5 compares."""
    traces = {plant.name: plant.grow()[0] for plant in plants}
    for name, trace in traces.items():
        trace.rows = [row._replace(run_idx=-1) for row in trace.rows if row.node]
        settings = {"purge": trace.facts.purge}
        write_trace_segments(directory / name, name, trace.rows, settings=settings)
    reports = audit_all(spark, directory)
    assert len(reports) == len(plants)
    for report in reports:
        folded = audit_in_process(traces[report.run_id])
        expected = {verdict_id(each.id) for each in folded if each.violation_count}
        found = {verdict.id for verdict in report.verdicts if verdict.violation_count}
        if "content" in found:
            found.add("G1")
        if "N3" in expected:  # rules do not see that what a sender left out was not sent
            found.discard("G1")
        in_both = FROM_DIGESTS & {verdict_id(each.id) for each in folded}
        assert found & in_both == expected & in_both, report.run_id
        known = {verdict.id: verdict for verdict in report.verdicts}
        assert {known[id].status for id in UNDECIDABLE_IF_RECORDED} == {"undecidable"}


def test_of_each_predicate_it_is_known_whether_recordings_show_it() -> None:
    assert set(RECORDED).isdisjoint(UNDECIDABLE_IF_RECORDED)
    assert {*RECORDED, *UNDECIDABLE_IF_RECORDED} == set(TITLES)
