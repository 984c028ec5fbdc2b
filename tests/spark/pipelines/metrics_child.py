"""A driver in a process of its own that kills itself, with its Java, between the table and the metrics topic, or after both.

Arguments: the point ("between" or "after"), then what ``options`` takes, then a temporary directory.
"""

import os
import signal
import sys
from collections.abc import Mapping

from pyspark.sql import DataFrame

from tests.spark.conftest import config_in
from tidelog.spark.pipelines import metrics
from tidelog.spark.pipelines.metrics import MetricsOptions
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session


def options(bootstrap: str, topic: str, table: str, metrics_topic: str) -> MetricsOptions:
    return MetricsOptions(
        topic=(topic,), table=table, metrics_topic=metrics_topic, bootstrap=bootstrap, event_time="at", window_seconds=10,
        watermark_seconds=0,
    )  # fmt: skip


def main() -> None:
    point, bootstrap, topic, table, metrics_topic, local = sys.argv[1:]
    spark = session(app_name="child", master="local[2]", config=config_in(local))
    write_topic = metrics.write_topic

    def write_and_die(found: DataFrame, sink: Mapping[str, str], write_id: str) -> None:
        if point == "after":
            write_topic(found, sink, write_id)
        os.killpg(0, signal.SIGKILL)

    metrics.write_topic = write_and_die
    metrics.run(spark, options(bootstrap, topic, table, metrics_topic), Silent())


if __name__ == "__main__":
    main()
