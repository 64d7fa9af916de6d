"""What is planted in messages to one member, and in blocked sends, is found in what members record
at level "full", as it is found in simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plants_group import GROUP_PLANTS
from plants_multicast import MULTICAST_PLANTS
from plants_unicast import UNICAST_PLANTS

from ringcast.spark.audit import audit
from ringcast.spark.fleet_audit import write_as_recorded
from ringcast.spark.report import OF_PAIRS, RECORDED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OF_A_MOMENT = "release_before_it_is_delivered"
"""It is delivered later, and nothing orders the rows of two members."""
JUDGED = {"N3", "N-L3", "N-L5", "T2", *OF_PAIRS}


def test_what_is_planted_is_found_in_what_members_recorded(tmp_path: Path) -> None:
    assert not JUDGED.difference(RECORDED)
    plants = [
        plant
        for plant in (*UNICAST_PLANTS, *MULTICAST_PLANTS, *GROUP_PLANTS)
        if plant.id in JUDGED and plant.change.__name__ != OF_A_MOMENT
    ]
    assert {plant.id for plant in plants} == JUDGED
    missed = []
    for at, plant in enumerate(plants):
        trace, _ = plant.grow()
        write_as_recorded(tmp_path / str(at), trace, 0, is_full=True)
        found = {verdict.id: verdict for verdict in audit(None, tmp_path / str(at)).verdicts}
        if not found[plant.id].violation_count or not found[plant.id].violations[0].rows:
            missed.append(plant.name)
    assert missed == []


def test_spark_says_of_pairs_what_is_said_in_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    plant = next(plant for plant in UNICAST_PLANTS if plant.id == "Y-L2")
    write_as_recorded(tmp_path, plant.grow()[0], 0, is_full=True)
    report = audit(spark, tmp_path)
    assert report.to_json() == audit(None, tmp_path).to_json()
    assert report.exit_status == 1


def test_without_a_plant_nothing_is_found(tmp_path: Path) -> None:
    runs = {plant.run: None for plant in UNICAST_PLANTS}
    for run in runs:
        write_as_recorded(tmp_path / run.name, run.trace(), 0, is_full=True)
        report = audit(None, tmp_path / run.name)
        alarms = [verdict for verdict in report.verdicts if verdict.violation_count]
        assert alarms == [], run.name
