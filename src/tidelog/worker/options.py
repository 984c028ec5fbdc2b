"""What a worker was told, checked: each complaint names the argument and what would do.

``config`` are librdkafka's own settings. Those about connections (security, sockets, addresses) hold for all of the worker's
clients; the others for its consumer, except those that would break a promise, which are refused.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.client.librdkafka import bootstrap_addresses, librdkafka_configuration
from tidelog.deadletters.topics import LEVELS_MAX, dead_letter_topic
from tidelog.worker.backoff import Backoff
from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.deduplicate import Deduplicator, MessageId
from tidelog.worker.failures import Retriable

Order = Literal["partition", "key", "none"]
ORDERS: tuple[Order, ...] = ("partition", "key", "none")

CONCURRENCY_MAX = 10_000
IN_PLACE_RETRIES_MAX = 10
# Kafka's default of offset.metadata.max.bytes.
OFFSET_METADATA_BYTES_MAX = 4096
# Of librdkafka's own queue, as a part of what may be read ahead: the rest waits for its handler.
_QUEUE_SHARE = 4
# When that queue is full, librdkafka looks again after this long; by default after a second, in which nothing is fetched.
_FULL_QUEUE_BACKOFF_MS = 20
# A partition that is resumed, or was just assigned, is in the next fetch, and the one before may wait for so long on partitions
# that are empty, as those of retry topics are. librdkafka's default is half a second.
_FETCH_WAIT_MS = 100
# librdkafka's default.
_FETCH_BYTES_MAX = 50 << 20
# librdkafka's default is five minutes.
METADATA_REFRESH_MS = 30_000
# A transaction is open only while it is being committed; one that a dead worker left behind must not hold others up for long.
TRANSACTION_TIMEOUT_MS = 20_000

_REFUSED = {
    "group.id": "it is group=",
    "group.instance.id": "it is instance_id=",
    "enable.auto.commit": "the worker commits what is handled",
    "enable.auto.offset.store": "the worker commits what is handled",
    "enable.partition.eof": "the worker has no use for it",
    "partition.assignment.strategy": "it follows from order=",
    "group.protocol": "the worker uses the classic protocol",
    "group.remote.assignor": "the worker uses the classic protocol",
    "isolation.level": "the worker reads committed messages only",
    "transactional.id": "it follows from group= and instance_id=",
}
_OF_ALL_CLIENTS = ("security.", "sasl.", "ssl.", "socket.", "client.", "broker.", "metadata.", "reconnect.", "api.", "enable.ssl")
_OF_ALL_CLIENTS_NAMES = ("log_level", "debug", "logger", "log_cb", "oauth_cb", "enable.sasl.oauthbearer.unsecure.jwt")


class Options(NamedTuple):
    addresses: str
    group: str
    topics: tuple[str, ...]
    order: Order
    concurrency: int
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
    config: Mapping[str, object]

    @property
    def levels(self) -> int:
        """How many retry topics there are: one also without retries, for dead letters that are replayed, and for what
        deduplication must look at again."""
        return max(self.retries, 1)

    def consumer_config(self, callbacks: Mapping[str, object]) -> dict[str, object]:
        defaults: dict[str, object] = {
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # Source and retry partitions of one number must meet in one member where a key's order depends on both.
            "partition.assignment.strategy": "range" if self.order == "key" else "cooperative-sticky",
            # How soon partitions that were added are noticed: first those of the source, then those of its retry topics.
            "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
            "fetch.queue.backoff.ms": _FULL_QUEUE_BACKOFF_MS,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "queued.max.messages.kbytes": max(self.prefetch_bytes // _QUEUE_SHARE // 1024, 64),
            "fetch.max.bytes": min(max(self.prefetch_bytes // _QUEUE_SHARE, 1 << 20), _FETCH_BYTES_MAX),
            **callbacks,
        }
        if self.instance_id is not None:
            defaults["group.instance.id"] = self.instance_id
        return librdkafka_configuration(self.addresses, self.config, defaults, refused=_REFUSED)

    def connection_config(self) -> dict[str, object]:
        """Of the caller's settings those that are about connections."""
        return {
            name: value
            for name, value in self.config.items()
            if name.startswith(_OF_ALL_CLIENTS) or name in _OF_ALL_CLIENTS_NAMES
        }

    def client_config(self, defaults: Mapping[str, object]) -> dict[str, object]:
        return librdkafka_configuration(self.addresses, self.connection_config(), defaults)


def checked_options(bootstrap: str | Sequence[str], topics: str | Sequence[str], **given: Any) -> Options:
    """InvalidArgument when something makes no sense."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise InvalidArgument(f"topics= are names of topics, at least one and each once: not {topics!r}")
    config = given.pop("config") or {}
    options = Options(addresses=bootstrap_addresses(bootstrap), topics=names, config=config, **given)
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
    # What is refused is told now and not when the worker runs.
    options.consumer_config({})
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
