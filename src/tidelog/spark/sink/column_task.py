"""A task of the sink that encodes columns. It writes rows in a transaction that it leaves open for the driver to commit.

The producer is opened when the first rows are sent (a task without rows opens none), over connections that the process keeps. If
anything fails, the task aborts the transaction as well as it can; the next run finds what is left.

With ``at_least_once`` all tasks of a process share one idempotent producer without a transaction; what is written stays, whatever
happens to the batch.

A row goes to the partition that it names, or to that of its key (as Java clients choose it). Rows with neither go to one
partition after the other, as many as fill a batch.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.errors import TidelogError
from tidelog.client.produce.encoding import RECORD_OVERHEAD_MAX, MessageColumns, encode, murmur2_of
from tidelog.client.produce.producer import ColumnProducer
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.transactions.admin import TransactionHandle
from tidelog.client.wire.errors import ClientError
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.connections import SinkConnections
from tidelog.spark.sink.rows import RowRefused, SinkColumns, SinkRows
from tidelog.spark.sink.task import BATCH_BYTES, TaskResult

# Arrow batches are encoded together up to this many bytes: a batch for each of a few partitions.
CHUNK_BYTES = 4 << 20

NameFinder = Callable[[], str]
"""Finds a transactional id that nobody has open. It is called right before the id is opened, which may be long after the task
began."""


class ColumnTaskWriter:
    def __init__(
        self, options: SinkOptions, columns: SinkColumns, connections: SinkConnections, task: int, name: NameFinder | None
    ) -> None:
        """``name`` is None if no transaction is wanted."""
        self._options = options
        self._columns = columns
        self._connections = connections
        self._task = task
        self._name = name
        self._transactional_id: str | None = None
        self._producer: ColumnProducer | None = None
        self._turn = secrets.randbelow(1 << 31)

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        count, held, held_bytes = 0, [], 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                rows = SinkRows(batch, self._columns, self._options.topic, self._task, count)
                rows.check(self._connections.limit_of, self._connections.partitions_of)
                count += batch.num_rows
                for part in _parts(batch):
                    held.append(part)
                    held_bytes += part.nbytes
                    if held_bytes >= CHUNK_BYTES:
                        self._send(held)
                        held, held_bytes = [], 0
            if held:
                self._send(held)
            return TaskResult(count, self._finish() if count else None)
        except ClientError as error:
            self._abort()
            ending = "" if self._name is None else ". Nothing of the batch was committed"
            raise RowRefused(f"rows of task {self._task} were not written: {error}{ending}") from error
        except BaseException:
            self._abort()
            raise

    def _open(self) -> ColumnProducer:
        if self._producer is None:
            self._transactional_id = None if self._name is None else self._name()
            self._producer = self._connections.producer(self._transactional_id)
        return self._producer

    def _send(self, held: list[pa.RecordBatch]) -> None:
        batch = held[0] if len(held) == 1 else pa.concat_batches(held)
        columns = self._message_columns(batch)
        partitions, places = self._destinations(batch, columns)
        limits = [min(BATCH_BYTES, self._connections.limit_of(topic)) for topic, _ in partitions]
        self._open().send(encode(columns, places, np.array(limits, np.int64)), partitions)

    def _finish(self) -> TransactionHandle | None:
        producer = self._open()
        producer.flush()
        if self._transactional_id is None:
            return None
        return TransactionHandle(self._transactional_id, producer.identity.producer_id, producer.identity.producer_epoch)

    def _abort(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(TidelogError, ClientError):
                self._producer.abort()

    # -- columns --------------------------------------------------------------------------------------------------------------

    def _message_columns(self, batch: pa.RecordBatch) -> MessageColumns:
        places = self._columns
        now_ms = int(time.time() * 1000)
        if places.timestamp is None:
            times = np.full(batch.num_rows, now_ms, np.int64)
        else:
            given = pc.fill_null(batch.column(places.timestamp).cast(pa.int64()), now_ms * 1000)
            times = given.to_numpy(zero_copy_only=False) // 1000
        return MessageColumns(
            None if places.key is None else batch.column(places.key).cast(pa.binary()),
            batch.column(places.value).cast(pa.binary()),
            times,
            None if places.headers is None else batch.column(places.headers),
        )

    def _destinations(self, batch: pa.RecordBatch, columns: MessageColumns) -> tuple[list[TopicPartition], Any]:
        """All partitions of the topics, and the number of each row's own among them."""
        count = batch.num_rows
        if self._columns.topic is None:
            names, codes = [self._options.topic or ""], np.zeros(count, np.int64)
        else:
            encoded = batch.column(self._columns.topic).dictionary_encode()
            names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        sizes = np.array([self._connections.partitions_of(name) for name in names], np.int64)
        partitions = [
            TopicPartition(name, number) for name, size in zip(names, sizes.tolist(), strict=True) for number in range(size)
        ]
        runs = np.cumsum(columns.sizes + RECORD_OVERHEAD_MAX) // BATCH_BYTES
        chosen = self._turn + runs
        self._turn += int(runs[-1]) + 1
        if columns.keys is not None:
            has_key = pc.is_valid(columns.keys).to_numpy(zero_copy_only=False)
            chosen = np.where(has_key, murmur2_of(columns.keys), chosen)
        chosen = chosen % sizes[codes]
        if self._columns.partition is not None:
            given = pc.fill_null(batch.column(self._columns.partition), -1).to_numpy(zero_copy_only=False)
            chosen = np.where(given >= 0, given, chosen)
        return partitions, (np.cumsum(sizes) - sizes)[codes] + chosen


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of about the bytes of a chunk."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
