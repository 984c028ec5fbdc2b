"""Committing offsets: what is asked for is durable when it returns, or was another member's business by then.

The answer has what was committed. A partition that is missing in it has left this consumer in the meantime, and whoever has it
now handles its messages again: that is no error, it is what at-least-once means. An offset is never committed for a partition
that went and came back in between (its epoch differs): another member may have been further.

A group that is rebalancing refuses commits until the consumer has answered, and only a poll does that. So ``commit`` polls
in between (``drive``); messages that this brings wait for the caller in ``Arrivals``.
"""

import logging
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidelog.client.assignment import Assignment
from tidelog.client.errors import from_kafka_error
from tidelog.client.topic_partition import Partition, partition_of

_logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.05

# A poll resolves these: the rebalance goes on, or the consumer learns that it has lost its partitions.
_MEMBERSHIP = frozenset(
    (
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.STALE_MEMBER_EPOCH,
    )
)
# The broker or the coordinator is away for a moment. Whether the commit was done is not known, and doing it again does no harm.
_PASSING = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    )
)


class Commits:
    """``committed`` is what is known to be committed, so that nothing is committed twice for nothing."""

    def __init__(self, handle: Any, addresses: str, assignment: Assignment, drive: Callable[[], bool]) -> None:
        """``drive`` polls once; it says whether it could: within a callback of a poll it cannot."""
        self._handle = handle
        self._addresses = addresses
        self._assignment = assignment
        self._drive = drive
        self.committed: dict[Partition, int] = {}

    def news(self, positions: Mapping[Partition, int]) -> dict[Partition, Any]:
        """What of the positions is not committed yet, for ``commit``."""
        return {
            partition: TopicPartition(*partition, offset)
            for partition, offset in positions.items()
            if self.committed.get(partition) != offset
        }

    def commit(self, wanted: Mapping[Partition, Any], timeout: float) -> dict[Partition, int]:
        """Synchronously: the offsets (confluent_kafka.TopicPartition) that are durable now."""
        deadline = monotonic() + timeout
        epochs = {partition: self._assignment.epochs.get(partition) for partition in wanted}
        while True:
            ours = {
                partition: raw
                for partition, raw in wanted.items()
                if epochs[partition] is not None and self._assignment.epochs.get(partition) == epochs[partition]
            }
            if not ours:
                return {}
            error = self._try(list(ours.values()))
            if error is None:
                done = {partition: int(raw.offset) for partition, raw in ours.items()}
                self.committed.update(done)
                return done
            code = error.code()
            is_passing = code in _PASSING or (code in _MEMBERSHIP and self._drive())
            if not is_passing or monotonic() >= deadline:
                typed = from_kafka_error(error, "commit", self._addresses)
                typed.retriable = typed.retriable or is_passing
                raise typed
            if code in _PASSING:
                sleep(_PAUSE_SECONDS)

    def start(self, wanted: Mapping[Partition, Any]) -> None:
        """Asynchronously: what comes of it is known to ``on_commit``."""
        ours = [raw for partition, raw in wanted.items() if partition in self._assignment.epochs]
        if not ours:
            return
        try:
            self._handle.commit(offsets=ours, asynchronous=True)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], "commit", self._addresses) from error

    def on_commit(self, error: Any, raw_partitions: list[Any]) -> None:
        """The end of an asynchronous commit; a failed one is only logged: the next one covers it."""
        if error is not None:
            _logger.warning("an asynchronous commit failed: %s", error)
            return
        for raw in raw_partitions:
            partition = partition_of(raw)
            if raw.error is None and raw.offset >= 0 and partition in self._assignment.epochs:
                self.committed[partition] = raw.offset

    def forget(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self.committed.pop(partition, None)

    def _try(self, offsets: list[Any]) -> Any:
        """One request: None, or the error."""
        try:
            answer = self._handle.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            return error.args[0]
        return next((raw.error for raw in answer if raw.error is not None), None)
