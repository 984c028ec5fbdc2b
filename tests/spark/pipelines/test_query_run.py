"""What the progress of a query tells, report by report; and a run that fails. Stopping is tried in test_command_line.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidelog.client.errors import InvalidArgument
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.pipelines.query_run import QueryProgress, run_query


def offsets(first: int, second: int, **more: Any) -> str:
    topics = {"t": {"id": "vfHhHglJpXuYvX42IsJ8rA", "offsets": {"0": first, "1": second}}}
    return json.dumps({"tidelog": 1, "topics": topics, **more})


def report(batch: int, start: str | None, end: str, rows: int, *, second: int | None = None) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": end, "latestOffset": offsets(100, 150), "numInputRows": rows}
    return {"batchId": batch, "timestamp": f"2026-01-01T00:00:{batch if second is None else second:02}Z", "sources": [source]}


FIRST = report(0, None, offsets(30, 60, begins={"t": {"0": 10, "1": 50}}), 29)


def test_offsets_are_counted_from_where_the_run_began() -> None:
    seen = QueryProgress()
    assert seen.add(FIRST)
    assert (seen.done, seen.total) == (30, 190)
    seen.add(report(1, offsets(30, 60), offsets(100, 150), 160))
    assert (seen.done, seen.total, seen.rows, seen.batches) == (190, 190, 189, 2)
    assert seen.positions == {TopicPartition("t", 0): 100, TopicPartition("t", 1): 150}


def test_a_report_counts_once() -> None:
    seen = QueryProgress()
    assert [seen.add(FIRST), seen.add(FIRST)] == [True, False]
    assert (seen.rows, seen.batches) == (29, 1)


def test_a_trigger_that_found_nothing_is_no_batch() -> None:
    seen = QueryProgress()
    seen.add(FIRST)
    seen.add(report(1, offsets(30, 60), offsets(30, 60), 0, second=9))
    assert (seen.rows, seen.batches, seen.done) == (29, 1, 30)


def test_a_resumed_run_counts_from_its_checkpoint() -> None:
    seen = QueryProgress()
    seen.add(report(7, offsets(90, 150), offsets(100, 150), 10))
    assert (seen.done, seen.total) == (10, 10)


def test_other_sources_have_rows_and_no_offsets() -> None:
    seen = QueryProgress()
    source = {"startOffset": None, "endOffset": "17", "latestOffset": None, "numInputRows": 5}
    seen.add({"batchId": 0, "timestamp": "2026", "sources": [source]})
    assert (seen.rows, seen.done, seen.total) == (5, 0, None)


def test_failed_query_raises_the_error_behind_it(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    rows = spark.range(3)
    rows.write.parquet(str(tmp_path / "in"))

    def refuse(_rows: DataFrame, _batch: int) -> None:
        raise InvalidArgument("--topic: no good")

    query = (
        spark.readStream.schema(rows.schema)
        .parquet(str(tmp_path / "in"))
        .writeStream.foreachBatch(refuse)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(InvalidArgument, match=r"^--topic: no good$"):
        run_query(query, Silent())
