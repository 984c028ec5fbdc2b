"""The smallest pipeline there can be, for tests of what all of them share: a topic into Parquet files, in small batches."""

from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Reporter
from tidelog.spark.pipelines.query_run import run_query

SUMMARY = "A topic into Parquet files."
EXAMPLE = "tidelog pipeline run sample --topic orders --table lake/orders"


@dataclass(frozen=True)
class SampleOptions:
    topic: str = field(metadata={"help": "What is read.", "metavar": "TOPIC"})
    table: str = field(metadata={"help": "Where the files go.", "metavar": "DIRECTORY"})
    bootstrap: str = "127.0.0.1:9092"
    kafka: tuple[str, ...] = ()
    rows_per_batch: int = field(default=50, metadata={"help": "How many at a time."})
    exit_code: int | None = None
    fail: bool = False

    def __post_init__(self) -> None:
        if not self.topic:
            raise InvalidArgument("--topic: expected the name of a topic")


OPTIONS = SampleOptions


def run(spark: SparkSession, options: SampleOptions, reporter: Reporter) -> PipelineOutcome:
    if options.fail:
        raise PipelineFailed("it was told to fail")
    reporter.step(f"reading {options.topic}")
    rows = spark.readStream.format("tidelog").options(
        bootstrap=options.bootstrap,
        subscribe=options.topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(options.rows_per_batch),
    )
    query = (
        rows.load()
        .writeStream.format("parquet")
        .option("path", options.table)
        .option("checkpointLocation", f"{options.table}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    end = run_query(query, reporter)
    figures: dict[str, int | float | str] = {"rows": end.rows, "batches": end.batches, "stopped": str(end.is_stopped)}
    return PipelineOutcome(f"{end.rows} rows read{', stopped early' if end.is_stopped else ''}", figures, options.exit_code or 0)
