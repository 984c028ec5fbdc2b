"""Handles the arrival and departure of a ``Consumer``'s partitions. All of it runs within a poll, in the poll's thread.

*Assigned*: where each partition starts is decided before librdkafka reads from it: at a seek that was made before or that
``on_assigned`` makes, else at the committed offset, else at ``start=``. When the offset cannot be looked up right now, the
partition stays paused and the lookup is repeated with every poll, so nothing is read from a wrong offset. *Revoked*: the
partition still belongs to this consumer while ``on_revoked`` runs, so it may commit. *Lost*: other members may have the partition
already, so nothing may be committed and ``on_revoked`` is not called.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog.client.assignment import Assignment
from tidelog.client.commits import Commits
from tidelog.client.consumer_settings import StartPosition
from tidelog.client.errors import TidelogError
from tidelog.client.offset_queries import OffsetQueries, start_offsets
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.client.topic_partition import TopicPartition

_logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[list[TopicPartition]], object]

# The group waits for requests that are made within a rebalance.
LOOKUP_TIMEOUT_SECONDS = 10.0
_REVOKE_COMMIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RebalanceCallbacks:
    """The application's callbacks."""

    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None


class Rebalance:
    """The consumer's rebalance callbacks."""

    def __init__(
        self,
        raw: RawConsumer,
        assignment: Assignment,
        commits: Commits,
        lookup: OffsetQueries,
        start: StartPosition,
        callbacks: RebalanceCallbacks,
    ) -> None:
        self._raw = raw
        self._assignment = assignment
        self._commits = commits
        self._lookup = lookup
        self._start = start
        self._callbacks = callbacks
        self.is_running = False
        """Whether a callback is under way: no poll may be made from within it."""
        self.had_assignment = False
        self._starts: dict[TopicPartition, int] | None = None
        # Seeks that were made before the first assignment.
        self._early_seeks: dict[TopicPartition, int] = {}
        self._handled: Mapping[TopicPartition, int] = {}
        self._unresolved: list[TopicPartition] = []
        self._has_unsent_messages = False
        self._has_left_with_messages = False

    # -- called by librdkafka, within a poll -----------------------------------------------------------------------------------

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.is_running = True
        try:
            self._assign(partitions)
        finally:
            self._starts = None
            self.is_running = False

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.is_running = True
        try:
            self._call(self._callbacks.on_revoked, partitions)
            self._commit_handled(partitions)
            self._forget(partitions)
        finally:
            self.is_running = False

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        _logger.warning("lost %s: another member may have them already", _names(partitions))
        self.is_running = True
        try:
            self._forget(partitions)
            self._call(self._callbacks.on_lost, partitions)
        finally:
            self.is_running = False

    # -- called by the consumer ----------------------------------------------------------------------------------------------

    @property
    def is_assigning(self) -> bool:
        """Whether librdkafka does not have the new partitions yet, so that it cannot pause, resume or seek in them."""
        return self._starts is not None

    def start_at(self, partition: TopicPartition, offset: int) -> None:
        """Seek while partitions are being assigned."""
        assert self._starts is not None, "no assignment is under way"
        self._starts[partition] = offset

    def seek_early(self, partition: TopicPartition, offset: int) -> None:
        """Seek before the first assignment: the partition starts there when it arrives."""
        self._early_seeks[partition] = offset

    def note_handled(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that all messages before these positions are handled: they are committed when their partitions are revoked."""
        self._handled = positions

    def note_handed_out(self) -> None:
        """Note that messages were handed out whose offsets are not in a transaction yet."""
        if not self._has_unsent_messages:
            self._has_unsent_messages = True
            self._has_left_with_messages = False

    def clear_handed_out(self) -> None:
        self._has_unsent_messages = False

    @property
    def has_lost_messages(self) -> bool:
        """Whether partitions have left while messages of this consumer were being processed, so that their offsets cannot be
        committed."""
        return self._has_left_with_messages and self._has_unsent_messages

    @property
    def is_unresolved(self) -> bool:
        return bool(self._unresolved)

    def resolve_starts(self) -> None:
        """Repeat the lookup for the partitions whose start could not be found out."""
        partitions = [partition for partition in self._unresolved if partition in self._assignment]
        offsets = self._fresh_starts(partitions)
        self._unresolved = []
        for partition, offset in offsets.items():
            if partition not in self._assignment.pending_seeks:
                self._assignment.seek(partition, offset)
        self._raw.resume(partition for partition in partitions if partition not in self._assignment.paused)

    def silence(self) -> None:
        """Call no more callbacks of the application."""
        self._callbacks = RebalanceCallbacks()

    # -- details -------------------------------------------------------------------------------------------------------------

    def _assign(self, partitions: list[TopicPartition]) -> None:
        self.had_assignment = True
        self._assignment.add(partitions)
        starts: dict[TopicPartition, int] = {}
        unresolved: list[TopicPartition] = []
        if not self._start.is_earliest and partitions:
            try:
                starts = self._fresh_starts(partitions)
            except TidelogError as error:
                _logger.warning("the start offsets of %s are not known yet: %s", _names(partitions), error)
                unresolved = partitions
        for partition in partitions:
            if partition in self._early_seeks:
                starts[partition] = self._early_seeks.pop(partition)
        self._starts = starts
        self._call(self._callbacks.on_assigned, partitions)
        for partition in partitions:
            if partition in starts:
                self._assignment.start_at(partition, starts[partition])
        self._raw.accept_assignment({partition: starts.get(partition) for partition in partitions})
        self._unresolved += [partition for partition in unresolved if partition not in starts]
        self._raw.pause(dict.fromkeys((*self._assignment.paused.intersection(partitions), *unresolved)))

    def _fresh_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start of partitions without a commit, and commit it at once (``offset_queries.py`` says why)."""
        committed = self._lookup.committed(partitions, LOOKUP_TIMEOUT_SECONDS)
        fresh = [partition for partition in partitions if partition not in committed]
        offsets = start_offsets(self._lookup, fresh, self._start, LOOKUP_TIMEOUT_SECONDS)
        wanted = {partition: OffsetCommit(partition, offset) for partition, offset in offsets.items()}
        self._commits.commit(wanted, LOOKUP_TIMEOUT_SECONDS)
        return offsets

    def _commit_handled(self, partitions: list[TopicPartition]) -> None:
        positions = {partition: self._handled[partition] for partition in partitions if partition in self._handled}
        try:
            self._commits.commit(self._commits.changed(positions), _REVOKE_COMMIT_SECONDS)
        except TidelogError as error:
            _logger.warning(
                "the handled messages of %s could not be committed and will come again: %s", _names(partitions), error
            )

    def _forget(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._has_left_with_messages = True
        # librdkafka remembers what was paused: a partition that comes back would never be read again.
        stopped = self._assignment.paused.union(self._unresolved).intersection(partitions)
        try:
            self._raw.resume(sorted(stopped))
        except TidelogError as error:
            self._raw.failures.append(error)
        self._assignment.remove(partitions)
        self._commits.forget(partitions)
        gone = set(partitions)
        self._handled = {partition: offset for partition, offset in self._handled.items() if partition not in gone}

    def _call(self, callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
        if callback is None:
            return
        try:
            callback(partitions)
        except BaseException as error:  # The rebalance must be completed in any case; the poll raises the error afterwards.
            self._raw.failures.append(error)


def _names(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"
