"""A driver in a process of its own, to be killed: reads a topic into Parquet files until it is told otherwise.

Arguments: bootstrap servers, topic, where the files go, checkpoint, temporary directory.
"""

import sys

from tests.spark.conftest import config_in
from tests.spark.reading import Source, start
from tidelog.spark.spark_session import session


def main() -> None:
    bootstrap, topic, output, checkpoint, local = sys.argv[1:]
    spark = session(app_name="driver", master="local[2]", config=config_in(local))
    source = Source(spark, bootstrap, topic)
    start(source.stream(maxOffsetsPerTrigger="100"), output, checkpoint).awaitTermination()


if __name__ == "__main__":
    main()
