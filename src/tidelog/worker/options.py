"""The arguments of a worker, checked: each error names the argument and what is allowed.

``config`` has settings of librdkafka. Those about connections (security, sockets, addresses) apply to all clients of the worker.
The others apply to its consumer, except those that would break a promise, which are refused.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from tidelog.client.errors import InvalidArgument
from tidelog.client.librdkafka import bootstrap_addresses, librdkafka_configuration
from tidelog.deadletters.topics import LEVELS_MAX, dead_letter_topic
from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.deduplicate import Deduplicator, MessageId
from tidelog.worker.failures import Backoff, Retriable

Order = Literal["partition", "key", "none"]
ORDERS: tuple[Order, ...] = ("partition", "key", "none")

CONCURRENCY_MAX = 10_000
# Beyond that the others would hardly be served at all.
WEIGHT_MAX = 1_000
IN_PLACE_RETRIES_MAX = 10
# Kafka's default of offset.metadata.max.bytes.
OFFSET_METADATA_BYTES_MAX = 4096
# librdkafka's own queue gets a quarter of what may be read ahead; the rest waits for its handler.
_QUEUE_SHARE = 4
# When that queue is full, librdkafka looks again after this long. By default it fetches nothing for a second.
_FULL_QUEUE_BACKOFF_MS = 20
# A partition that is resumed or newly assigned joins the next fetch, and the fetch before may wait this long on partitions that
# are empty, which those of retry topics mostly are. librdkafka's default is half a second.
_FETCH_WAIT_MS = 100
# librdkafka's default.
_FETCH_BYTES_MAX = 50 << 20
# librdkafka's default is five minutes.
METADATA_REFRESH_MS = 30_000
# A transaction is open only while it is being committed. One that a dead worker left behind must not hold others up for long.
TRANSACTION_TIMEOUT_MS = 20_000

_REFUSED = {
    "group.id": "it is group=",
    "group.instance.id": "it is instance_id=",
    "enable.auto.commit": "the worker commits what is handled",
    "enable.auto.offset.store": "the worker commits what is handled",
    "enable.partition.eof": "the worker does not use it",
    "partition.assignment.strategy": "it follows from order=",
    "group.protocol": "the worker uses the classic protocol",
    "group.remote.assignor": "the worker uses the classic protocol",
    "isolation.level": "the worker reads committed messages only",
    "transactional.id": "it follows from group= and instance_id=",
}
_CONNECTION_PREFIXES = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "client.",
    "broker.",
    "metadata.",
    "reconnect.",
    "api.",
    "enable.ssl",
)
_CONNECTION_NAMES = ("log_level", "debug", "logger", "log_cb", "oauth_cb", "enable.sasl.oauthbearer.unsecure.jwt")


class Weights:
    """How a handler is divided among topics, and among partitions that have a weight of their own.

    Each topic is a share, and so is each partition that is named. They are numbered, because the number is looked up once for
    each partition and carried along. Retry topics belong to the share of the partition that their messages come from. Without
    weights it is false, and everything is one share.
    """

    def __init__(self, given: Mapping[str | tuple[str, int], float], topics: Sequence[str]) -> None:
        names = dict.fromkeys((*topics, *given)) if given else {}
        self._numbers = {name: number for number, name in enumerate(names)}
        self.by_share = {number: given.get(name, 1.0) for name, number in self._numbers.items()}

    @classmethod
    def checked(cls, given: object, topics: Sequence[str]) -> Self:
        """InvalidArgument names the entry that is wrong."""
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f'weights= is a weight for each topic: weights={{"urgent": 9, "orders": 1}}, not {given!r}')
        for name, weight in (given or {}).items():
            topic, partition = name if isinstance(name, tuple) and len(name) == 2 else (name, 0)
            if topic not in topics:
                raise InvalidArgument(f"weights=: {name!r} is neither one of topics= nor (topic, number of a partition)")
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise InvalidArgument(f"weights=: the number of a partition is 0 or more, not {partition!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1 <= weight <= WEIGHT_MAX:
                raise InvalidArgument(f"weights=: {name!r} has a weight from 1 to {WEIGHT_MAX}: not {weight!r}")
        return cls(given or {}, topics)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def share_of(self, topic: str, partition: int) -> int:
        """The number of the share that a partition of a source topic belongs to."""
        found = self._numbers.get((topic, partition))
        return self._numbers.get(topic, 0) if found is None else found


class WorkerOptions(NamedTuple):
    addresses: str
    group: str
    topics: tuple[str, ...]
    order: Order
    concurrency: int
    weights: Weights
    retries: int
    in_place_retries: int
    backoff: Backoff
    retriable: Retriable | None
    exactly_once: bool
    deduplicate: Deduplicator | None
    message_id: MessageId
    circuit_breaker: CircuitBreaker | None
    drain_timeout: float
    application_version: str | None
    instance_id: str | None
    commit_interval: float
    prefetch_messages: int
    prefetch_bytes: int
    offset_metadata_bytes: int
    liveness_file: str | os.PathLike[str] | None
    liveness_timeout: float
    metrics_port: int | None
    metrics_host: str
    config: Mapping[str, object]

    @property
    def levels(self) -> int:
        """The number of retry topics. Even without retries there is one, for replayed dead letters and for messages that
        deduplication must look at again."""
        return max(self.retries, 1)

    def consumer_defaults(self) -> dict[str, object]:
        defaults: dict[str, object] = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # If a key's order depends on both, one member must have the source and retry partitions of the same number.
            "partition.assignment.strategy": "range" if self.order == "key" else "cooperative-sticky",
            # How soon new partitions are noticed: first those of the source, then those of its retry topics.
            "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
            "fetch.queue.backoff.ms": _FULL_QUEUE_BACKOFF_MS,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "queued.max.messages.kbytes": max(self.prefetch_bytes // _QUEUE_SHARE // 1024, 64),
            "fetch.max.bytes": min(max(self.prefetch_bytes // _QUEUE_SHARE, 1 << 20), _FETCH_BYTES_MAX),
        }
        if self.instance_id is not None:
            defaults["group.instance.id"] = self.instance_id
        return defaults

    def connection_config(self) -> dict[str, object]:
        """Those of the caller's settings that are about connections."""
        return {
            name: value
            for name, value in self.config.items()
            if name.startswith(_CONNECTION_PREFIXES) or name in _CONNECTION_NAMES
        }


