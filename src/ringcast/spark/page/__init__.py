"""The report: one self-contained HTML page on a run that was audited."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ringcast.private import open_private
from ringcast.spark import metrics
from ringcast.spark.page.document import document
from ringcast.spark.page.figures import Figures, take_figures

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ringcast.spark.report import Report


def write_page(spark: SparkSession, report: Report, path: Path) -> None:
    """Write the page of the run that the report judges. It appears whole or not at all."""
    figures = Figures()
    if report.paths:
        rows = metrics.read_rows(spark, *report.paths).where(F.col("run_id") == report.run_id)
        figures = take_figures(rows, report.names)
    page = document(report, figures)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open_private(temporary) as file:
            file.write(page.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
