"""The thread of a table: it loads the topic to its end, then follows it, and stores one batch after the other.

The table is *ready* when everything is stored that could be read when the load began. Rows that are stored already are used only
if they are what a fresh load would have made so far. Otherwise the table is emptied and loaded again, which happens if

* the topic has another id (it was deleted and created again), or the rows were read with another isolation;
* the position is before the oldest message (tombstones may be gone with the deleted messages) or after the end;
* the table was away for long: compaction removes tombstones ``delete.retention.ms`` after they were written, so rows that were
  not compared with the topic for half of that time may have been deleted unnoticed.

The same is checked every few seconds while following; new partitions join the others.

``TableSource`` reads with confluent-kafka itself and not with ``Consumer``, because it needs to know where each partition ends.
That event comes even where the last offsets are markers of transactions, aborted messages, or holes that compaction left.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource

from tidelog.client.arrivals import PASSING_ERRORS
from tidelog.client.consumer_settings import REFUSED, consumer_defaults
from tidelog.client.errors import InvalidArgument, TidelogError, TimedOut, UnknownTopic, from_kafka_error
from tidelog.client.librdkafka import ConnectionProblems, bootstrap_addresses, librdkafka_configuration, wait_for_broker
from tidelog.client.offset_queries import OffsetQueries
from tidelog.client.table.storage import TableIdentity, TableStorage
from tidelog.client.topic_partition import TopicPartition, raw_offsets

_logger = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
_WAIT_SECONDS = 0.2
_RETRY_SECONDS = 0.5
# While following, the table counts as away only after this long, so that a topic without retention of tombstones can be followed.
_AWAY_MS_MIN = 60_000

OnBatch = Callable[[list[tuple[bytes, bytes | None]]], None]

REQUEST_SECONDS = 10.0
BATCH_RECORDS = 2_000
# A new partition joins the fetches when the current one is answered: a small table would wait for Kafka's default of 500 ms.
FETCH_WAIT_MS = 100
PREFETCH_BYTES = 16 * 1024 * 1024
PREFETCH_RECORDS = 20_000
# Kafka's default, for users who may not read the setting.
_DELETE_RETENTION_MS = 86_400_000


class PositionsGone(Exception):
    """The topic no longer has the offset that is to be read next."""


class TableTopic(NamedTuple):
    topic_id: str
    partitions: tuple[int, ...]
    delete_retention_ms: int


class TableSource:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        *,
        isolation: str,
        connect_timeout: float,
        config: Mapping[str, object] | None,
    ) -> None:
        self.topic = topic
        self.addresses = bootstrap_addresses(bootstrap)
        defaults = consumer_defaults(
            group=None,
            protocol="classic",
            assignor=None,
            isolation=isolation,
            instance_id=None,
            max_prefetch_bytes=PREFETCH_BYTES,
            max_prefetch_records=PREFETCH_RECORDS,
        )
        # If a position is gone, rows may have been deleted unnoticed: that must be an error.
        defaults.update({"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": FETCH_WAIT_MS})
        settings = librdkafka_configuration(bootstrap, config, defaults, refused=REFUSED)
        problems = ConnectionProblems()
        try:
            self._handle = KafkaConsumer({**settings, "error_cb": problems})
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"open table {topic}", self.addresses, otherwise=InvalidArgument) from error
        try:
            wait_for_broker(self._handle, self.addresses, problems, connect_timeout)
            self._admin = AdminClient(librdkafka_configuration(bootstrap, config, {}))
        except BaseException:
            self._handle.close()
            raise
        self._lookup = OffsetQueries(self._handle, self.addresses)

    def facts(self) -> TableTopic:
        """Raises UnknownTopic if the topic does not exist."""
        description = self._answer(
            lambda: self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=REQUEST_SECONDS)[self.topic]
        )
        partitions = tuple(sorted(partition.id for partition in description.partitions))
        return TableTopic(str(description.topic_id), partitions, self._delete_retention_ms())

    def bounds(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return, by partition, the offset of the oldest message, and the one after the last message that may be read."""
        wanted = [TopicPartition(self.topic, partition) for partition in partitions]
        self._refresh()
        begins = self._lookup.beginnings(wanted, REQUEST_SECONDS)
        ends = self._lookup.ends(wanted, REQUEST_SECONDS)
        return (
            {one.partition: offset for one, offset in begins.items()},
            {one.partition: offset for one, offset in ends.items()},
        )

    def assign(self, positions: Mapping[int, int]) -> None:
        self._handle.assign(raw_offsets(((self.topic, partition), offset) for partition, offset in positions.items()))

    def read(self, timeout: float) -> tuple[list[Any], dict[int, int]]:
        """Return the next messages, and the ends that were reached by partition. PositionsGone if an offset no longer exists."""
        raw = self._handle.consume(1, timeout)
        if raw:
            raw += self._handle.consume(BATCH_RECORDS - 1, 0)
        messages, ends = [], {}
        for message in raw:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition()] = message.offset()
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise PositionsGone(error.str())
            elif error.code() not in PASSING_ERRORS and not error.retriable():
                raise from_kafka_error(error, f"read {self.topic}", self.addresses)
        return messages, ends

    def close(self) -> None:
        self._handle.close()

    def _refresh(self) -> None:
        """Refresh librdkafka's metadata, which may be old: it answers questions about partitions from it."""
        try:
            self._handle.list_topics(self.topic, timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"topic {self.topic}", self.addresses) from error

    def _delete_retention_ms(self) -> int:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            settings = self._answer(lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource])
            return int(settings["delete.retention.ms"].value)
        except (TidelogError, KeyError):
            return _DELETE_RETENTION_MS

    def _answer(self, call: Any) -> Any:
        try:
            return call().result(REQUEST_SECONDS)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"topic {self.topic}", self.addresses) from error
        except TimeoutError as error:
            # librdkafka has the same time-out, which does not always expire first.
            raise TimedOut(f"topic {self.topic}: no answer from {self.addresses} within {REQUEST_SECONDS:g} s") from error