def checked_options(bootstrap: str | Sequence[str], topics: str | Sequence[str], **given: Any) -> WorkerOptions:
    """Raise InvalidArgument if a value is out of range or contradicts another one."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise InvalidArgument(f"topics= are names of topics, at least one and each once: not {topics!r}")
    config = given.pop("config") or {}
    weights = Weights.checked(given.pop("weights"), names)
    options = WorkerOptions(addresses=bootstrap_addresses(bootstrap), topics=names, weights=weights, config=config, **given)
    if not isinstance(options.group, str) or not options.group:
        raise InvalidArgument(f"group= is the name of the consumer group: not {options.group!r}")
    for name in names:
        dead_letter_topic(name, options.group)
    if options.order not in ORDERS:
        raise InvalidArgument(f"order= is one of {', '.join(ORDERS)}: not {options.order!r}")
    _check_number("concurrency", options.concurrency, 1, CONCURRENCY_MAX)
    _check_number("retries", options.retries, 0, LEVELS_MAX)
    _check_number("in_place_retries", options.in_place_retries, 0, IN_PLACE_RETRIES_MAX)
    _check_number("prefetch_messages", options.prefetch_messages, 1, 10_000_000)
    _check_number("prefetch_bytes", options.prefetch_bytes, 1 << 20, 1 << 40)
    _check_number("offset_metadata_bytes", options.offset_metadata_bytes, 0, 32_767)
    if options.metrics_port is not None:
        _check_number("metrics_port", options.metrics_port, 0, 65_535)
    if not isinstance(options.backoff, Backoff):
        raise InvalidArgument(f"backoff= is a Backoff: not {options.backoff!r}")
    for name in ("drain_timeout", "commit_interval", "liveness_timeout"):
        if not getattr(options, name) > 0:
            raise InvalidArgument(f"{name}= is a number of seconds above 0: not {getattr(options, name)!r}")
    if options.circuit_breaker is not None:
        if not isinstance(options.circuit_breaker, CircuitBreaker):
            raise InvalidArgument(f"circuit_breaker= is a CircuitBreaker or None: not {options.circuit_breaker!r}")
        options.circuit_breaker.check()
    _check_retriable(options.retriable)
    # Report refused settings now, not when the worker runs.
    librdkafka_configuration(options.addresses, options.config, {}, refused=_REFUSED)
    return options


def changed_options(
    options: WorkerOptions, concurrency: int | None, metrics_port: int | None, metrics_host: str | None
) -> WorkerOptions:
    """The options with those values that are not None."""
    if concurrency is not None:
        _check_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        options = options._replace(concurrency=concurrency)
    if metrics_port is not None:
        _check_number("metrics_port", metrics_port, 0, 65_535)
        options = options._replace(metrics_port=metrics_port)
    if metrics_host is not None:
        options = options._replace(metrics_host=metrics_host)
    return options


def _check_number(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgument(f"{name}= is a whole number from {low} to {high}: not {value!r}")


def _check_retriable(retriable: object) -> None:
    is_classes = isinstance(retriable, tuple) and all(
        isinstance(each, type) and issubclass(each, BaseException) for each in retriable
    )
    if retriable is not None and not is_classes and not callable(retriable):
        raise InvalidArgument(f"retriable= is a tuple of exception classes or a function of an exception: not {retriable!r}")
