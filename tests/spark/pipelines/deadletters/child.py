"""A driver in a process of its own that kills itself, with its Java, at a planned point of the deadletters pipeline.

Arguments: the point ("before" the commit, or "after" it), bootstrap servers, dead-letter topic, table, page, temporary directory.
"""

import os
import signal
import sys
from typing import Any

from tests.spark.conftest import config_in
from tidelog.spark.pipelines.deadletters import pipeline as deadletters
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.spark_session import session
from tidelog.spark.tables import table_sink

# Of this program; the processes that Spark starts for Python have groups of their own, and take the number along.
DRIVER = os.getpgrp()


def die(*_arguments: Any, **_named: Any) -> Any:
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    point, bootstrap, topic, table, page, local = sys.argv[1:]
    spark = session(app_name="child", master="local[2]", config=config_in(local))
    if point == "after":
        deadletters.report_of = die
    else:
        # The sink's commit runs in a process that Spark starts, which takes the class along by value when it is of this program.
        table_sink.PositionedSink = KillingSink  # type: ignore[misc]  # in the place of the real one
    options = deadletters.DeadLettersOptions(table=table, page=page, topic=(topic,), bootstrap=bootstrap)
    deadletters.run(spark, options, Silent())


class KillingWriter(table_sink.PositionedWriter):
    def commit(self, _messages: Any) -> None:
        os.killpg(DRIVER, signal.SIGKILL)


class KillingSink(table_sink.PositionedSink):
    def writer(self, schema: Any, overwrite: bool) -> KillingWriter:
        return KillingWriter({name.lower(): value for name, value in dict(self.options).items()})


if __name__ == "__main__":
    main()
