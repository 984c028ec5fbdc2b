"""A stream, as Spark calls it: ``StreamPlan`` decides, tasks read, and what is done is shown to a group.

Spark keeps one Python process per stream for planning, and pickles the reader for the tasks: only the options go along.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tidelog.spark.batch_reader import SpanPartition
from tidelog.spark.clients import fetch_client, forget_client
from tidelog.spark.offsets import StreamOffset
from tidelog.spark.options import SourceOptions
from tidelog.spark.stream_plan import StreamPlan
from tidelog.spark.task import read_span

if TYPE_CHECKING:
    from tidelog.spark.group_progress import GroupProgress


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._plan = StreamPlan(options, lambda: fetch_client(options))
        self._progress = _progress(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        return self._plan.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name that Spark calls
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name that Spark calls
        self._plan.hold_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        """``start`` is the end of the last batch that is done, which makes this the place to show it: Spark calls ``commit`` only
        when there is another batch, and so never for the last one."""
        finished = StreamOffset.from_json(start)
        end = self._plan.next_end(finished, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if self._progress is not None:
            self._progress.show(finished.positions)
        return start if end is finished else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - the name that Spark calls
        return self._plan.latest.to_json() if self._plan.latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        spans = self._plan.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [SpanPartition(span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._options, partition.span) if isinstance(partition, SpanPartition) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to let go of: the log keeps what it keeps."""

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()
        forget_client(self._options)


def _progress(options: SourceOptions) -> "GroupProgress | None":
    if not options.group_id:
        return None
    # On use: it brings librdkafka's admin client, and the stream waits for what is loaded.
    from tidelog.spark.group_progress import GroupProgress

    return GroupProgress(options.connection, options.group_id)