def _now_ms() -> int:
    return int(time() * 1000)


class TableFollower:
    def __init__(
        self, source: TableSource, storage: TableStorage, isolation: str, on_batch: OnBatch, check_seconds: float
    ) -> None:
        """``on_batch`` gets every batch that arrives once the table is ready."""
        self._source = source
        self._storage = storage
        self._isolation = isolation
        self._on_batch = on_batch
        self._check_seconds = check_seconds
        self._changed = threading.Condition()
        self._is_ready = False
        self._is_stopped = False
        self.error: TidelogError | None = None
        """The reason why the thread has ended, if it has."""
        self.loads = 0
        """The number of times that the table was loaded from the beginning."""
        self.keyless = 0
        """The number of messages without a key, which are skipped."""
        self._positions: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._began_ms = 0
        self._thread = threading.Thread(target=self._run, name=f"tidelog-table-{source.topic}", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def wait_ready(self, timeout: float | None) -> bool:
        """Wait until the table is ready, or has ended with an error."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_ready or self.error is not None or self._is_stopped, timeout)

    def wait_for_batch(self, timeout: float) -> None:
        """Wait until something is stored, or the time is up."""
        with self._changed:
            self._changed.wait(timeout)

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        self._set(is_stopped=True)
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                try:
                    self._follow(self._load())
                except PositionsGone as gone:
                    _logger.warning("table %s is loaded again: %s", self._source.topic, gone)
                    self._set(is_ready=False)
                except TidelogError as error:
                    # A topic that was deleted may be created again, and the new topic is then loaded.
                    if not error.retriable and not isinstance(error, UnknownTopic):
                        raise
                    _logger.warning("table %s waits: %s", self._source.topic, error)
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_stopped, _RETRY_SECONDS)
        except TidelogError as error:
            self._end(error)
        except Exception as error:
            # A thread that ends silently would leave a table that looks ready and never changes again.
            self._end(TidelogError(f"table {self._source.topic}: {type(error).__name__}: {error}: open it again"), error)
        finally:
            self._source.close()

    def _end(self, error: TidelogError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        _logger.error("table %s no longer follows its topic: %s", self._source.topic, error, exc_info=cause)
        self._set(is_ready=False, error=error)

    def _load(self) -> TableTopic:
        """Use the stored rows, or start empty, and read from there."""
        now_ms = _now_ms()
        facts = self._source.facts()
        begins, ends = self._source.bounds(facts.partitions)
        identity = TableIdentity(self._source.topic, facts.topic_id, self._isolation)
        kept = self._kept_positions(identity, facts, begins, ends, now_ms)
        if kept is None:
            self._set(is_ready=False)
            self._storage.reset(identity, now_ms)
            self.loads += 1
            kept = {}
        self._positions = {partition: kept.get(partition, begins[partition]) for partition in facts.partitions}
        self._missing = {
            partition: ends[partition] for partition in facts.partitions if self._positions[partition] < ends[partition]
        }
        self._began_ms = now_ms
        self._source.assign(self._positions)
        return facts

    def _kept_positions(
        self, identity: TableIdentity, facts: TableTopic, begins: Mapping[int, int], ends: Mapping[int, int], now_ms: int
    ) -> dict[int, int] | None:
        progress = self._storage.progress()
        if progress is None or progress.identity != identity:
            return None
        if now_ms - progress.caught_up_ms > facts.delete_retention_ms // 2:
            return None
        for partition, position in progress.positions.items():
            if partition not in begins or not begins[partition] <= position <= ends[partition]:
                return None
        return dict(progress.positions)

    def _follow(self, facts: TableTopic) -> None:
        checked_at = _now_ms()
        self._note_ready()
        while not self._is_stopped:
            messages, ends = self._source.read(_WAIT_SECONDS)
            if messages or ends:
                self._store(messages, ends)
                self._note_ready()
            if _now_ms() - checked_at >= self._check_seconds * 1000:
                checked_at = _now_ms()
                if not self._is_as_before(facts):
                    return

    def _store(self, messages: list[Any], ends: Mapping[int, int]) -> None:
        changes: list[tuple[bytes, bytes | None]] = []
        positions: dict[int, int] = {}
        for message in messages:
            key = message.key()
            if key is None:
                self.keyless += 1
            else:
                changes.append((key, message.value()))
            positions[message.partition()] = message.offset() + 1
        for partition, end in ends.items():
            positions[partition] = max(end, positions.get(partition, 0))
        self._storage.apply(changes, positions, None)
        self._positions.update(positions)
        self._set()
        if self._is_ready and changes:
            self._on_batch(changes)

    def _note_ready(self) -> None:
        """Become ready if everything is stored that was in the topic when the ends were last looked up."""
        for partition in [one for one, end in self._missing.items() if self._positions[one] >= end]:
            del self._missing[partition]
        if not self._missing and self._began_ms:
            self._storage.apply([], {}, self._began_ms)
            self._began_ms = 0
            self._set(is_ready=True)

    def _is_as_before(self, facts: TableTopic) -> bool:
        """Whether this is still the same topic, followed closely. Otherwise it is reloaded, as far as needed."""
        now_ms = _now_ms()
        try:
            now = self._source.facts()
            if (now.topic_id, now.partitions) != (facts.topic_id, facts.partitions):
                return False
            _, ends = self._source.bounds(now.partitions)
        except TidelogError as error:
            _logger.warning("table %s: %s", self._source.topic, error)
            return True
        progress = self._storage.progress()
        if progress is None or now_ms - progress.caught_up_ms > max(now.delete_retention_ms // 2, _AWAY_MS_MIN):
            raise PositionsGone("the table was away for longer than tombstones are kept")
        if not self._missing:
            self._missing = {one: end for one, end in ends.items() if self._positions[one] < end}
            self._began_ms = now_ms
            self._note_ready()
        return True

    def _set(self, *, is_ready: bool | None = None, is_stopped: bool = False, error: TidelogError | None = None) -> None:
        with self._changed:
            self._is_ready = self._is_ready if is_ready is None else is_ready
            self._is_stopped = self._is_stopped or is_stopped
            self.error = error or self.error
            self._changed.notify_all()
