"""The examples of docs/howto/archive.md, run one after the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringcast.trace.footer import Recording
from ringcast.trace.retention import queries
from ringcast.trace.rows import DELIVER, Row
from ringcast.trace.segments import SegmentWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "archive.md"
ORDERS = [("tea", 250), ("tea", 250), ("cake", 400)]


@pytest.mark.proof
def test_the_examples_of_the_page_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path / "archive")
    # Where Spark looks for relative paths was settled when its session began.
    text = re.sub(r"""(["'])(archive/|revenue/)""", rf"\1{tmp_path}/\2", PAGE.read_text())
    reading, ordering, items, minutes, decoding, streaming, lagging, elsewhere = re.findall(
        r"```python\n(.*?)```", text, re.S
    )
    (sql,) = re.findall(r"```sql\n(.*?)```", text, re.S)
    names: dict[str, Any] = {}
    exec(reading, names)
    assert names["spark"] is spark
    exec(ordering, names)
    assert names["ordered"].count() == 0
    exec(items, names)
    assert re.search(r"\|\s*tea\|\s*2\|\s*5(\.0+)?\|", capsys.readouterr().out)
    exec(minutes, names)
    assert re.search(r"\|\s*web-1\|[^|]*\|\s*2\|", capsys.readouterr().out)
    for statement in sql.split(";"):
        spark.sql(statement)
    assert spark.table("sent").count() == spark.table("senders").count() == 3
    assert spark.table("senders").columns == ["sender", "seqno"]
    spark.sql("DROP TABLE sent")
    spark.catalog.dropTempView("senders")
    exec(decoding, names)
    assert re.search(r"\|\s*tea\|\s*500\|", capsys.readouterr().out)
    exec(streaming, names)
    exec(lagging, names)
    assert capsys.readouterr().out == "{}\n"
    compile(elsewhere, PAGE.name, "exec")
    table = spark.read.parquet(str(tmp_path / "revenue" / "table"))
    assert [row["sum(cents)"] for row in table.collect()] == [500]  # the second minute is not over
    assert [query.name for query in queries(tmp_path / "archive")] == ["revenue"]


def write_orders(directory: Path) -> None:
    directory.mkdir()
    payloads = [json.dumps({"item": item, "cents": cents}).encode() for item, cents in ORDERS]
    segment = SegmentWriter(directory, Recording(run_id="t", node="a", inc=1, payloads=True))
    rows = [
        Row(DELIVER, "a", 1, 0, -1, 0, "web-1", 7, 0, 1, 2, 1),
        Row(DELIVER, "a", 1, 1, -1, 600 * 10**9, "web-1", 7, 0, 3, 3, 1),
    ]
    segment.add(rows, 10**18, [payloads[:2], payloads[2:]])
    segment.finish()
