"""One shard of the share coordinator: it keeps what the engines must find again after a restart or a change of leader.

The leader of a partition asks for the state when its engine begins, and writes every change. A write is an *update*; after 500 of
them, and whenever the state starts over, a *snapshot* follows. Partitions that nobody writes to get a snapshot now and then, so
that everything below the oldest snapshot that still counts can be deleted (``redundant_offset``).

Two epochs keep out those who are late. The *leader epoch* is the one of the partition: a leader that was replaced gets
FENCED_LEADER_EPOCH. The *state epoch* rises when an administrator sets the offsets: an engine that has not heard of it gets
FENCED_STATE_EPOCH, and begins again. Error messages are Kafka's.

A write may come twice, or late and after others of the same leader, because a leader whose request was not answered sends it
again. So nothing that is final becomes available again, and no delivery count falls, unless the state starts over.

It starts over when it is initialized, and with a write of a later state epoch. A leader does that when its log has lost records
that the state is about (``ShareState.within``): others will get their offsets, and nobody has received those.
"""

from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.ports.clock import Clock
from tidelog.queues.offset_ranges import OffsetRanges
from tidelog.queues.records import (
    UNCHANGED_OFFSET,
    UNKNOWN_COUNT,
    SharePartitionKey,
    ShareSnapshotRecord,
    ShareSnapshotValue,
    ShareUpdateRecord,
    ShareUpdateValue,
)
from tidelog.queues.states import FINAL_STATES, RecordState, StateBatch
from tidelog.wire.errors import ErrorCode

UNINITIALIZED_OFFSET = -1
NO_EPOCH = -1
# All snapshots of one decision are one batch of the log, which is refused above a MiB. A range takes 20 bytes of it, and what
# comes with the ranges of a snapshot as much as ten of them and a long name of a group.
SNAPSHOT_RANGES_MAX = 50_000
RANGES_PER_SNAPSHOT = 30


