"""The progress of streaming queries as metrics in Prometheus' text format.

    listener = ProgressListener()
    spark.streams.addListener(listener)
    listener.render()            # serve it with your other metrics, or
    ProgressListener(path)       # write it to a file after every batch, for node_exporter's textfile collector

For each query: batches, rows, rows per second, the duration of a batch by its parts, and when progress was last reported. For
each partition of our source: the end of the last batch, and the lag behind what was there when that batch was planned.

A query that has ended is counted, and without a file left out. A file keeps its last figures, because a job with the trigger
availableNow is over before anybody reads the file.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidelog.client.errors import TidelogError
from tidelog.client.topic_partition import TopicPartition
from tidelog.metrics.exposition import render
from tidelog.metrics.registry import Description, Family, Kind, Labels
from tidelog.spark.checkpoint_offsets import StreamOffset

# A process that starts queries without end must not grow without end: the query that was silent for longest is forgotten.
QUERIES_MAX = 1_000

OBSERVED_ROWS = "tidelog_rows"
"""The name of a query's observed metric that has its ``rows``, where the rows of its source are not those of the topic."""

_PARTITION = ("query", "name", "topic", "partition")
_QUERY_METRICS: tuple[tuple[str, Kind, str, Callable[["_Progress"], float]], ...] = (
    ("batches_total", Kind.COUNTER, "Micro-batches that were run.", lambda query: query.batches),
    ("input_rows_total", Kind.COUNTER, "Rows that were read.", lambda query: query.rows),
    ("processed_rows_per_second", Kind.GAUGE, "In the last batch.", lambda query: query.rows_per_second),
    ("last_progress_seconds", Kind.GAUGE, "When progress was last reported, since 1970.", lambda query: query.seconds),
)


class _Progress(NamedTuple):
    name: str
    batches: int
    rows: int
    rows_per_second: float
    parts_ms: Mapping[str, float]
    seconds: float
    ends: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


def rows_read(progress: Mapping[str, Any]) -> int:
    """The rows of one report. For a source whose tasks hand over what they wrote, those that the tasks read."""
    observed = (progress.get("observedMetrics") or {}).get(OBSERVED_ROWS)
    if observed is not None:
        return int(observed["rows"] or 0)
    return sum(int(source.get("numInputRows") or 0) for source in progress.get("sources") or ())


def _rows_per_second(progress: Mapping[str, Any]) -> float:
    milliseconds = (progress.get("durationMs") or {}).get("triggerExecution")
    if OBSERVED_ROWS in (progress.get("observedMetrics") or {}) and milliseconds:
        return rows_read(progress) * 1000 / float(milliseconds)
    return float(progress.get("processedRowsPerSecond") or 0.0)


class ProgressMetrics:
    """One thread records; any thread may render."""

    def __init__(self, *, keeps_ended: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._keeps_ended = keeps_ended
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, _Progress] = {}
        self._ended = {"stopped": 0, "failed": 0}

    def record(self, progress: Mapping[str, Any]) -> None:
        sources = progress.get("sources") or ()
        offsets = [(_positions(source.get("endOffset")), _positions(source.get("latestOffset"))) for source in sources]
        query_id = str(progress["id"])
        with self._lock:
            before = self._queries.pop(query_id, None)
            if len(self._queries) >= QUERIES_MAX:
                del self._queries[next(iter(self._queries))]
            self._queries[query_id] = _Progress(
                name=str(progress.get("name") or ""),
                batches=(before.batches if before else 0) + 1,
                rows=(before.rows if before else 0) + rows_read(progress),
                rows_per_second=_rows_per_second(progress),
                parts_ms=dict(progress.get("durationMs") or {}),
                seconds=self._clock(),
                ends={partition: offset for ends, _ in offsets for partition, offset in ends.items()},
                latest={partition: offset for _, latest in offsets for partition, offset in latest.items()},
            )

    def ended(self, query_id: str, *, failed: bool) -> None:
        with self._lock:
            self._ended["failed" if failed else "stopped"] += 1
            if not self._keeps_ended:
                self._queries.pop(query_id, None)

    def render(self) -> bytes:
        with self._lock:
            queries, ended = dict(self._queries), dict(self._ended)
        return render(_families(queries, ended), lambda: None)


def _positions(written: object) -> Mapping[TopicPartition, int]:
    """The positions; empty for a source that is not ours."""
    try:
        return StreamOffset.from_json(json.loads(written) if isinstance(written, str) else written).positions
    except (TidelogError, ValueError):
        return {}


def _families(queries: Mapping[str, _Progress], ended: Mapping[str, int]) -> Iterator[Family]:
    for name, kind, text, value in _QUERY_METRICS:
        series = [((query_id, query.name), float(value(query))) for query_id, query in queries.items()]
        yield _family(name, kind, text, ("query", "name"), series)
    parts = [
        ((query_id, query.name, part), milliseconds / 1000)
        for query_id, query in queries.items()
        for part, milliseconds in query.parts_ms.items()
    ]
    yield _family("batch_duration_seconds", Kind.GAUGE, "Of the last batch, by its parts.", ("query", "name", "part"), parts)
    ends = [
        ((query_id, query.name, partition.topic, str(partition.partition)), float(offset))
        for query_id, query in queries.items()
        for partition, offset in query.ends.items()
    ]
    yield _family("end_offset", Kind.GAUGE, "Where the last batch ended.", _PARTITION, ends)
    lags = [
        ((query_id, query.name, partition.topic, str(partition.partition)), float(max(0, offset - query.ends[partition])))
        for query_id, query in queries.items()
        for partition, offset in query.latest.items()
        if partition in query.ends
    ]
    yield _family("lag", Kind.GAUGE, "Offsets that were there and not in the last batch.", _PARTITION, lags)
    by_how = [((how,), float(count)) for how, count in ended.items()]
    yield _family("queries_ended_total", Kind.COUNTER, "Queries that have ended, by how.", ("how",), by_how)


def _family(name: str, kind: Kind, text: str, labels: Labels, series: Sequence[tuple[Labels, float]]) -> Family:
    return Family(Description(f"tidelog_spark_{name}", kind, text, labels), list(series))


_FILE_MODE = 0o644


class ProgressListener(StreamingQueryListener):
    """Spark calls it from its own thread; any thread may call ``render``."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._metrics = ProgressMetrics(keeps_ended=self._path is not None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - the name that Spark calls
        """Nothing is known about the query yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - the name that Spark calls
        """The last report still holds."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - the name that Spark calls
        self._metrics.record(json.loads(event.progress.json))
        self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - the name that Spark calls
        self._metrics.ended(str(event.id), failed=event.exception is not None)
        self._write()

    def render(self) -> bytes:
        """Prometheus' text format; its content type is ``tidelog.metrics.exposition.CONTENT_TYPE``."""
        return self._metrics.render()

    def _write(self) -> None:
        """Write the file as a whole or not at all: a scraper may read at any time."""
        if self._path is None:
            return
        handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(self.render())
        os.chmod(draft, _FILE_MODE)
        os.replace(draft, self._path)
