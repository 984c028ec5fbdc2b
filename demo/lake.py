"""The pipelines of the demo, one after the other in one Spark session, and what their tables say afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it comes without types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from demo.orders import CURRENCIES
from demo.proof import Lake
from demo.story import Story
from tidelog.spark.pipelines import archive, audit, deadletters, metrics
from tidelog.spark.pipelines.failures import SparkGaveUp, error_behind
from tidelog.spark.pipelines.pipeline import PipelineOutcome
from tidelog.spark.spark_session import end_java, session
from tidelog.spark.tables.lake_table import LakeTable

SCHEMA = "id BIGINT NOT NULL, customer STRING NOT NULL, amount BIGINT NOT NULL, currency STRING NOT NULL, placed_at TIMESTAMP"


class Places(NamedTuple):
    directory: Path

    @property
    def orders(self) -> Path:
        return self.directory / "lake" / "orders"

    @property
    def metrics(self) -> Path:
        return self.directory / "lake" / "metrics"

    @property
    def dead_letters(self) -> Path:
        return self.directory / "lake" / "deadletters"

    @property
    def page(self) -> Path:
        return self.directory / "deadletters.html"

    @property
    def audit_report(self) -> Path:
        return self.directory / "audit.json"

    @property
    def spark_log(self) -> Path:
        return self.directory / "spark.log"


class Analysis:
    def __init__(self, bootstrap: str, topic: str, directory: Path, story: Story) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._places = Places(directory)
        self._story = story
        self._spark: SparkSession | None = None
        self._is_stopped = False

    def run(self) -> Lake:
        """A TidelogError when it cannot: Spark's own errors are one line as well."""
        story = self._story
        with self._typed_errors():
            with story.chapter("Spark, with no jar: pipelines between the broker's topics and Delta tables"):
                story.step("starting Spark")
                spark = self._start()
                story.say(f"Spark {spark.version} runs on this machine; on a cluster it is the same code")
            with story.chapter("archive: the topic to a Delta table, every message exactly once, its JSON as columns"):
                story.say(self._archive(spark).summary)
            with story.chapter("metrics: throughput, bytes, delay, hot keys and skew, minute by minute"):
                story.say(self._metrics(spark).summary)
            with story.chapter("deadletters: what failed and why, as a table and as a page"):
                story.say(self._dead_letters(spark).summary)
            with story.chapter("audit: the topic read a second way, by other code, and compared with the table"):
                audited = self._audit(spark)
                story.say(audited.summary)
                story.step("asking the tables")
                return self._ask(spark, audited)

    def stop(self) -> None:
        """From any thread: what still runs ends, and what has not begun does not begin."""
        self._is_stopped = True
        if self._spark is not None:
            self._spark.stop()
            end_java()

    def _start(self) -> SparkSession:
        self._spark = session(app_name="tidelog demo", log_file=self._places.spark_log)
        if self._is_stopped:
            self.stop()
            raise SparkGaveUp("stopped while Spark was starting")
        return self._spark

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError, SparkGaveUp) as error:
            behind = error_behind(error)
            raise SparkGaveUp(f"{behind} (Spark's log: {self._places.spark_log})") from error

    def _archive(self, spark: SparkSession) -> PipelineOutcome:
        options = archive.ArchiveOptions(
            topic=(self._topic,), table=str(self._places.orders), schema=SCHEMA, bootstrap=self._bootstrap
        )
        return archive.run(spark, options, self._story)

    def _metrics(self, spark: SparkSession) -> PipelineOutcome:
        options = metrics.MetricsOptions(
            topic=(self._topic,), table=str(self._places.metrics), event_time="placed_at", bootstrap=self._bootstrap
        )
        return metrics.run(spark, options, self._story)

    def _dead_letters(self, spark: SparkSession) -> PipelineOutcome:
        options = deadletters.DeadLettersOptions(
            table=str(self._places.dead_letters), page=str(self._places.page), bootstrap=self._bootstrap
        )
        return deadletters.run(spark, options, self._story)

    def _audit(self, spark: SparkSession) -> PipelineOutcome:
        options = audit.AuditOptions(
            table=str(self._places.orders), report=str(self._places.audit_report), bootstrap=self._bootstrap, whole=True
        )
        return audit.run(spark, options, self._story)

    def _ask(self, spark: SparkSession, audited: PipelineOutcome) -> Lake:
        """By SQL over the tables, not by what the runs said of themselves."""
        orders = LakeTable.open(self._places.orders, kind="archive").frame(spark)
        revenue = F.sum(F.when(~F.col("bad") & F.col("currency").isin(*CURRENCIES), F.col("amount")))
        row = orders.agg(F.count("*"), F.count_if("bad"), F.coalesce(revenue, F.lit(0))).collect()[0]
        letters = LakeTable.open(self._places.dead_letters, kind="deadletters").frame(spark).count()
        windows = LakeTable.open(self._places.metrics, kind="metrics").frame(spark)
        counted = windows.agg(F.coalesce(F.sum("messages"), F.lit(0))).collect()[0]
        return Lake(row[0], row[1], row[2], int(counted[0]), letters, audited.exit_code)
