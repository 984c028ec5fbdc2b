"""A driver of ``enrich`` with sessions in a process of its own, to be killed.

Arguments: bootstrap servers, topic, table, output, checkpoint, temporary directory.
"""

import sys

from tests.spark.conftest import config_in
from tests.spark.pipelines.archive.orders import SCHEMA
from tidelog.spark.pipelines.enrich import EnrichOptions, run
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session


def main() -> None:
    bootstrap, topic, table, output, checkpoint, local = sys.argv[1:]
    spark = session(app_name="driver", master="local[2]", config=config_in(local))
    options = EnrichOptions(
        topic=topic,
        schema=SCHEMA,
        on="customer",
        table=table,
        output=output,
        checkpoint=checkpoint,
        bootstrap=bootstrap,
        gap="10m",
        watermark="0s",
        sum=("amount",),
        # Many batches: it is killed in one of the first.
        batch_rows=4,
    )
    run(spark, options, Silent())


if __name__ == "__main__":
    main()
