"""Sending messages: ``producer.send(topic, value, key=...)`` returns a future that says where the message was written.

The defaults are safe: all in-sync replicas acknowledge a message, and the producer is idempotent, so that a retry neither writes
a second copy nor changes the order. librdkafka takes ``acks`` per producer, so there is one librdkafka producer per level of
acks, opened on use; order holds within a level. Memory is bounded: a full buffer makes ``send`` wait for ``max_block_ms`` and
then fail.

``send`` runs for every message and is written for speed: one pass, and no helper calls in the usual case (bytes, no headers, room
in the buffer).
"""

import atexit
import json
import logging
import random
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from tidelog.client.errors import Closed, DeliveryFailed, InvalidArgument, SerializationError, Shed, TidelogError, TimedOut
from tidelog.client.futures import Delivery
from tidelog.client.librdkafka import CONNECT_TIMEOUT_SECONDS, librdkafka_configuration
from tidelog.client.partitioners import PartitionCounts, Partitioner, partitioner_of
from tidelog.client.producer_handle import SENDS_PER_POLL, ProducerHandle
from tidelog.client.topic_partition import milliseconds_of
from tidelog.client.tracing import get_current, inject, messaging_spans
from tidelog.client.transaction import Transaction

_logger = logging.getLogger(__name__)

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]

CLOSE_TIMEOUT_SECONDS = 30.0
# How long the end of the program waits for producers that the application did not close.
_EXIT_TIMEOUT_SECONDS = 10.0

ACKS: Mapping[str, int] = {"all": -1, "1": 1, "0": 0}
# What librdkafka accepts.
MESSAGE_BYTES_MAX = 1_000_000_000
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")

_FUTURES = "the futures need every delivery report: use the returned future"
REFUSED: Mapping[str, str] = {
    "acks": "use the argument acks=, or acks= of send",
    "request.required.acks": "use the argument acks=, or acks= of send",
    "enable.idempotence": "use the argument idempotent=",
    "transactional.id": "use the argument transactional_id=",
    "partitioner": "use the argument partitioner=",
    "on_delivery": _FUTURES,
    "delivery.report.only.error": _FUTURES,
    "error_cb": "the errors themselves report problems of the connection",
}


class ProducerMetrics(NamedTuple):
    """Counts since the producer was opened. ``sent`` = ``delivered`` + ``failed`` + ``buffered``; dropped messages are extra."""

    sent: int
    delivered: int
    failed: int
    buffered: int
    shed: int
    sampled: int


class Serializer(Protocol):
    """Converts ``value`` to bytes for ``topic``, or to None for a tombstone. Any exception becomes a SerializationError."""

    def __call__(self, value: Any, topic: str) -> bytes | None: ...


class _Serialized:
    """No value has this type, so every value goes through the caller's serializer."""