class ShareStateWrite(NamedTuple):
    """What a leader writes about one partition."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()


class ShareState(NamedTuple):
    """What a leader reads."""

    state_epoch: int
    start_offset: int
    """-1 until a leader has found out where the group begins."""
    batches: tuple[StateBatch, ...]

    def within(self, end_offset: int) -> "ShareState":
        """This state if it is about nothing from ``end_offset`` on. Otherwise one that starts over without that."""
        if self.start_offset <= end_offset and (not self.batches or self.batches[-1].last_offset < end_offset):
            return self
        kept = [
            each._replace(last_offset=min(each.last_offset, end_offset - 1))
            for each in self.batches
            if each.first_offset < end_offset
        ]
        # What does not fit into the snapshot is delivered again.
        room = SNAPSHOT_RANGES_MAX - RANGES_PER_SNAPSHOT
        return ShareState(self.state_epoch + 1, min(self.start_offset, end_offset), tuple(kept[:room]))


class ShareStateSummary(NamedTuple):
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
    redelivered_count: int = UNKNOWN_COUNT
    """How many records are not settled although they were delivered before. On a queue topic, deliveries that have not ended are
    among them: they are counted when they begin."""

    def is_written_before(self, leader_epoch: int) -> bool:
        """Whether a leader has written the state, and all of it is from earlier leaders than this one. What was only initialized
        has no count, because only a leader knows how much it has settled."""
        return self.delivery_complete_count != UNKNOWN_COUNT and self.leader_epoch < leader_epoch


class ShareProgress(NamedTuple):
    """How far a group has come in a log that begins at some offset."""

    start_offset: int
    """The first offset that is not settled, or that the log has lost before anybody has settled it."""
    settled: int
    """How many offsets from there on are settled."""
    settled_lost: int
    """How many of those the log has no longer."""


class _Entry:
    """The state of one key. Its ranges have no locks."""

    __slots__ = (
        "create_timestamp",
        "delivery_complete_count",
        "initialized_epoch",
        "leader_epoch",
        "ranges",
        "snapshot_epoch",
        "snapshot_offset",
        "state_epoch",
        "updates",
        "write_timestamp",
    )

    def __init__(self, value: ShareSnapshotValue, offset: int, previous: "_Entry | None" = None) -> None:
        self.snapshot_epoch = value.snapshot_epoch
        self.state_epoch = value.state_epoch
        self.leader_epoch = value.leader_epoch
        self.create_timestamp = value.create_timestamp
        self.write_timestamp = value.write_timestamp
        self.delivery_complete_count = value.delivery_complete_count
        self.snapshot_offset = offset
        self.updates = 0
        self.ranges = OffsetRanges(value.start_offset)
        self._put(value.state_batches)
        # With which state epoch an administrator or the group began the state, as far as the log tells. A leader that starts over
        # takes a later one.
        self.initialized_epoch: int = NO_EPOCH if previous is None else previous.initialized_epoch
        if self.is_untouched and not value.state_batches:
            self.initialized_epoch = value.state_epoch

    def update(self, value: ShareUpdateValue) -> None:
        self.updates += 1
        self.leader_epoch = max(self.leader_epoch, value.leader_epoch)
        if value.start_offset != UNCHANGED_OFFSET:
            self.ranges.move_start(value.start_offset)
        self._put(value.state_batches)
        if value.delivery_complete_count != UNKNOWN_COUNT:
            # Not the leader's figure: in a late write it is that of an earlier time.
            self.delivery_complete_count = self.ranges.final

    @property
    def is_untouched(self) -> bool:
        """Whether no leader has read or written the state since it was initialized."""
        return self.delivery_complete_count == UNKNOWN_COUNT and not self.leader_epoch

    def news_in(self, batches: tuple[StateBatch, ...]) -> tuple[StateBatch, ...]:
        """The batches without what a late write would take back: final states, and deliveries that were counted."""
        ranges = self.ranges
        if all(
            batch.delivery_state in FINAL_STATES or not self._takes_back(batch, row)
            for batch in batches
            for row in ranges.rows_between(batch.first_offset, batch.last_offset)
        ):
            return batches
        news: list[StateBatch] = []
        for batch in batches:
            if batch.delivery_state in FINAL_STATES:
                news.append(batch)
                continue
            first = batch.first_offset
            for row in ranges.rows_between(batch.first_offset, batch.last_offset):
                if self._takes_back(batch, row):
                    row_first, row_last = ranges.bounds(row)
                    if first < row_first:
                        news.append(batch._replace(first_offset=first, last_offset=row_first - 1))
                    first = row_last + 1
            if first <= batch.last_offset:
                news.append(batch._replace(first_offset=first))
        return tuple(news)

    def _takes_back(self, batch: StateBatch, row: int) -> bool:
        return self.ranges.state(row) in FINAL_STATES or batch.delivery_count < self.ranges.count(row)

    def _put(self, batches: Iterable[StateBatch]) -> None:
        ranges = self.ranges
        for first, last, delivery_state, delivery_count in batches:
            first = max(first, ranges.start_offset)
            if last < first:
                continue
            if first > ranges.end_offset:
                ranges.extend(first - 1, RecordState.AVAILABLE)
            ranges.extend(last, RecordState.AVAILABLE)
            state = RecordState(delivery_state) if delivery_state in FINAL_STATES else RecordState.AVAILABLE
            rows = ranges.isolate(first, last)
            for row in rows:
                ranges.set(row, state, delivery_count)
            ranges.merge(rows)

    @property
    def batches(self) -> tuple[StateBatch, ...]:
        """The state, without the offsets that were never settled: nothing was written about them."""
        ranges = self.ranges
        return tuple(
            [
                StateBatch(*ranges.bounds(row), ranges.state(row), ranges.count(row))
                for row in range(len(ranges))
                if ranges.state(row) != RecordState.AVAILABLE or ranges.count(row)
            ]
        )

    def snapshot(self, now_ms: int) -> ShareSnapshotValue:
        return ShareSnapshotValue(
            self.snapshot_epoch + 1,
            self.state_epoch,
            self.leader_epoch,
            self.ranges.start_offset,
            self.create_timestamp,
            now_ms,
            self.batches,
            self.delivery_complete_count,
        )


class ShareCoordinator:
    __slots__ = ("_clock", "_end_offset", "_entries", "_updates_max")

    def __init__(self, clock: Clock, updates_max: int) -> None:
        """After ``updates_max`` updates of a key, a snapshot follows."""
        self._clock = clock
        self._updates_max = updates_max
        self._entries: dict[SharePartitionKey, _Entry] = {}
        self._end_offset = 0

    # -- decisions -----------------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> CoordinatorResult:
        """Start over at an offset, or where the group's setting says if that is -1. It may come twice, the second time after a
        leader has begun to work with the state: what that has written stays."""
        entry = self._entries.get(key)
        if entry is not None and state_epoch < entry.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        if entry is not None and start_offset == UNINITIALIZED_OFFSET and state_epoch == entry.state_epoch:
            return CoordinatorResult()  # The group did not hear that this was done before.
        if entry is not None and state_epoch == entry.initialized_epoch == entry.state_epoch and not entry.is_untouched:
            return CoordinatorResult()
        now_ms = self._clock.now_ms()
        snapshot_epoch = 0 if entry is None else entry.snapshot_epoch + 1
        value = ShareSnapshotValue(snapshot_epoch, state_epoch, 0, start_offset, now_ms, now_ms, (), UNKNOWN_COUNT)
        return CoordinatorResult([ShareSnapshotRecord(key, value)])

    def write(self, key: SharePartitionKey, change: ShareStateWrite) -> CoordinatorResult:
        entry = self._find(key, "Write")
        self._check_leader(entry, change.leader_epoch)
        if change.state_epoch < entry.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        return CoordinatorResult([self._record(key, entry, change)])

    def read(self, key: SharePartitionKey, leader_epoch: int) -> CoordinatorResult:
        """The response is a ShareState. From here on, earlier leaders are fenced."""
        entry = self._find(key, "Read")
        self._check_leader(entry, leader_epoch)
        response = ShareState(entry.state_epoch, entry.ranges.start_offset, entry.batches)
        if leader_epoch in (NO_EPOCH, entry.leader_epoch):
            return CoordinatorResult(response=response)
        count = entry.delivery_complete_count
        change = ShareStateWrite(entry.state_epoch, leader_epoch, entry.ranges.start_offset, count)
        return CoordinatorResult([self._record(key, entry, change)], response)

    def summary(self, key: SharePartitionKey) -> ShareStateSummary:
        entry = self._entries.get(key)
        if entry is None:
            return ShareStateSummary()
        ranges, count = entry.ranges, entry.delivery_complete_count
        return ShareStateSummary(entry.state_epoch, entry.leader_epoch, ranges.start_offset, count, ranges.redelivered)

    def delete(self, key: SharePartitionKey) -> CoordinatorResult:
        return CoordinatorResult([ShareSnapshotRecord(key, None)] if key in self._entries else [])

    def delete_topics(self, topic_ids: Set[bytes]) -> CoordinatorResult:
        return CoordinatorResult([ShareSnapshotRecord(key, None) for key in self._entries if key.topic_id in topic_ids])

    def topic_ids(self) -> Set[bytes]:
        """The topics that have states."""
        return {key.topic_id for key in self._entries}

    def snapshot_cold(self, age_ms: int) -> CoordinatorResult:
        """Write snapshots of what was last written this long ago, because nothing before it can be deleted otherwise. If no
        partition has been written to since its last snapshot, there is nothing to gain."""
        if not any(entry.updates for entry in self._entries.values()):
            return CoordinatorResult()
        now_ms = self._clock.now_ms()
        snapshots: list[ShareSnapshotRecord] = []
        room = SNAPSHOT_RANGES_MAX
        for key, entry in self._entries.items():
            if now_ms - entry.write_timestamp >= age_ms:
                value = entry.snapshot(now_ms)
                size = len(value.state_batches) + RANGES_PER_SNAPSHOT
                # The others have their turn the next time, because these are not cold then.
                if size <= room:
                    room -= size
                    snapshots.append(ShareSnapshotRecord(key, value))
        return CoordinatorResult(snapshots)

    # -- queries -------------------------------------------------------------------------------------------------------------

    def keys(self) -> list[SharePartitionKey]:
        return list(self._entries)

    def progress(self, key: SharePartitionKey, log_start_offset: int) -> ShareProgress | None:
        """None if the state was deleted. A group that has not begun has everything to do that the log has: where it begins is
        decided when its first member comes."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        ranges = entry.ranges
        if ranges.start_offset == UNINITIALIZED_OFFSET:
            return ShareProgress(log_start_offset, 0, 0)
        return ShareProgress(ranges.start_offset, ranges.final, ranges.final_below(log_start_offset))

    def redundant_offset(self) -> int:
        """Everything below this offset says nothing that later records do not say again."""
        return min((entry.snapshot_offset for entry in self._entries.values()), default=self._end_offset)

    def __len__(self) -> int:
        return len(self._entries)

    def _find(self, key: SharePartitionKey, operation: str) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        return entry

    def _check_leader(self, entry: _Entry, leader_epoch: int) -> None:
        if NO_EPOCH < leader_epoch < entry.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)

    def _record(self, key: SharePartitionKey, entry: _Entry, change: ShareStateWrite) -> Any:
        batches = entry.news_in(change.batches)
        start_offset = max(entry.ranges.start_offset, change.start_offset)
        update = ShareUpdateValue(
            entry.snapshot_epoch, change.leader_epoch, start_offset, batches, change.delivery_complete_count
        )
        is_same_state = change.state_epoch <= entry.state_epoch
        if is_same_state and not self._is_snapshot_due(entry):
            return ShareUpdateRecord(key, update)
        now_ms = self._clock.now_ms()
        # The state with this change in it, or that alone; replay puts it in the place of the entry.
        value = entry.snapshot(now_ms)
        if not is_same_state:
            value = value._replace(start_offset=change.start_offset, state_batches=())
            update = update._replace(start_offset=change.start_offset, state_batches=change.batches)
        changed = _Entry(value, 0)
        changed.update(update)
        value = changed.snapshot(now_ms)
        if is_same_state and len(value.state_batches) + RANGES_PER_SNAPSHOT > SNAPSHOT_RANGES_MAX:
            # It would be refused, and so would every later write: nothing of the partition could be handed out any more.
            return ShareUpdateRecord(key, update)
        return ShareSnapshotRecord(
            key, value._replace(snapshot_epoch=entry.snapshot_epoch + 1, state_epoch=max(entry.state_epoch, change.state_epoch))
        )

    def _is_snapshot_due(self, entry: _Entry) -> bool:
        """A snapshot that was too large is tried again after as many updates."""
        return entry.updates >= self._updates_max and not entry.updates % max(1, self._updates_max)

    # -- the runtime ---------------------------------------------------------------------------------------------------------

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:  # noqa: ARG002 - no transactions
        self._end_offset = offset + 1
        if type(record) is ShareUpdateRecord:
            entry = self._entries.get(record.key)
            # An update without its snapshot is what deleting a prefix may leave of a key that was deleted.
            if entry is not None:
                entry.update(record.value)
        elif record.value is None:
            self._entries.pop(record.key, None)
        else:
            self._entries[record.key] = _Entry(record.value, offset, self._entries.get(record.key))

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Nobody writes to this topic in a transaction."""

    def on_loaded(self) -> None:
        """There are no time-outs: the engines keep the locks."""

    def on_dropped(self, error: Exception) -> None:
        """Nobody waits: every request is answered by its own decision."""
