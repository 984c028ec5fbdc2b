"""The writers that Spark calls: tasks write on the executors, the driver commits or aborts.

Only tasks know a streaming query's id, its run and the batch (from the local properties of the task), so the driver learns them
from the tasks' messages. A batch write has its ``writeId``, and a new run each time that it is executed; without a ``writeId`` it
gets a random one, and is not remembered.

The driver's part runs in a Python process next to Spark's driver, with a new writer for each batch: ``connections`` holds what is
worth keeping between batches.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, TidelogError
from tidelog.client.transactions.admin import TransactionHandle
from tidelog.client.wire.errors import BrokerUnreachable, SecurityRequired
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.column_task import ColumnTaskWriter
from tidelog.spark.sink.connections import (
    SinkConnections,
    check_security,
    connection_settings,
    forget_connections,
    own_compression,
    settings_beyond,
    sink_connections,
)
from tidelog.spark.sink.job import JobStart
from tidelog.spark.sink.names import once_write_id, query_job, write_job
from tidelog.spark.sink.rows import SinkColumns, check_columns
from tidelog.spark.sink.task import TaskWriter, check_settings

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
# How long a process waits if no broker answers its first request.
ABSENCE_SECONDS_MAX = 30.0
ABSENCE_PAUSE_SECONDS = 0.2
# A batch write is one batch.
ONLY_BATCH = 0

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class SinkExecution(NamedTuple):
    """The job, run and batch that a task belongs to."""

    job: str
    run: str
    batch: int


class TaskMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    def __init__(self, execution: SinkExecution, transaction: TransactionHandle | None) -> None:
        self.execution = execution
        self.transaction = transaction


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    _check(options)
    if overwrite:
        raise InvalidArgument(
            'a topic cannot be overwritten, as outputMode("complete") wants: write the rows that changed, with '
            'outputMode("update") and foreachBatch (docs/SPARK.md, "Results that change")'
        )
    if options.write_id is not None:
        raise InvalidArgument("option writeId is for batch writes: a stream has its checkpoint")
    return TidelogStreamWriter(options, check_columns(schema, options.topic))


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    _check(options)
    if overwrite:
        raise InvalidArgument('a topic cannot be overwritten: use .mode("append")')
    if options.write_id is not None and options.delivery_guarantee == "at_least_once":
        raise InvalidArgument("option writeId: an at-least-once write is not remembered, so a repetition cannot be skipped")
    return TidelogBatchWriter(options, check_columns(schema, options.topic))


def _check(options: SinkOptions) -> None:
    check_security(options)
    settings = dict(options.connection.settings)
    connection_settings(settings)
    if own_compression(settings) is None:
        check_settings(options)
        _log_librdkafka(", ".join(settings_beyond(settings)))


@lru_cache(maxsize=200)
def _log_librdkafka(names: str) -> None:
    """Once in a process, because a writer is made for every batch."""
    _logger.warning("librdkafka writes, more slowly: our own producer does not know %s", names)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = _task_context()
        properties = [context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID)]
        query_id, run, batch = properties
        if query_id is None or run is None or batch is None:
            raise TidelogError(f"Spark does not say which query, run and batch this task belongs to: {properties}")
        execution = SinkExecution(query_job(query_id), run, int(batch))
        return _write_task(self._options, self._columns, execution, None, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark calls it so; the messages say which batch it is
        _commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark calls it so; the messages say which batch it is
        _abort(self._options, _collected(messages)[0])


class TidelogBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        """Created on the driver, once for each execution; Spark sends it to the tasks and back."""
        self._options = options
        self._columns = columns
        write_id = options.write_id or once_write_id(secrets.token_hex(16))
        self._execution = SinkExecution(write_job(write_id), secrets.token_hex(16), ONLY_BATCH)
        self._start: JobStart | None = None
        if options.delivery_guarantee == "exactly_once":
            self._start = sink_connections(options).job(self._execution.job).start(self._execution.run, ONLY_BATCH)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return _write_task(self._options, self._columns, self._execution, self._start, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - of tasks that told nothing, too
        _abort(self._options, self._execution)


# -- on the executors ------------------------------------------------------------------------------------------------------------


def _write_task(
    options: SinkOptions,
    columns: SinkColumns,
    execution: SinkExecution,
    start: JobStart | None,
    batches: Iterable[pa.RecordBatch],
) -> TaskMessage:
    context = _task_context()
    partition = context.partitionId()
    is_own = own_compression(dict(options.connection.settings)) is not None
    if options.delivery_guarantee == "at_least_once" and not is_own:
        TaskWriter(options, columns, None, partition, None).write(batches)
        return TaskMessage(execution, None)
    connections = sink_connections(options)
    writer = ColumnTaskWriter if is_own else TaskWriter
    try:
        _patiently(connections.greet)
        if options.delivery_guarantee == "at_least_once":
            writer(options, columns, connections, partition, None).write(batches)
            return TaskMessage(execution, None)
        job = connections.job(execution.job)
        # Starting twice has the same effect as once.
        begun = start or _patiently(partial(job.start, execution.run, execution.batch))
        if begun.is_replay:
            return TaskMessage(execution, None)

        def name() -> str:
            return job.name_for(begun.generation, partition, context.attemptNumber())

        return TaskMessage(execution, writer(options, columns, connections, partition, name).write(batches).transaction)
    except Exception:
        forget_connections(options)
        raise


def _patiently(first_words: Callable[[], _Result]) -> _Result:
    """Retry the first request of a process, which would fail at once when no broker answers, or when one ends the connection as
    if it required security. A broker that is restarting is no reason to fail a batch: in local mode Spark does not repeat a task,
    and nowhere a commit."""
    deadline = time.monotonic() + ABSENCE_SECONDS_MAX
    while True:
        try:
            return first_words()
        except (BrokerUnavailable, BrokerUnreachable, SecurityRequired):
            if time.monotonic() > deadline:
                raise
        time.sleep(ABSENCE_PAUSE_SECONDS)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TidelogError("the sink's tasks run in Spark only")
    return context


# -- on the driver ---------------------------------------------------------------------------------------------------------------


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    execution, transactions = _collected(messages)
    if execution is None or options.delivery_guarantee == "at_least_once":
        return

    def commit(connections: SinkConnections) -> None:
        _patiently(connections.greet)
        connections.job(execution.job).commit(execution.run, execution.batch, transactions)

    _keeping(options, commit)


def _abort(options: SinkOptions, execution: SinkExecution | None) -> None:
    """None means that no task got far enough to name its query. Then the next run cleans up."""
    if execution is not None and options.delivery_guarantee == "exactly_once":
        _keeping(options, lambda connections: connections.job(execution.job).abort(execution.run))


def _keeping(options: SinkOptions, call: Callable[[SinkConnections], None]) -> None:
    try:
        call(sink_connections(options))
    except Exception:
        forget_connections(options)
        raise


def _collected(messages: Sequence[WriterCommitMessage | None]) -> tuple[SinkExecution | None, list[TransactionHandle]]:
    execution, transactions = None, []
    for message in messages:
        if isinstance(message, TaskMessage):
            if execution is not None and message.execution != execution:
                raise TidelogError(f"tasks of {execution} and of {message.execution} in one commit")
            execution = message.execution
            if message.transaction is not None:
                transactions.append(message.transaction)
    return execution, transactions