class Producer:
    """Sends messages to topics. Safe to use from many threads; close it, or use it in a ``with``.

    ``acks``: "all" (default) means acknowledged by all in-sync replicas, 1 by the leader, 0 by nobody. ``idempotent`` (default)
    means that a message with acks="all" is written once and in order, whatever is retried. ``linger_ms``, ``batch_size`` and
    ``compression`` ("zstd", "lz4", "snappy", "gzip", "none") shape the batches; ``max_message_bytes`` is the largest message that
    this client sends (the topic has a limit of its own, ``max.message.bytes``). ``buffer_bytes`` and ``buffer_messages`` bound
    the messages that wait for their acknowledgement, per level of acks; a full buffer makes ``send`` wait up to ``max_block_ms``.
    ``delivery_timeout_ms`` is how long a message may be under way before it fails.

    ``partitioner``: "key_hash" (the same partition as a Java client chooses; messages without a key stay on a random one for a
    while), "round_robin", "sticky", or a callable (topic, key, partition count) -> partition. ``key_serializer`` and
    ``value_serializer`` replace the default: bytes stay as they are, text becomes UTF-8, anything else JSON. ``low_value_topics``
    maps topics to "shed", or to the fraction of messages to keep, for when the buffer is full. ``transactional_id`` makes a
    producer for transactions: opening it fences any other producer with the same id. ``config`` has raw settings of librdkafka.

    Opening waits for a broker, ``connect_timeout`` seconds at most: BrokerUnavailable names the addresses.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: str | int = "all",
        idempotent: bool = True,
        linger_ms: float = 5,
        batch_size: int = 1_000_000,
        max_message_bytes: int = 1_000_000,
        compression: str = "zstd",
        max_block_ms: float = 60_000,
        buffer_bytes: int = 64 << 20,
        buffer_messages: int = 100_000,
        delivery_timeout_ms: int = 120_000,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: str | Partitioner = "key_hash",
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        low_value_topics: Mapping[str, str | float] | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        if max_block_ms < 0:
            raise InvalidArgument(f"max_block_ms is a number of milliseconds, 0 or more: not {max_block_ms}")
        self._acks = acks_level(acks)
        if transactional_id is not None and self._acks != "all":
            raise InvalidArgument('a transactional producer has acks="all"')
        defaults = producer_defaults(
            linger_ms=linger_ms,
            batch_size=batch_size,
            max_message_bytes=max_message_bytes,
            compression=compression,
            buffer_bytes=buffer_bytes,
            buffer_messages=buffer_messages,
            # librdkafka requires it: a message that is written after its transaction was aborted would hang.
            delivery_timeout_ms=delivery_timeout_ms
            if transactional_id is None
            else min(delivery_timeout_ms, transaction_timeout_ms),
        )
        if transactional_id is not None:
            defaults.update({"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms})
        self._configuration = librdkafka_configuration(bootstrap, config, defaults, refused=REFUSED)
        self._idempotent = idempotent or transactional_id is not None
        self._transactional_id = transactional_id
        self._transaction_timeout = transaction_timeout_ms / 1000
        self._max_block_ms = max_block_ms
        self._key_serializer: Serializer = key_serializer or serialize
        self._value_serializer: Serializer = value_serializer or serialize
        self._plain_key: type = bytes if key_serializer is None else _Serialized
        self._plain_value: type = bytes if value_serializer is None else _Serialized
        self._partitioner = partitioner_of(partitioner)
        self._counts = PartitionCounts()
        self._spans = messaging_spans()
        self._low_value = LowValueTopics(low_value_topics)
        self._delivery: type[Delivery] = Delivery
        self._lock = threading.Lock()
        self._is_closed = False
        self._handles: dict[str, ProducerHandle] = {}
        self._handle = self._open_level(self._acks)
        try:
            self._handle.connect(connect_timeout)
            self._transaction = None if transactional_id is None else Transaction(self, self._handle, self._transaction_timeout)
        except BaseException:
            self._handle.close()
            raise
        _open_producers.add(self)

    # -- sending -------------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        acks: str | int | None = None,
    ) -> Delivery:
        """Hand one message to the buffer, to be sent with others, and return its future at once.

        ``value`` None is a tombstone. ``headers`` is a dict, or a list of pairs if a name occurs twice. ``timestamp`` is in
        milliseconds. ``acks`` is for this message only. While the buffer is full this waits, ``max_block_ms`` at most, and then
        raises BufferFull. SerializationError, MessageTooLarge, UnknownTopic (a partition that does not exist), InvalidArgument
        and Closed are raised at once; later failures are in the future, and ``flush`` raises those whose future nobody looked at.
        """
        handle = self._handle if acks is None else self._level(acks)
        if type(value) is not self._plain_value:
            value = serialized(self._value_serializer, value, topic, "value")
        if key is not None and type(key) is not self._plain_key:
            key = serialized(self._key_serializer, key, topic, "key")
        if partition is None:
            partition = -1 if self._partitioner is None else self._choose_partition(handle, topic, key)
        delivery = self._delivery(topic, handle)
        try:
            if headers is None and timestamp is None and self._spans is None and get_current() is None:
                handle.produce(topic, value, key, partition, delivery)
            else:
                headers = self._traced(topic, headers, partition)
                handle.produce(topic, value, key, partition, delivery, timestamp=_milliseconds(timestamp), headers=headers)
        except BufferError:
            message = (topic, value, key, partition, delivery)
            extra = {"timestamp": _milliseconds(timestamp), "headers": _header_list(headers)}
            return self._when_full(handle, delivery, lambda: handle.produce(*message, **extra), topic)
        except TidelogError:
            raise
        except Exception as error:
            raise handle.refusal(error, topic) from error
        if not handle.next_number() % SENDS_PER_POLL:
            handle.poll(0)
        if handle.is_asleep:
            handle.hurry()
        return delivery

    def _traced(self, topic: str, headers: Headers | None, partition: int) -> list[tuple[str, Any]]:
        if self._spans is None:
            return _header_list(headers)
        pairs: list[tuple[str, Any]] = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        self._spans.sent(topic, pairs, partition)
        # Without an SDK there was no span, and the current traceparent counts.
        return _header_list(pairs)

    def _when_full(self, handle: ProducerHandle, delivery: Delivery, attempt: Callable[[], None], topic: str) -> Delivery:
        if self._low_value.drops(topic):
            error = Shed(f"send to {topic}: the buffer was full and the topic is marked as low-value: the message was dropped")
            return self._delivery.already_failed(topic, handle, error)
        return self._wait_for_room(handle, delivery, attempt, topic)

    def _wait_for_room(self, handle: ProducerHandle, delivery: Delivery, attempt: Callable[[], None], topic: str) -> Delivery:
        handle.wait_for_room(attempt, self._max_block_ms, topic)
        handle.next_number()
        return delivery

    def _choose_partition(self, handle: ProducerHandle, topic: str, key: bytes | None) -> int:
        assert self._partitioner is not None
        count = self._counts.known(topic)
        if count is None:
            count = self._counts.ask(handle.raw, handle.addresses, topic, self._max_block_ms / 1000)
        partition = self._partitioner(topic, key, count)
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise InvalidArgument(f"the partitioner chose {partition!r} for {topic}: it has the partitions 0 to {count - 1}")
        return partition

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. This asks the cluster, so that messages can be sent to new partitions. UnknownTopic
        if the topic does not exist."""
        return self._counts.ask(self._handle.raw, self._handle.addresses, topic, self._max_block_ms / 1000)

    # -- transactions --------------------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """``with producer.transaction() as tx: tx.send(...); tx.send_offsets(consumer)``: all of it or nothing.

        The end of the block commits, an exception that leaves it aborts. See ``Transaction``.
        """
        if self._transaction is None:
            raise InvalidArgument("this producer has no transactions: open it with transactional_id=..., one per instance")
        return self._transaction

    # -- the whole -----------------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Return when every message that was sent is acknowledged.

        Raises TimedOut after ``timeout`` seconds; the messages are then still under way. If messages have failed whose futures
        nobody has looked at, raises the first failure, once; a note says how many there were.
        """
        limit = float("inf") if timeout is None else timeout
        deadline = monotonic() + limit
        remaining = sum(handle.flush(max(0.0, deadline - monotonic())) for handle in self._opened())
        self._raise_unseen()
        if remaining:
            raise TimedOut(f"{remaining:,} messages were not acknowledged within {timeout} s: they are still under way")

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Send what is in the buffer, wait for it up to ``timeout`` seconds, and end. Further calls do nothing.

        Messages that are not acknowledged by then fail, and DeliveryFailed says how many. An open transaction is aborted.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        _open_producers.discard(self)
        if self._transaction is not None:
            self._transaction.close()
        deadline = monotonic() + timeout
        handles = self._opened()
        for handle in handles:
            handle.shut(lambda: Closed("the producer is closed"))
        remaining = sum(handle.flush(max(0.0, deadline - monotonic())) for handle in handles)
        unseen = [handle.take_unseen() for handle in handles]
        for handle in handles:
            handle.close()
        if remaining:
            raise DeliveryFailed(
                f"closed with {remaining:,} messages that were not acknowledged within {timeout:g} s: they may or may not have "
                "been written"
            )
        _raise_first(unseen)

    def metrics(self) -> ProducerMetrics:
        """Counts of messages so far."""
        counts = [handle.counts() for handle in self._opened()]
        sent, failed, buffered = (sum(column) for column in zip(*counts, strict=True))
        return ProducerMetrics(
            sent, max(0, sent - failed - buffered), failed, buffered, self._low_value.shed, self._low_value.sampled
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except TidelogError as problem:
            # The exception of the block itself matters more.
            if error is None:
                raise
            _logger.error("closing the producer: %s", problem)

    # -- levels of acks ------------------------------------------------------------------------------------------------------

    def _level(self, acks: str | int) -> ProducerHandle:
        level = acks_level(acks)
        if level == self._acks:
            return self._handle
        if self._transactional_id is not None:
            raise InvalidArgument('a transactional producer has acks="all"')
        return self._handles.get(level) or self._open_level(level)

    def _open_level(self, level: str) -> ProducerHandle:
        with self._lock:
            if self._is_closed:
                raise Closed("the producer is closed")
            if level not in self._handles:
                idempotent = self._idempotent and level == "all"
                own = {"acks": ACKS[level], "enable.idempotence": idempotent}
                self._handles[level] = ProducerHandle({**self._configuration, **own})
            return self._handles[level]

    def _opened(self) -> list[ProducerHandle]:
        with self._lock:
            return list(self._handles.values())

    def _raise_unseen(self) -> None:
        _raise_first([handle.take_unseen() for handle in self._opened()])


def _raise_first(unseen: list[tuple[TidelogError | None, int]]) -> None:
    count = sum(number for _, number in unseen)
    for error, _ in unseen:
        if error is not None:
            error.mark_seen()
            if count > 1:
                error.add_note(f"{count:,} messages failed since the last flush; this is the first.")
            raise error


def _milliseconds(timestamp: int | datetime | None) -> int:
    """librdkafka treats 0 as now."""
    return 0 if timestamp is None else milliseconds_of(timestamp)


def _header_list(headers: Headers | None) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    traceparent = get_current()
    if traceparent is not None:
        inject(pairs, traceparent)
    return pairs


# -- settings -----------------------------------------------------------------------------------------------------------------


def acks_level(acks: object) -> str:
    """The caller's value as ``all``, ``1`` or ``0``."""
    level = "all" if acks == -1 or acks == "-1" else str(acks)
    if isinstance(acks, bool) or level not in ACKS:
        raise InvalidArgument(f'acks is "all", 1 or 0: not {acks!r}')
    return level


def producer_defaults(
    *,
    linger_ms: float,
    batch_size: int,
    max_message_bytes: int,
    compression: str,
    buffer_bytes: int,
    buffer_messages: int,
    delivery_timeout_ms: int,
) -> dict[str, object]:
    """The arguments of the constructor under librdkafka's names."""
    if compression not in COMPRESSIONS:
        raise InvalidArgument(f"compression is one of {', '.join(COMPRESSIONS)}: not {compression!r}")
    if not 1000 <= max_message_bytes <= MESSAGE_BYTES_MAX:
        raise InvalidArgument(f"max_message_bytes is from 1000 to {MESSAGE_BYTES_MAX}: not {max_message_bytes}")
    if buffer_bytes < 1024 or buffer_messages < 1:
        raise InvalidArgument("the buffer has at least 1024 bytes and room for one message")
    return {
        "linger.ms": linger_ms,
        "batch.size": batch_size,
        "message.max.bytes": max_message_bytes,
        "compression.type": compression,
        "queue.buffering.max.kbytes": buffer_bytes // 1024,
        "queue.buffering.max.messages": buffer_messages,
        "delivery.timeout.ms": delivery_timeout_ms,
        # The same as Java clients; random without a key.
        "partitioner": "murmur2_random",
        # A message to a topic that does not exist fails within this time, not after 30 s.
        "topic.metadata.propagation.max.ms": 10_000,
    }


# -- serialization ------------------------------------------------------------------------------------------------------------


def serialize(value: Any, topic: str) -> bytes | None:  # noqa: ARG001 - part of the protocol; the default ignores it
    """The default: None stays None, bytes-like values stay as they are, text becomes UTF-8, anything else compact JSON in UTF-8.

    JSON is strict: NaN and infinity are refused, keys of objects are text, and dates or classes are not guessed.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def serialized(serializer: Serializer, value: Any, topic: str, what: str) -> bytes | None:
    """Apply ``serializer``; ``what`` is ``key`` or ``value``. SerializationError names the type and the topic."""
    try:
        data = serializer(value, topic)
    except Exception as error:
        raise SerializationError(
            f"the {what} for {topic} is a {_type_name(value)}, which cannot be converted to bytes ({error}): "
            f"send bytes, text or what JSON can represent, or give the producer a {what}_serializer"
        ) from error
    if data is not None and not isinstance(data, bytes):
        raise SerializationError(
            f"the {what}_serializer returned a {_type_name(data)} for a {_type_name(value)} to {topic}: "
            "it must return bytes or None"
        )
    return data


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- low-value topics ---------------------------------------------------------------------------------------------------------


class LowValueTopics:
    """Topics whose messages may be dropped when the buffer is full, instead of making the application wait: metrics, traces,
    clicks.

    ``"shed"`` drops every message that finds the buffer full; a fraction keeps that part of them, and these wait as others do.
    Dropped messages are counted, and their deliveries say so: nothing is dropped silently.
    """

    __slots__ = ("_fractions", "_lock", "sampled", "shed")

    def __init__(self, topics: Mapping[str, str | float] | None) -> None:
        # The fraction to keep; 0 for "shed".
        self._fractions: dict[str, float] = {}
        self._lock = threading.Lock()
        self.shed = 0
        self.sampled = 0
        for topic, rule in (topics or {}).items():
            is_fraction = isinstance(rule, int | float) and not isinstance(rule, bool) and 0 < rule < 1
            if rule != "shed" and not is_fraction:
                raise InvalidArgument(
                    f'low_value_topics: {topic} is "shed", or the fraction to keep, between 0 and 1: not {rule!r}'
                )
            self._fractions[topic] = 0.0 if isinstance(rule, str) else float(rule)

    def drops(self, topic: str) -> bool:
        """Whether to drop this message, which found the buffer full; counts the ones that are dropped."""
        fraction = self._fractions.get(topic)
        if fraction is None or (fraction and random.random() < fraction):  # noqa: S311 - no secret
            return False
        with self._lock:
            if fraction:
                self.sampled += 1
            else:
                self.shed += 1
        return True


_open_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its producer should not lose messages, and never silently."""
    for producer in list(_open_producers):
        try:
            producer.close(_EXIT_TIMEOUT_SECONDS)
        except TidelogError as error:
            _logger.error("at the end of the program: %s", error)
