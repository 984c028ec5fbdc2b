"""Runs a streaming query to its end: shows its progress, stops it on request, and raises what stopped it as a typed error.

SIGINT and SIGTERM let the current batch finish and then stop; a second signal does not wait. Either way, what was committed stays
committed, and the same command continues from there. Only the main thread can handle signals; in other threads they are left
alone.
"""

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.client.errors import TidelogError
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import StreamOffset, begin_of_batch
from tidelog.spark.pipelines.failures import SparkGaveUp, error_behind
from tidelog.spark.pipelines.pipeline import Reporter
from tidelog.spark.progress_listener import rows_read

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.5
# How long a batch may continue after the first signal; then it is interrupted, and the next run repeats it.
LAST_BATCH_SECONDS_MAX = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class QueryEnd(NamedTuple):
    is_stopped: bool
    """True if a signal stopped it: there may be more to do."""
    batches: int
    rows: int
    positions: Mapping[TopicPartition, int]
    """Where the last batch of our source ended: the next offset of each partition."""


def run_query(
    query: "StreamingQuery", reporter: Reporter, *, unit: str = "rows", stop: threading.Event | None = None
) -> QueryEnd:
    """Run the query until it ends or is told to. Raises the error behind whatever stopped it.

    A caller passes ``stop`` if it handles the signals itself, because it has more than this query to stop.
    """
    from pyspark.errors import StreamingQueryException

    seen = QueryProgress()
    with stop_on_signals() if stop is None else nullcontext(stop) as stop:
        try:
            while not _has_ended(query, stop):
                _look(query, seen, reporter, unit)
                if stop.is_set():
                    _end_after_batch(query)
                    break
        except StreamingQueryException as error:
            behind = error_behind(error)
            # A stop in the middle of a batch can look like a failure of Spark's, but not like one that we know.
            if not stop.is_set() or not isinstance(behind, SparkGaveUp):
                raise behind from None
        except BaseException:
            query.stop()
            raise
        _look(query, seen, reporter, unit)
    return QueryEnd(stop.is_set(), seen.batches, seen.rows, seen.positions)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one raises KeyboardInterrupt at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class QueryProgress:
    """The progress that a query has reported so far. Spark keeps only the last reports, so poll it often."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.positions: Mapping[TopicPartition, int] = {}
        self.latest: Mapping[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        self._last: tuple[int, str] = (-1, "")

    def add(self, progress: Mapping[str, Any]) -> bool:
        """Add a report. Returns whether it was new: reports arrive in order, and some arrive again."""
        report = (int(progress["batchId"]), str(progress["timestamp"]))
        if report <= self._last:
            return False
        sources = progress.get("sources") or ()
        rows = rows_read(progress)
        self.batches += report[0] > self._last[0] and rows > 0
        self.rows += rows
        self._last = report
        for source in sources:
            self._add_offsets(source)
        return True

    def _add_offsets(self, source: Mapping[str, Any]) -> None:
        end = _offset(source.get("endOffset"))
        if end is None:
            return
        start = _offset(source.get("startOffset")) or StreamOffset({}, {}, is_initial=True)
        for partition, offset in begin_of_batch(start, end).items():
            self._begins.setdefault(partition, offset)
        latest = _offset(source.get("latestOffset"))
        self.positions = {**self.positions, **end.positions}
        self.latest = {**self.latest, **(latest.positions if latest else {})}

    @property
    def done(self) -> int:
        """The number of offsets that were passed since the run began."""
        return sum(offset - self._begins.get(partition, offset) for partition, offset in self.positions.items())

    @property
    def total(self) -> int | None:
        """The number of offsets that are known to exist; None if that is unknown."""
        if not self.latest:
            return None
        ends = {partition: max(offset, self.positions.get(partition, 0)) for partition, offset in self.latest.items()}
        return sum(offset - self._begins.get(partition, offset) for partition, offset in ends.items())


def _has_ended(query: "StreamingQuery", stop: threading.Event) -> bool:
    # Waiting in Java would keep signals waiting as well.
    stop.wait(POLL_SECONDS)
    if query.isActive:
        return False
    error = query.exception()
    if error is not None:
        raise error
    return True


def _look(query: "StreamingQuery", seen: QueryProgress, reporter: Reporter, unit: str) -> None:
    news = [seen.add(json.loads(progress.json)) for progress in query.recentProgress]
    if any(news):
        reporter.progress(seen.done or seen.rows, seen.total, unit)


def _end_after_batch(query: "StreamingQuery") -> None:
    waiting = threading.Event()
    waited_seconds = 0.0
    last = _last_report(query)
    while query.isActive and query.status["isTriggerActive"] and waited_seconds < LAST_BATCH_SECONDS_MAX:
        if _last_report(query) != last:
            break
        waiting.wait(POLL_SECONDS / 5)
        waited_seconds += POLL_SECONDS / 5
    query.stop()


def _last_report(query: "StreamingQuery") -> str | None:
    progress = query.lastProgress
    return None if progress is None else progress.json


def _offset(written: object) -> StreamOffset | None:
    """The offset; None for a source that is not ours."""
    try:
        return StreamOffset.from_json(json.loads(written) if isinstance(written, str) else written)
    except (TidelogError, ValueError):
        return None
