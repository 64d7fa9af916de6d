"""A Spark job on a group's messages: `python revenue.py ARCHIVE OUT`.

The members of a shop send orders as JSON, `{"item": "tea", "cents": 420}`, and `ringcast archive
shop ARCHIVE` keeps them. This adds up what has come since it ran last, each order once, and prints
the revenue by item. Run it as often as you like, and kill it whenever you like.
"""

import sys
from pathlib import Path

from ringcast.spark import register
from ringcast.spark.session import session

ORDER = "from_json(CAST(payload AS STRING), 'item STRING, cents BIGINT') AS sold"


def main(archive: str, out: str) -> None:
    spark = session("revenue")
    register(spark)
    orders = spark.readStream.format("ringcast").option("query", "revenue").load(archive)
    query = (
        orders.selectExpr("sender", "seqno", ORDER)
        .selectExpr("sender", "seqno", "sold.*")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(Path(out, "checkpoint")))
        .trigger(availableNow=True)
        .start(str(Path(out, "orders")))
    )
    query.awaitTermination()
    spark.read.parquet(str(Path(out, "orders"))).createOrReplaceTempView("orders")
    found = spark.sql(
        "SELECT item, count(*) AS orders, sum(cents) / 100 AS revenue "
        "FROM orders WHERE item IS NOT NULL GROUP BY item ORDER BY revenue DESC"
    )
    for row in found.collect():
        print(f"{row.item}: {row.orders} order{'s' * (row.orders != 1)}, {row.revenue:.2f}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
