"""Partitioners choose the partition of a message.

``key_hash`` is librdkafka's own ``murmur2_random``: a key goes where a Java client sends it (``murmur2``: 32 bits, seed
0x9747b28c); messages without a key stay on a random partition for a short while, so that batches fill. The others are functions
in Python: (topic, key, number of partitions) -> partition.
"""

import itertools
import random
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic, from_kafka_error

Partitioner = Callable[[str, bytes | None, int], int]

# How long a partition count is trusted. Partitions are rarely added, and messages go to the old ones meanwhile.
COUNT_SECONDS_MAX = 60.0
# Sticky: about as long as it takes to fill a batch, in time or in messages, whichever comes first.
STICKY_SECONDS = 0.01
STICKY_MESSAGES_MAX = 1_000
# The number of topics for which a partitioner keeps state or counts. Beyond that they start over.
TOPICS_MAX = 10_000

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned number of 32 bits."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _M) & _MASK
        mixed ^= mixed >> 24
        hashed = ((hashed * _M) ^ (mixed * _M)) & _MASK
    tail = data[whole:]
    if tail:
        hashed = ((hashed ^ int.from_bytes(tail, "little")) * _M) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _M) & _MASK
    return hashed ^ (hashed >> 15)


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """The partition that Java clients, librdkafka's murmur2 and our producer choose for ``key``."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobin:
    """Takes the partitions of a topic in turn, whatever the key. Safe to use from many threads."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:  # noqa: ARG002 - ignores the key
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= TOPICS_MAX:
                self._turns.clear()
            # This keeps producers from all beginning at the same partition.
            turn = self._turns.setdefault(topic, itertools.count(random.randrange(count)))  # noqa: S311 - no secret
        return next(turn) % count


class Sticky:
    """Uses one partition for a while, then another at random, whatever the key. This gives the fewest and fullest batches."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, float, itertools.count[int]]] = {}

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:  # noqa: ARG002 - ignores the key
        kept = self._kept.get(topic)
        if kept is not None:
            partition, until, sends = kept
            if next(sends) < STICKY_MESSAGES_MAX and partition < count and monotonic() < until:
                return partition
        elif len(self._kept) >= TOPICS_MAX:
            self._kept.clear()
        partition = random.randrange(count)  # noqa: S311 - no secret
        if kept is not None and partition == kept[0]:
            partition = (partition + 1) % count
        self._kept[topic] = (partition, monotonic() + STICKY_SECONDS, itertools.count(1))
        return partition


class SetAside:
    """Keeps the first ``partitions`` partitions of each topic for messages that matter more; all others share the rest.

    ``is_important`` is a function (topic, key) -> bool, which all producers of a topic must agree on. Within each part a key
    decides the partition, as with ``key_hash``. A ``Worker`` gives the partitions that were set aside a weight of their own:
    ``weights={("orders", 0): 9}``.
    """

    __slots__ = ("_is_important", "_partitions")

    def __init__(self, is_important: Callable[[str, bytes | None], bool], partitions: int = 1) -> None:
        if not callable(is_important):
            raise InvalidArgument(f"is_important is a function of topic and key: not {is_important!r}")
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
            raise InvalidArgument(f"partitions= is the number of partitions that are set aside, 1 or more: not {partitions!r}")
        self._is_important = is_important
        self._partitions = partitions

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        if count <= self._partitions:
            raise InvalidArgument(
                f"{self._partitions} partitions of {topic} are set aside, and it has {count}: "
                f"tidelog topics alter {topic} --partitions {self._partitions + 1}"
            )
        if self._is_important(topic, key):
            return key_hash(topic, key, self._partitions)
        return self._partitions + key_hash(topic, key, count - self._partitions)


def key_hash(topic: str, key: bytes | None, count: int) -> int:  # noqa: ARG001 - the topic does not count here
    """The same as ``partitioner="key_hash"``, for a callable that treats only some keys differently."""
    if key is None:
        return random.randrange(count)  # noqa: S311 - no secret
    return murmur2_partition(key, count)


def partitioner_of(name: "str | Partitioner") -> Partitioner | None:
    """The partitioner of that name; None if librdkafka does it. InvalidArgument for an unknown name."""
    if name == "key_hash":
        return None
    if name == "round_robin":
        return RoundRobin()
    if name == "sticky":
        return Sticky()
    if callable(name):
        return name
    raise InvalidArgument(f'partitioner is "key_hash", "round_robin", "sticky" or a callable: not {name!r}')


class PartitionCounts:
    """The number of partitions of each topic, according to an answer of the last minute."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}

    def known(self, topic: str) -> int | None:
        """The count without asking the cluster; None if it must be asked."""
        found = self._counts.get(topic)
        return found[0] if found is not None and monotonic() < found[1] else None

    def ask(self, raw: Any, addresses: str, topic: str, timeout: float) -> int:
        """Ask the cluster. Like a send, this creates the topic where brokers create topics automatically."""
        deadline = monotonic() + timeout
        problem: TidelogError | None = None
        while True:
            try:
                metadata = raw.list_topics(topic, timeout=max(0.001, deadline - monotonic())).topics[topic]
            except KafkaException as error:
                # The last request may have had no time left; the one before was answered.
                if problem is not None and monotonic() >= deadline:
                    raise problem from error
                raise from_kafka_error(error.args[0], f"partitions of {topic}", addresses) from error
            if metadata.partitions:
                break
            problem = _why_without_partitions(metadata.error, topic, addresses)
            if monotonic() >= deadline or not problem.retriable:
                raise problem
            raw.poll(0.05)
        if len(self._counts) >= TOPICS_MAX:
            self._counts.clear()
        count = len(metadata.partitions)
        self._counts[topic] = (count, monotonic() + COUNT_SECONDS_MAX)
        return count


def _why_without_partitions(error: KafkaError | None, topic: str, addresses: str) -> TidelogError:
    """Retriable if the topic may have partitions soon: one that was just created has no leaders yet."""
    if error is None or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        text = f"there is no topic {topic} at {addresses}: create it first: admin.create_topic(...)"
        return UnknownTopic(text, retriable=error is None or error.retriable())
    return from_kafka_error(error, f"partitions of {topic}", addresses)
