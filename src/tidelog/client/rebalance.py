"""What happens when partitions come and go. All of it runs within a poll, called by librdkafka, in the poll's thread.

*Assigned*: where each partition starts is settled before librdkafka reads from it: a seek that waited for it or that
``on_assigned`` makes, else the committed offset, else ``start=``. When that cannot be found out right now the partition stays
paused and is asked about again with every poll: nothing is read from a wrong place. *Revoked*: the partition is still ours while
``on_revoked`` runs, so it may commit. *Lost*: others have it already, nothing may be committed; ``on_revoked`` is not called.

A callback that raises must not reach librdkafka's loop, which would drop the messages that it has in its hands. It is raised
by the poll afterwards.
"""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from tidelog.client.assignment import Assignment
from tidelog.client.commits import Commits
from tidelog.client.consumer_settings import Start
from tidelog.client.errors import TidelogError, from_kafka_error
from tidelog.client.start import OffsetLookup, start_offsets
from tidelog.client.topic_partition import Partition, partition_of, raw_partitions

_logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[list[Partition]], object]

# Requests within a rebalance, which waits for them.
LOOKUP_TIMEOUT_SECONDS = 10.0
_REVOKE_COMMIT_SECONDS = 5.0


class Rebalance:
    """librdkafka's callbacks, and ours after them."""

    def __init__(
        self,
        handle: Any,
        addresses: str,
        assignment: Assignment,
        commits: Commits,
        lookup: OffsetLookup,
        start: Start,
        *,
        is_incremental: bool,
        callbacks: tuple[RebalanceCallback | None, RebalanceCallback | None, RebalanceCallback | None],
    ) -> None:
        self._handle = handle
        self._addresses = addresses
        self._assignment = assignment
        self._commits = commits
        self._lookup = lookup
        self._start = start
        self._is_incremental = is_incremental
        self._on_assigned, self._on_revoked, self._on_lost = callbacks
        self.is_running = False
        """A callback is under way: no poll may be made from within it."""
        self.starting: dict[Partition, int] | None = None
        """While partitions are being assigned: where they start. A seek goes in here."""
        self.waiting_seeks: dict[Partition, int] = {}
        """Seeks of before the first assignment."""
        self.had_assignment = False
        self.handled: dict[Partition, int] = {}
        """What may be committed when partitions are revoked: positions that are known to be handled."""
        self.went_with_messages = False
        """Partitions went while messages of this consumer were being processed; for exactly-once."""
        self._unresolved: list[Partition] = []
        self.failures: list[BaseException] = []

    # -- called by librdkafka ------------------------------------------------------------------------------------------------

    def assigned(self, _handle: Any, raw: list[Any]) -> None:
        partitions = [partition_of(one) for one in raw]
        self.is_running = True
        try:
            self._assign(partitions)
        except TidelogError as error:
            self.failures.append(error)
        finally:
            self.starting = None
            self.is_running = False

    def revoked(self, _handle: Any, raw: list[Any]) -> None:
        partitions = [partition_of(one) for one in raw]
        self.is_running = True
        try:
            self._call(self._on_revoked, partitions)
            self._commit_handled(partitions)
            self._forget(partitions)
        finally:
            self.is_running = False

    def lost(self, _handle: Any, raw: list[Any]) -> None:
        partitions = [partition_of(one) for one in raw]
        _logger.warning("lost %s: another member may have them already", _names(partitions))
        self.is_running = True
        try:
            self._forget(partitions)
            self._call(self._on_lost, partitions)
        finally:
            self.is_running = False

    # -- called by the consumer ----------------------------------------------------------------------------------------------

    def resolve_starts(self) -> None:
        """Again for the partitions whose start could not be found out."""
        if not self._unresolved:
            return
        partitions = [partition for partition in self._unresolved if partition in self._assignment.epochs]
        offsets = self._fresh_starts(partitions)
        self._unresolved = []
        for partition, offset in offsets.items():
            if partition not in self._assignment.unsought:
                self._assignment.start_at(partition, offset)
                self._assignment.unsought[partition] = offset
        self._handle.resume(raw_partitions(partition for partition in partitions if partition not in self._assignment.paused))

    def silence(self) -> None:
        """No more callbacks of the caller's."""
        self._on_assigned = self._on_revoked = self._on_lost = None

    @property
    def is_unresolved(self) -> bool:
        return bool(self._unresolved)

    # -- details -------------------------------------------------------------------------------------------------------------

    def _assign(self, partitions: list[Partition]) -> None:
        self.had_assignment = True
        self._assignment.add(partitions)
        self.starting = {}
        unresolved: list[Partition] = []
        if not self._start.is_earliest and partitions:
            try:
                self.starting = self._fresh_starts(partitions)
            except TidelogError as error:
                _logger.warning("where to start in %s is not known yet: %s", _names(partitions), error)
                unresolved = partitions
        for partition in partitions:
            if partition in self.waiting_seeks:
                self.starting[partition] = self.waiting_seeks.pop(partition)
        self._call(self._on_assigned, partitions)
        self._hand_to_librdkafka(partitions, self.starting)
        self._unresolved += [partition for partition in unresolved if partition not in self.starting]
        stopped = [*self._assignment.paused.intersection(partitions), *unresolved]
        if stopped:
            self._handle.pause(raw_partitions(dict.fromkeys(stopped)))

    def _hand_to_librdkafka(self, partitions: list[Partition], starts: dict[Partition, int]) -> None:
        raw = raw_partitions(partitions)
        for one in raw:
            offset = starts.get(partition_of(one))
            if offset is not None:
                one.offset = offset
                self._assignment.start_at(partition_of(one), offset)
        try:
            if not self._is_incremental:
                self._handle.assign(raw)
            elif raw:
                self._handle.incremental_assign(raw)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], "assign", self._addresses) from error

    def _fresh_starts(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Where nothing is committed: the start, committed at once (see ``start.py`` for why)."""
        committed = self._lookup.committed(partitions, LOOKUP_TIMEOUT_SECONDS)
        fresh = [partition for partition in partitions if partition not in committed]
        offsets = start_offsets(self._lookup, fresh, self._start, LOOKUP_TIMEOUT_SECONDS)
        wanted = {partition: TopicPartition(*partition, offset) for partition, offset in offsets.items()}
        self._commits.commit(wanted, LOOKUP_TIMEOUT_SECONDS)
        return offsets

    def _commit_handled(self, partitions: list[Partition]) -> None:
        positions = {partition: self.handled[partition] for partition in partitions if partition in self.handled}
        try:
            self._commits.commit(self._commits.news(positions), _REVOKE_COMMIT_SECONDS)
        except TidelogError as error:
            _logger.warning("what was handled of %s could not be committed and will come again: %s", _names(partitions), error)

    def _forget(self, partitions: list[Partition]) -> None:
        if partitions:
            self.went_with_messages = True
        self._resume(partitions)
        self._assignment.remove(partitions)
        self._commits.forget(partitions)
        for partition in partitions:
            self.handled.pop(partition, None)

    def _resume(self, partitions: list[Partition]) -> None:
        """librdkafka remembers what was paused: a partition that comes back would never be read again."""
        stopped = self._assignment.paused.union(self._unresolved).intersection(partitions)
        try:
            self._handle.resume(raw_partitions(sorted(stopped)))
        except KafkaException as error:
            self.failures.append(from_kafka_error(error.args[0], "resume", self._addresses))

    def _call(self, callback: RebalanceCallback | None, partitions: list[Partition]) -> None:
        if callback is None:
            return
        try:
            callback(partitions)
        except BaseException as error:
            # Also an interrupt: see above.
            self.failures.append(error)


def _names(partitions: list[Partition]) -> str:
    return ", ".join(f"{topic}[{partition}]" for topic, partition in partitions) or "nothing"
