"""Spark's reports of progress, as Prometheus reads them."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from prometheus_client.parser import text_string_to_metric_families

from tidelog.client.topic_partition import TopicPartition
from tidelog.spark import progress_listener
from tidelog.spark.checkpoint_offsets import StreamOffset
from tidelog.spark.progress_listener import OBSERVED_ROWS, ProgressListener, ProgressMetrics


def offset(*ends: int) -> str:
    return json.dumps(
        StreamOffset({"a": b"1" * 16}, {TopicPartition("a", number): end for number, end in enumerate(ends)}).to_json()
    )


def report(
    query: str = "q1", *, rows: int = 10, ends: tuple[int, ...] = (5, 7), latest: tuple[int, ...] = (5, 9)
) -> dict[str, Any]:
    return {
        "id": query,
        "name": "orders",
        "processedRowsPerSecond": 12.5,
        "durationMs": {"addBatch": 250, "triggerExecution": 400},
        "sources": [
            {"numInputRows": rows, "endOffset": offset(*ends), "latestOffset": offset(*latest)},
            {"numInputRows": 1, "endOffset": {"path": "of another source"}, "latestOffset": None},
        ],
    }


def samples(metrics: ProgressMetrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_what_is_reported_is_rendered() -> None:
    metrics = ProgressMetrics(clock=lambda: 1000.5)
    metrics.record(report())
    metrics.record(report(rows=30, ends=(8, 9), latest=(20, 9)))
    found = samples(metrics)
    assert found["tidelog_spark_batches_total", "q1", "orders"] == 2
    assert found["tidelog_spark_input_rows_total", "q1", "orders"] == 42
    assert found["tidelog_spark_processed_rows_per_second", "q1", "orders"] == 12.5
    assert found["tidelog_spark_last_progress_seconds", "q1", "orders"] == 1000.5
    assert found["tidelog_spark_batch_duration_seconds", "q1", "orders", "addBatch"] == 0.25
    assert found["tidelog_spark_end_offset", "q1", "orders", "a", "0"] == 8
    assert found["tidelog_spark_lag", "q1", "orders", "a", "0"] == 12
    assert found["tidelog_spark_lag", "q1", "orders", "a", "1"] == 0


def test_rows_that_tasks_read_count_where_spark_sees_only_what_they_wrote() -> None:
    metrics = ProgressMetrics()
    for rows in (1000, 200):
        metrics.record({**report(rows=4), "observedMetrics": {OBSERVED_ROWS: {"rows": rows}, "of a user": {"rows": 7}}})
    found = samples(metrics)
    assert found["tidelog_spark_input_rows_total", "q1", "orders"] == 1200
    assert found["tidelog_spark_processed_rows_per_second", "q1", "orders"] == 200 / 0.4


def test_a_query_that_has_ended_is_counted_and_left_out() -> None:
    metrics = ProgressMetrics()
    metrics.record(report("q1"))
    metrics.record(report("q2"))
    metrics.ended("q1", failed=True)
    metrics.ended("unknown", failed=False)
    found = samples(metrics)
    assert ("tidelog_spark_batches_total", "q1", "orders") not in found
    assert found["tidelog_spark_batches_total", "q2", "orders"] == 1
    assert found["tidelog_spark_queries_ended_total", "failed"] == 1
    assert found["tidelog_spark_queries_ended_total", "stopped"] == 1


def test_a_file_keeps_the_last_figures_of_a_query_that_has_ended(tmp_path: Path) -> None:
    """A job that runs every hour is over before anybody reads them, and its next run counts on."""
    listener = ProgressListener(tmp_path / "spark.prom")
    for batches in (1, 2):
        listener.onQueryProgress(MagicMock(progress=MagicMock(json=json.dumps(report("q1")))))
        listener.onQueryTerminated(MagicMock(id="q1", exception=None))
        families = text_string_to_metric_families((tmp_path / "spark.prom").read_text())
        found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
        assert found["tidelog_spark_batches_total", "q1", "orders"] == batches
        assert found["tidelog_spark_lag", "q1", "orders", "a", "1"] == 2
        assert found["tidelog_spark_queries_ended_total", "stopped"] == batches


def test_the_number_of_queries_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(progress_listener, "QUERIES_MAX", 2)
    metrics = ProgressMetrics()
    for query in ("q1", "q2", "q1", "q3"):
        metrics.record(report(query))
    found = samples(metrics)
    assert [query for query in ("q1", "q2", "q3") if ("tidelog_spark_batches_total", query, "orders") in found] == ["q1", "q3"]
