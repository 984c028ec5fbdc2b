"""A task of the sink: it writes rows to topics in a transaction that it leaves open for the driver to commit.

The task opens a transactional producer of librdkafka when the first row arrives (a task without rows opens none). It begins,
produces, flushes, and answers with its transactional id, producer id and epoch; the last two come from librdkafka's statistics.
Then the producer is discarded: librdkafka believes that its transaction is still open, and would end it in its own way.

If anything fails, the task aborts the transaction as well as it can; the next run finds what is left.

With ``at_least_once`` it uses an idempotent producer without a transaction; what is written stays, whatever happens to the batch.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from tidelog.client.errors import InvalidArgument, TidelogError
from tidelog.client.message import Message
from tidelog.client.raw_producer import RawProducer
from tidelog.client.transactions.admin import TransactionHandle
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink.connections import MESSAGE_BYTES_MAX, SinkConnections
from tidelog.spark.sink.rows import SHOWN_KEY_BYTES, RowRefused, SinkColumns, SinkRows

STATISTICS_MS = 50
STATISTICS_SECONDS_MAX = 30.0
INIT_SECONDS_MAX = 120.0
ABORT_SECONDS_MAX = 10.0
POLL_SECONDS = 0.1
# Limits of messages that wait in a worker: enough to keep the brokers busy, and tens of megabytes, not hundreds.
QUEUE_MESSAGES_MAX = 100_000
QUEUE_KBYTES_MAX = 65_536
BATCH_BYTES = 1_000_000

_DEFAULTS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
    "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
    # The same as in Java clients; random without a key.
    "partitioner": "murmur2_random",
    "topic.metadata.propagation.max.ms": 10_000,
    # A report per message would cost more than the message itself.
    "delivery.report.only.error": True,
}
_JAVA_NAMES = {"max.request.size": "message.max.bytes"}
_UNKNOWN_SETTING = "No such configuration property"


def check_settings(options: SinkOptions) -> None:
    """Refuse, on the driver, a setting that librdkafka does not know. Whatever else is wrong may be right on the executors: they
    have files of their own."""
    try:
        RawProducer(options.connection.bootstrap, _librdkafka_settings(options)).close(0.0)
    except InvalidArgument as error:
        if _UNKNOWN_SETTING in str(error):
            raise


def _librdkafka_settings(options: SinkOptions) -> dict[str, Any]:
    given = {_JAVA_NAMES.get(name, name): value for name, value in options.connection.settings}
    return {**_DEFAULTS, **given, "log_level": 2}


class TaskResult(NamedTuple):
    rows: int
    transaction: TransactionHandle | None
    """None if there were no rows, or if no transaction was wanted."""


class TaskWriter:
    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        connections: SinkConnections | None,
        partition: int,
        name: Callable[[], str] | None,
    ) -> None:
        """``connections`` is None if our own are not available; then the brokers check the sizes. ``name`` finds a transactional
        id that nobody has open. It is called right before the id is opened, which may be long after the task began."""
        self._options = options
        self._columns = columns
        self._connections = connections
        self._partition = partition
        self._name = name
        self._transactional_id: str | None = None
        self._producer: RawProducer | None = None
        self._batch_bytes = BATCH_BYTES
        self._identity: tuple[int, int] | None = None
        self._failure: TidelogError | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        count = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    rows = SinkRows(batch, self._columns, self._options.topic, self._partition, count)
                    rows.check(self._limit_of)
                    # This is librdkafka's own call, for every row: a layer of Python around it would be the largest part of the
                    # work.
                    rows.send(self._open().handle.produce, self._wait)
                    count += batch.num_rows
                    self._open().poll(0)
                    self._raise_failure()
            return TaskResult(count, self._finish() if count else None)
        except BaseException:
            self._abort()
            raise

    # -- the producer ---------------------------------------------------------------------------------------------------------

    def _open(self) -> RawProducer:
        if self._producer is None:
            settings = {"batch.size": self._batch_bytes, **_librdkafka_settings(self._options)}
            if self._name is not None and self._connections is not None:
                self._transactional_id = self._name()
                settings |= {
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": self._connections.transaction_timeout_ms,
                    "statistics.interval.ms": STATISTICS_MS,
                }
            self._producer = RawProducer(
                self._options.connection.bootstrap,
                settings,
                on_delivery=self._on_delivery,
                on_statistics=self._on_statistics if self._transactional_id is not None else None,
            )
            if self._transactional_id is not None:
                self._producer.begin_transaction(INIT_SECONDS_MAX)
        return self._producer

    def _finish(self) -> TransactionHandle | None:
        producer = self._open()
        while producer.flush(POLL_SECONDS):
            self._raise_failure()
        self._raise_failure()
        if self._transactional_id is None:
            return None
        deadline = time.monotonic() + STATISTICS_SECONDS_MAX
        while self._identity is None:
            producer.poll(POLL_SECONDS)
            if time.monotonic() > deadline:
                raise TidelogError(f"librdkafka did not report the producer id of {self._transactional_id}")
        return TransactionHandle(self._transactional_id, *self._identity)

    def _abort(self) -> None:
        if self._producer is not None and self._transactional_id is not None:
            with contextlib.suppress(TidelogError):
                self._producer.abort_transaction(ABORT_SECONDS_MAX)

    def _wait(self) -> None:
        self._open().poll(POLL_SECONDS)
        self._raise_failure()

    # -- what the producer tells ----------------------------------------------------------------------------------------------

    def _on_statistics(self, text: str) -> None:
        if self._identity is None:
            state = json.loads(text).get("eos", {})
            if state.get("idemp_state") == "Assigned" and state.get("txn_state") == "InTransaction":
                self._identity = int(state["producer_id"]), int(state["producer_epoch"])

    def _on_delivery(self, error: TidelogError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            key = message.key
            named = "" if key is None else f" (key {key[:SHOWN_KEY_BYTES]!r})"
            ending = "" if self._transactional_id is None else ". Nothing of the batch was committed"
            self._failure = RowRefused(
                f"a row of task {self._partition}{named} was not written to {message.topic}: {error}{ending}"
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _limit_of(self, topic: str) -> int:
        if self._connections is None:
            return MESSAGE_BYTES_MAX
        limit = self._connections.limit_of(topic)
        # A batch that is larger than its topic accepts would be refused as a whole.
        self._batch_bytes = min(self._batch_bytes, limit)
        return limit
