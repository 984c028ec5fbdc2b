"""Messages that have left librdkafka's queue and have not been handed out yet, in order, and the errors among them.

librdkafka's position moves when a message leaves its queue, so each such message must be handed out or put back, whatever happens
in between. ``fetch`` therefore takes them over in one call of C code: an interrupt, which Python raises between two of its own
instructions, finds them either in the queue or here. Their number is bounded by what one fetch asks for, plus one for each time
that the consumer's idle poller polls.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.cimpl import Message as KafkaMessage

from tidelog.client.topic_partition import TopicPartition

_error_of = KafkaMessage.error
_topic_of = KafkaMessage.topic
_partition_of = KafkaMessage.partition


class Arrivals:
    """It is not thread-safe: the consumer's lock protects it."""

    __slots__ = ("_batches", "_consume", "errors")

    def __init__(self, consume: Callable[[int, float], list[Any]]) -> None:
        self._consume = consume
        # The batches as librdkafka returned them. Nearly always there is one, which is handed out as it is.
        self._batches: list[list[Any]] = []
        self.errors: list[Any] = []
        """Errors that librdkafka delivered as messages, for the consumer to raise."""

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    def fetch(self, count_max: int, timeout: float) -> None:
        """Fetch up to ``count_max`` messages. librdkafka waits for all of them, so ask for one when there is a timeout."""
        batches = self._batches
        batches.extend(map(self._consume, (count_max,), (timeout,)))
        if not batches[-1]:
            del batches[-1]
        elif any(map(_error_of, batches[-1])):
            self.errors.extend(error for message in batches[-1] if (error := message.error()) is not None)
            self._keep(message for message in self._all() if message.error() is None)

    def take(self, count_max: int, paused: Collection[TopicPartition]) -> list[Any]:
        """Take the next messages to hand out; those of paused partitions stay."""
        if not paused and len(self._batches) == 1 and len(self._batches[0]) <= count_max:
            return self._batches.pop()
        taken: list[Any] = []
        kept: list[Any] = []
        for message in self._all():
            is_paused = (message.topic(), message.partition()) in paused
            (kept if is_paused or len(taken) == count_max else taken).append(message)
        self._keep(kept)
        return taken

    def put_back(self, messages: list[Any]) -> None:
        """Put back messages that were taken and not handed out, so that they come next again."""
        self._keep([*messages, *self._all()])

    def drop(self, is_dropped: Callable[[TopicPartition], bool]) -> None:
        """Drop the messages of some partitions: they have left this consumer, or a seek was made in them."""
        if self._batches:
            self._keep(message for message in self._all() if not is_dropped(TopicPartition(message.topic(), message.partition())))

    def partitions(self) -> set[TopicPartition]:
        messages = self._all()
        places: set[Any] = set(zip(map(_topic_of, messages), map(_partition_of, messages), strict=True))
        return {TopicPartition(*place) for place in places}

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset to hand out next, by partition."""
        firsts: dict[TopicPartition, int] = {}
        for message in self._all():
            firsts.setdefault(TopicPartition(message.topic(), message.partition()), message.offset())
        return firsts

    def _all(self) -> list[Any]:
        return list(chain.from_iterable(self._batches))

    def _keep(self, messages: Iterable[Any]) -> None:
        """Replace the messages in one step, so that an interrupt finds the old or the new ones."""
        kept = list(messages)
        self._batches[:] = [kept] if kept else []

    def take_errors(self) -> list[Any]:
        errors = self.errors
        self.errors = []
        return errors


# librdkafka reports these while it recovers by itself, and the group's callbacks tell the result.
PASSING_ERRORS = frozenset(
    (
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._PARTITION_EOF,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)
