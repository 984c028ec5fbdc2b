"""The source as Spark calls it: readers for batches and streams plan on the driver, tasks read spans of offsets as Arrow batches.

- A **batch** covers what lies between two bounds when it is planned, or the part of it that the filters of the query leave
  (``pushed_filters``).
- A **stream** follows ``StreamPlan``. Spark keeps one Python process per stream for planning and pickles the reader for its
  tasks; only the options travel.
- A **task** reads one span or many, and ends when its positions reach the ends of its spans, whatever it met on the way. Offsets
  that the log has lost since are a failure that names them. With failOnDataLoss=false the task skips those, and only those, and
  goes on at the log's start.
- **Connections** belong to a Python process. A worker runs many tasks, one after the other, and keeps its connections between
  them.
- **Progress** can be shown as the committed offsets of a consumer group, for tools that watch lag. Nothing reads them back: the
  checkpoint says where to resume. So a failed commit is logged and does not stop the query. The offset committed is the end of
  the last finished batch, when the next one is planned: what the group shows is done.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.settings import librdkafka_settings, own_settings
from tidelog.client.fetch.types import ROWS_PER_BATCH, Fetcher, FetchRange
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import StreamOffset
from tidelog.spark.options import ConnectionOptions, Isolation, SourceOptions
from tidelog.spark.planning import (
    Catalogue,
    OffsetLookup,
    OffsetSpan,
    ending_positions,
    find_partitions,
    starting_positions,
    task_limits,
    tasks_of,
    warn_of_loss,
)
from tidelog.spark.pushed_filters import narrowed
from tidelog.spark.stream_plan import StreamPlan

if TYPE_CHECKING:
    from tidelog.client.admin import Admin

_logger = logging.getLogger(__name__)

# -- a batch ------------------------------------------------------------------------------------------------------------------


class SpansPartition(InputPartition):
    """A task's part of the work. It is plain data: it is pickled, and read in another process."""

    def __init__(self, spans: Sequence[OffsetSpan]) -> None:
        super().__init__(tuple(tuple(span) for span in spans))

    @property
    def spans(self) -> list[OffsetSpan]:
        return [OffsetSpan(*span) for span in self.value]


class TidelogReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        try:
            limits = task_limits(self._options, keeps_partitions_whole=False)
            return [SpansPartition(spans) for spans in tasks_of(self._narrow(self._plan()), limits)]
        finally:
            forget_client(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark makes up its own partition.
        return read_spans(self._options, partition.spans) if isinstance(partition, SpansPartition) else iter(())

    def _narrow(self, spans: list[OffsetSpan]) -> list[OffsetSpan]:
        return spans

    def _plan(self) -> list[OffsetSpan]:
        options = self._options
        client = fetch_client(options)
        catalogue = find_partitions(client, options.topics)
        if not catalogue.partitions:
            raise UnknownTopic(f"option subscribePattern: no topic matches {options.topics}")
        if options.offset_ranges is not None:
            return _ranged(client, options, catalogue)
        # Look up the end first: a log only grows, so that a start that is looked up later is never beyond an end by mistake.
        ends = ending_positions(client, options, catalogue.partitions)
        starts = starting_positions(client, options, catalogue.partitions)
        spans = [
            OffsetSpan(partition.topic, catalogue.ids[partition.topic], partition.partition, starts[partition], ends[partition])
            for partition in catalogue.partitions
        ]
        for span in spans:
            if span.size < 0 and options.starting.kind == options.ending.kind == "offsets":
                raise InvalidArgument(f"{span.topic}[{span.partition}] ends at {span.end}, before it begins at {span.start}")
        return spans


class FilteringReader(TidelogReader):
    """Reads what can pass the filters of the query. Spark takes it only where it asks for ``pushFilters``."""

    _filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the name that Spark calls
        self._filters = tuple(filters)
        return filters

    def _narrow(self, spans: list[OffsetSpan]) -> list[OffsetSpan]:
        return narrowed(fetch_client(self._options), spans, self._filters)


def _ranged(client: OffsetLookup, options: SourceOptions, catalogue: Catalogue) -> list[OffsetSpan]:
    """Plan ranges. Tasks handle offsets before the log's start; offsets beyond its end are refused here, since a reader would
    wait."""
    wanted = options.offset_ranges or {}
    if strange := [partition for partition in wanted if partition not in catalogue.partitions]:
        raise InvalidArgument(f"option offsetRanges has {strange[0].topic}[{strange[0].partition}], which is not read")
    ends = client.offsets(list(wanted), "latest")
    spans = []
    for partition, ranges in wanted.items():
        topic_id = catalogue.ids[partition.topic]
        spans += [OffsetSpan(partition.topic, topic_id, partition.partition, start, end) for start, end in ranges]
        if ranges and max(end for _, end in ranges) > ends[partition]:
            raise InvalidArgument(
                f"option offsetRanges: {partition.topic}[{partition.partition}] ends at {ends[partition]}, a range goes beyond"
            )
    return spans


# -- a stream -----------------------------------------------------------------------------------------------------------------


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._plan = StreamPlan(options, lambda: fetch_client(options))
        self._progress = GroupProgress(options.connection, options.group_id) if options.group_id else None

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
        """``start`` is the end of the last finished batch, so this is the place to show it: Spark calls ``commit`` only when
        there is another batch, and so never for the last one."""
        finished = StreamOffset.from_json(start)
        end = self._plan.next_end(finished, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if self._progress is not None:
            self._progress.show(finished.positions)
        return start if end is finished else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - the name that Spark calls
        return self._plan.latest.to_json() if self._plan.latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._plan.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [SpansPartition(spans) for spans in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_spans(self._options, partition.spans) if isinstance(partition, SpansPartition) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """There is nothing to release: the log has its own retention."""

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()
        forget_client(self._options)


# -- a task -------------------------------------------------------------------------------------------------------------------


_NO_ID = bytes(16)


def read_spans(options: SourceOptions, spans: Sequence[OffsetSpan]) -> Iterator[pa.RecordBatch]:
    ranges = [
        FetchRange(
            span.topic,
            span.partition,
            span.start,
            span.end,
            None if span.topic_id == _NO_ID else span.topic_id,
            ROWS_PER_BATCH,
            options.include_headers,
            options.columns,
        )
        for span in spans
    ]
    try:
        yield from fetch_client(options).read_ranges(ranges, None if options.fails_on_data_loss else warn_of_loss)
    except Exception:
        # Its connections may be in the middle of a response.
        forget_client(options)
        raise


# -- the connections of a process ---------------------------------------------------------------------------------------------


# One worker serves few queries at a time; a query that returns later connects again.
CLIENTS_MAX = 8

_Key = tuple[int, ConnectionOptions, Isolation, Fetcher]
_clients: dict[_Key, FetchClient] = {}


def fetch_client(options: SourceOptions) -> FetchClient:
    """The process is part of the key: a connection that was inherited by fork belongs to another process."""
    key = _key(options)
    if key not in _clients:
        if len(_clients) >= CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        connection = options.connection
        beyond = [name for name, value in connection.settings if own_settings({name: value}) is None]
        if beyond and options.fetcher == "own":
            _logger.warning("librdkafka reads, more slowly: our own connection does not know %s", ", ".join(beyond))
        _clients[key] = FetchClient(
            connection.bootstrap, settings=dict(connection.settings), isolation=options.isolation, fetcher=options.fetcher
        )
    return _clients[key]


def forget_client(options: SourceOptions) -> None:
    """Called after a failure, or when the query ends."""
    client = _clients.pop(_key(options), None)
    if client is not None:
        client.close()


def _key(options: SourceOptions) -> _Key:
    return os.getpid(), options.connection, options.isolation, options.fetcher


# -- progress as a consumer group ---------------------------------------------------------------------------------------------


# The maximum time that a trigger waits for the commit.
TIMEOUT_SECONDS = 5.0


class GroupProgress:
    def __init__(self, connection: ConnectionOptions, group_id: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._admin: Admin | None = None
        self._shown: Mapping[TopicPartition, int] = {}
        self._problem = ""

    def show(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit only what has changed."""
        news: dict[tuple[str, int], int] = {
            partition: offset for partition, offset in positions.items() if self._shown.get(partition) != offset
        }
        if not news:
            return
        try:
            if self._admin is None:
                # This is imported on use: it loads librdkafka's admin client, and a stream waits for its imports.
                from tidelog.client.admin import Admin

                settings = librdkafka_settings(dict(self._connection.settings))
                self._admin = Admin(
                    self._connection.bootstrap, timeout=TIMEOUT_SECONDS, connect_timeout=TIMEOUT_SECONDS, config=settings
                )
            self._admin.set_group_offsets(self._group_id, news)
        except TidelogError as error:
            self._tell(str(error))
            return
        self._shown = dict(positions)
        self._problem = ""

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _tell(self, problem: str) -> None:
        """Log this once, because every trigger would repeat it."""
        if problem != self._problem:
            _logger.warning("the progress is not shown as group %s: %s", self._group_id, problem)
            self._problem = problem
