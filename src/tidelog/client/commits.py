"""The commits of a consumer. What ``commit`` returns is durable, and a partition that it leaves out belongs to another member by
now.

A partition is missing when it left this consumer in the meantime. Its new owner handles its messages again, which is what
at-least-once means, so it is no error. An offset is never committed for a partition that left and came back in between (its epoch
differs), because another member may have been further.

A group that is rebalancing refuses commits until the consumer has answered, which only a poll does. ``commit`` therefore polls in
between (``poll_once``); messages that arrive that way wait for the caller in ``Arrivals``.
"""

import logging
from collections.abc import Callable, Mapping
from time import monotonic, sleep

from confluent_kafka import KafkaError

from tidelog.client.assignment import Assignment
from tidelog.client.errors import TidelogError
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.client.topic_partition import TopicPartition

_logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.05

# A poll resolves these: the rebalance continues, or the consumer learns that it has lost its partitions.
_MEMBERSHIP = frozenset(
    (
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.STALE_MEMBER_EPOCH,
    )
)
# The broker or the coordinator is unavailable for a moment. The commit may have been done; repeating it does no harm.
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
    """Remembers what is committed, so that an unchanged position is not committed again."""

    __slots__ = ("_assignment", "_committed", "_poll_once", "_raw")

    def __init__(self, raw: RawConsumer, assignment: Assignment, poll_once: Callable[[], bool]) -> None:
        """``poll_once`` returns False where it cannot poll, which is within a callback of a poll."""
        self._raw = raw
        self._assignment = assignment
        self._poll_once = poll_once
        self._committed: dict[TopicPartition, int] = {}

    def changed(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetCommit]:
        """The positions that are not committed yet, for ``commit`` and ``start``."""
        return {
            partition: OffsetCommit(partition, offset)
            for partition, offset in positions.items()
            if self._committed.get(partition) != offset
        }

    def commit(self, wanted: Mapping[TopicPartition, OffsetCommit], timeout: float) -> dict[TopicPartition, int]:
        """Wait for the commit, and return the offsets that are durable now."""
        deadline = monotonic() + timeout
        epochs = {partition: self._assignment.epoch(partition) for partition in wanted}
        while True:
            ours = {
                partition: each
                for partition, each in wanted.items()
                if epochs[partition] is not None and self._assignment.epoch(partition) == epochs[partition]
            }
            if not ours:
                return {}
            error = self._try(ours)
            if error is None:
                done = {partition: each.offset for partition, each in ours.items()}
                self._committed.update(done)
                return done
            is_passing = error.code in _PASSING or (error.code in _MEMBERSHIP and self._poll_once())
            if not is_passing or monotonic() >= deadline:
                raise type(error)(str(error), code=error.code, retriable=error.retriable or is_passing) from error
            if error.code in _PASSING:
                sleep(_PAUSE_SECONDS)

    def start(self, wanted: Mapping[TopicPartition, OffsetCommit]) -> None:
        """Start a commit in the background; ``on_commit`` gets the result."""
        ours = [each for partition, each in wanted.items() if self._assignment.epoch(partition) is not None]
        if ours:
            self._raw.start_commit(ours)

    def on_commit(self, results: list[tuple[OffsetCommit, TidelogError | None]]) -> None:
        """Handle the result of a background commit. A failure is only logged, because the next commit covers it."""
        for commit, error in results:
            if error is not None:
                _logger.warning("the background commit of %s failed: %s", commit.partition, error)
            elif commit.offset >= 0 and self._assignment.epoch(commit.partition) is not None:
                self._committed[commit.partition] = commit.offset

    def forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)

    def _try(self, commits: Mapping[TopicPartition, OffsetCommit]) -> TidelogError | None:
        try:
            return next(iter(self._raw.try_commit(commits.values()).values()), None)
        except TidelogError as error:
            return error
