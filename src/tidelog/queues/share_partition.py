"""The engine: what one group has handed out of one partition, to whom, until when, and how often.

```
                    acquire                     accept
     AVAILABLE ----------------> ACQUIRED ----------------> ACKNOWLEDGED
         ^      count + 1            |  |        reject, gap
         |                           |  +-----------------> ARCHIVED
         +---------------------------+                          ^
            release, lock time-out   |                          |
            (count below the limit)  +--------------------------+
                                      release, lock time-out at the limit
```

A group that keeps dead letters has one more state. What is rejected, or released at the limit, is ARCHIVING until its letter is
durable (``take_dead``, ``archive_dead``), and ARCHIVED then. Until then nothing of it is written, so that a crash delivers it
again.

The window goes from the *start offset*, the first one whose state is not final, to the last one that was ever handed out. Below
it everything is done, above it everything is available. The start offset never falls.

How much may be handed out at once depends on the topic. On ordinary topics it is the *width* of the window that is limited, as in
Kafka, so that one record that nobody settles stops new ones after 2,000; what is inside the window can still be delivered again.
On queue topics the records that are acquired and the rows of the table are limited instead, so that a stuck record stops
nothing. With too many rows, the window stays as it is, and only such records are handed out whose settling adds no row.

The records of a queue topic may have times (``DeliveryTimes``). One that is not due when the log shows it is DELAYED until it is:
then it is available again, and the log is read again. One that nobody has received before it expires is archived. Both are
decided when a record would be handed out, by the caller's wall clock, so neither comes early or late.

On a queue topic every acquisition is written, as an available record with the raised count, and the caller hands nothing out
before that is done. So what kills its member or the broker reaches the delivery limit, however often the broker restarts.

In a group with an order by key (``KeyOrder``), a record is WAITING while an earlier one with its key is not settled.

A record that fails again and again may have spoilt the others that were delivered with it. From half of the delivery limit on,
fewer and fewer of them are delivered together, never with others, and the last attempt delivers one record alone.

Nothing here waits, reads or writes. The caller reads the log and says which batches there are, and writes what ``take_update``
returns. A change takes effect at once; if it cannot be written, the whole partition is dropped and loaded again from what was
written, and locks are forgotten, as after a crash. Time is an argument.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from tidelog.controller.errors import ApiError
from tidelog.queues.acknowledgements import AcknowledgementBatch, AcknowledgeType
from tidelog.queues.delays import DelayWheel
from tidelog.queues.key_order import LOOK_AHEAD_MAX, KeyOrder, RecordKey
from tidelog.queues.lock_wheel import LockWheel
from tidelog.queues.offset_ranges import OffsetRanges
from tidelog.queues.record_times import DeliveryTimes
from tidelog.queues.states import FINAL_STATES, RecordState, StateBatch
from tidelog.wire.errors import ErrorCode

# Below this number of deliveries a record is not suspected of being poison.
THROTTLE_COUNT_MIN = 2
# The delivery count is written as 16 bits with a sign.
COUNT_MAX = 2**15 - 1


class DeliveryLimits(NamedTuple):
    """The group's settings, which may change at any time."""

    lock_duration_ms: int = 30_000
    delivery_count_max: int = 5
    width_max: int | None = 2_000
    """The limit for the width of the window; None on queue topics, where the next two hold instead."""
    acquired_max: int = 120_000
    ranges_max: int = 120_000
    has_dead_letters: bool = False
    """Whether a letter is written about what is rejected or reaches the limit, before it is archived."""
    buries_expired: bool = False
    """Whether a letter is written about what expires, too."""

    @property
    def throttle_count(self) -> int:
        """From this many deliveries on, a record is delivered with fewer others."""
        return max(THROTTLE_COUNT_MIN, -(-self.delivery_count_max // 2))


class LogBatch(NamedTuple):
    """A batch that the log has now."""

    first_offset: int
    last_offset: int
    is_skipped: bool = False
    """Whether it is not for readers: a transaction marker, or, for a group that reads committed records, an aborted batch."""
    times: Sequence[DeliveryTimes] = ()
    """The records that are not due before some time, or expire; only on queue topics."""
    keys: Sequence[RecordKey] = ()
    """The records that have keys, from the frontier on; only for a group with an order by key."""


class AcquireRequest(NamedTuple):
    member_id: str
    records_max: int
    batch_size: int = COUNT_MAX
    """Without a strict limit, acquired records are reported in pieces of about this size."""
    is_limit_strict: bool = False
    """Whether ``records_max`` may end inside of a batch (record_limit); else whole batches are acquired (batch_optimized)."""
    ranges_max: int = 1_000
    """The limit for separate ranges of the window that are acquired at once: each takes a few microseconds."""

    def after(self, acquired: "Sequence[AcquiredRecords]") -> "AcquireRequest":
        """What is left of the request."""
        count = sum(each.last_offset - each.first_offset + 1 for each in acquired)
        return self._replace(records_max=max(0, self.records_max - count), ranges_max=max(1, self.ranges_max - len(acquired)))


class AcquiredRecords(NamedTuple):
    first_offset: int
    last_offset: int
    delivery_count: int


class StateUpdate(NamedTuple):
    """The changes that have to be written."""

    start_offset: int
    delivery_complete_count: int
    """Final offsets from the start offset on."""
    batches: tuple[StateBatch, ...]


class CauseOfDeath(Enum):
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    """The delivery limit is reached."""
    EXPIRED = "expired"
    """Nobody received it before its time to live was over."""


class DeadRecords(NamedTuple):
    """Consecutive offsets that need dead letters."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: CauseOfDeath


class DeliveryOrder(Protocol):
    def next_offset(self, ranges: OffsetRanges) -> int:
        """The offset to hand out next: an available one, or the end of the window."""
        ...


class OldestFirst:
    """What was released comes before what is new."""

    __slots__ = ()

    def next_offset(self, ranges: OffsetRanges) -> int:
        index = ranges.first_with(RecordState.AVAILABLE)
        return ranges.end_offset if index < 0 else ranges.bounds(index)[0]


OLDEST_FIRST = OldestFirst()


class _Acquisition:
    """What one call of ``acquire`` has acquired so far."""

    __slots__ = ("count", "deadline_ms", "is_crowded", "is_full", "limits", "owner", "range_count", "records", "request")

    def __init__(
        self, request: AcquireRequest, limits: DeliveryLimits, owner: int, deadline_ms: int, *, is_crowded: bool
    ) -> None:
        self.request = request
        self.limits = limits
        self.owner = owner
        self.deadline_ms = deadline_ms
        self.records: list[AcquiredRecords] = []
        self.count = 0
        self.range_count = 0
        self.is_full = False
        self.is_crowded = is_crowded

    @property
    def room(self) -> int:
        return self.request.records_max - self.count

    def add(self, first: int, last: int, delivery_count: int) -> None:
        self.count += last - first + 1
        self.range_count += 1
        self.is_full = self.is_full or self.range_count >= self.request.ranges_max
        previous = self.records[-1] if self.records else None
        if previous is not None and previous[1:] == (first - 1, delivery_count) and not self._is_whole(previous, first):
            self.records[-1] = previous._replace(last_offset=last)
        else:
            self.records.append(AcquiredRecords(first, last, delivery_count))

    def _is_whole(self, records: AcquiredRecords, end_offset: int) -> bool:
        """Whether a piece has the size that the member wants, so that the next batch begins another one."""
        return not self.request.is_limit_strict and end_offset - records.first_offset >= self.request.batch_size


class SharePartition:
    __slots__ = (
        "_dead",
        "_delays",
        "_disowned",
        "_expired",
        "_freed",
        "_is_start_unwritten",
        "_keys",
        "_member_count",
        "_members",
        "_order",
        "_ranges",
        "_unwritten",
        "_wheel",
    )

    def __init__(
        self,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        order: DeliveryOrder = OLDEST_FIRST,
        *,
        is_ordered_by_key: bool = False,
    ) -> None:
        """``batches`` are what was written, in ascending order. Offsets between them were handed out and never settled before
        this broker took over, or never at all: they are available."""
        self._order = order
        self._ranges = OffsetRanges(start_offset)
        self._wheel = LockWheel()
        self._delays = DelayWheel()
        self._expired = 0
        self._keys = KeyOrder(start_offset) if is_ordered_by_key else None
        # Waiting records whose turn it is now.
        self._freed: list[int] = []
        # Numbers of members that have locks, or had some.
        self._members: dict[str, int] = {}
        self._member_count = 0
        # The numbers of members that are gone, while they still have locks.
        self._disowned: set[int] = set()
        self._unwritten: list[StateBatch] = []
        self._is_start_unwritten = False
        self._dead: list[DeadRecords] = []
        for batch in batches:
            if batch.first_offset > self._ranges.end_offset:
                self._ranges.extend(batch.first_offset - 1, RecordState.AVAILABLE)
            # A state that a newer release wrote, such as Kafka's Archiving, is one that was not settled.
            is_final = batch.delivery_state in FINAL_STATES
            state = RecordState(batch.delivery_state) if is_final else RecordState.AVAILABLE
            self._ranges.extend(batch.last_offset, state, batch.delivery_count)
        self._ranges.merge(range(len(self._ranges)))
        self._advance_start()

    # -- figures -------------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._ranges.start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that was never handed out."""
        return self._ranges.end_offset

    @property
    def acquired_count(self) -> int:
        return self._ranges.acquired

    @property
    def delayed_count(self) -> int:
        """Offsets of the window that are not due yet. Those behind the window nobody has looked at."""
        return self._ranges.delayed

    @property
    def redelivered_count(self) -> int:
        """Offsets that are not settled, and whose first delivery did not settle them."""
        return self._ranges.redelivered

    @property
    def oldest_due_offset(self) -> int:
        """The first offset of the window that is neither settled nor delayed; the end of the window if there is none."""
        return self._ranges.first_due()

    @property
    def is_ordered_by_key(self) -> bool:
        return self._keys is not None

    @property
    def key_frontier(self) -> int:
        """From this offset on, ``acquire`` has to be told the keys of records."""
        return self.end_offset if self._keys is None else self._keys.frontier

    @property
    def delay_entry_count(self) -> int:
        """The delayed records that take memory of their own, because they are due soon."""
        return self._delays.entry_count

    @property
    def range_count(self) -> int:
        """The number of rows of the table, which its size follows."""
        return len(self._ranges)

    @property
    def delivery_complete_count(self) -> int:
        return self._ranges.final

    def states(self) -> list[StateBatch]:
        """The whole table, for tests and for a description."""
        ranges = self._ranges
        rows = range(len(ranges))
        return [StateBatch(*ranges.bounds(row), ranges.state(row), ranges.count(row)) for row in rows]

    def next_lock_end_ms(self) -> int | None:
        """When ``expire`` is to be called next; None when no lock is held."""
        return self._wheel.next_deadline_ms()

    def next_due_ms(self) -> int | None:
        """When ``wake_delayed`` is to be called next, by the wall clock; None when nothing is delayed."""
        return self._delays.next_ms()

    def take_expired_count(self) -> int:
        """How many records have expired since the last call."""
        expired, self._expired = self._expired, 0
        return expired

    # -- acquiring -----------------------------------------------------------------------------------------------------------

    def next_fetch_offset(self, limits: DeliveryLimits) -> int:
        if not self._is_crowded(limits):
            return self._order.next_offset(self._ranges)
        row = self._ranges.first_beside_final()
        return self.end_offset if row < 0 else self._ranges.bounds(row)[0]

    def has_nothing_below(self, offset: int) -> bool:
        """Whether everything below ``offset`` was handed out, and nothing of it is available again. Then there is nothing to
        acquire, whatever the limits are."""
        return self._ranges.end_offset >= offset and self._ranges.first_with(RecordState.AVAILABLE) < 0

    def can_acquire(self, limits: DeliveryLimits) -> bool:
        """Whether there is anything in the window to deliver again, or room for new records."""
        if limits.width_max is None and self._ranges.acquired >= limits.acquired_max:
            return False
        return self.next_fetch_offset(limits) < self.end_offset or self._room(limits) > 0

    def is_next_suspect(self, limits: DeliveryLimits) -> bool:
        """Whether what comes next may be poison, and is not delivered with others."""
        offset = self.next_fetch_offset(limits)
        return offset < self.end_offset and self._ranges.count(self._ranges.index_of(offset)) >= limits.throttle_count

    def _is_crowded(self, limits: DeliveryLimits) -> bool:
        # The order by key bounds the width, and so the rows.
        return limits.width_max is None and self._keys is None and len(self._ranges) >= limits.ranges_max

    def _room(self, limits: DeliveryLimits) -> int:
        """How many new offsets may be handed out."""
        ranges = self._ranges
        if limits.width_max is not None:
            return limits.width_max - (ranges.end_offset - ranges.start_offset)
        if len(ranges) >= limits.ranges_max:
            return 0
        room = limits.acquired_max - ranges.acquired
        return room if self._keys is None else min(room, LOOK_AHEAD_MAX - (ranges.end_offset - ranges.start_offset))

    def acquire(
        self, request: AcquireRequest, batches: Sequence[LogBatch], limits: DeliveryLimits, now_ms: int, wall_ms: int = 0
    ) -> list[AcquiredRecords]:
        """Lock records for a member. ``batches`` are what the log has from ``next_fetch_offset`` on, without holes except those
        that compaction left: offsets that are missing there are archived, because no reader will ever settle them. ``now_ms`` is
        the time of locks, ``wall_ms`` that of the records."""
        if request.records_max <= 0:
            return []
        owner, deadline_ms = self._owner(request.member_id), now_ms + limits.lock_duration_ms
        acquisition = _Acquisition(request, limits, owner, deadline_ms, is_crowded=self._is_crowded(limits))
        position = self.next_fetch_offset(limits)
        for batch in batches:
            if batch.last_offset < position:
                continue
            if batch.first_offset > position:
                self._skip(position, batch.first_offset - 1)
                position = batch.first_offset
            if batch.is_skipped:
                self._skip(position, batch.last_offset)
            else:
                if (batch.times or self._keys is not None) and not self._take_in(batch, limits):
                    break
                if self._keys is not None:
                    self._apply_keys(batch, self._keys)
                if batch.times:
                    self._apply_times(batch, position, limits, wall_ms)
                self._acquire_known(acquisition, position, batch.last_offset)
                if not acquisition.is_full and batch.last_offset >= self.end_offset:
                    self._acquire_new(acquisition, batch.last_offset)
                if acquisition.is_full or acquisition.room <= 0:
                    break
            position = batch.last_offset + 1
        self._advance_start()
        return acquisition.records

    def _owner(self, member_id: str) -> int:
        owner = self._members.get(member_id)
        if owner is None:
            self._member_count += 1
            owner = self._members[member_id] = self._member_count
        return owner

    def _take_in(self, batch: LogBatch, limits: DeliveryLimits) -> bool:
        """Make the whole batch a part of the window, because its records are not all alike; returns whether there was room."""
        ranges = self._ranges
        if batch.last_offset >= ranges.end_offset:
            if self._room(limits) <= 0:
                return False
            ranges.extend(batch.last_offset, RecordState.AVAILABLE)
            ranges.merge(range(len(ranges) - 1, len(ranges)))
        return True

    def _apply_keys(self, batch: LogBatch, keys: KeyOrder) -> None:
        """Let those records wait that are behind unsettled ones with the same key."""
        ranges = self._ranges
        for record in batch.keys:
            offset = record.offset
            if offset < max(keys.frontier, ranges.start_offset) or ranges.state(ranges.index_of(offset)) in FINAL_STATES:
                continue
            if keys.add(record):
                rows = ranges.isolate(offset, offset)
                ranges.set(rows.start, RecordState.WAITING, ranges.count(rows.start))
                ranges.merge(rows)
        keys.move_frontier(batch.last_offset + 1)

    def _apply_times(self, batch: LogBatch, position: int, limits: DeliveryLimits, wall_ms: int) -> None:
        """Delay what is not due and archive what has expired, of the records from ``position`` on that are available."""
        ranges = self._ranges
        offset = max(position, batch.first_offset, ranges.start_offset)
        while offset <= batch.last_offset and offset < ranges.end_offset:
            row = ranges.first_with(RecordState.AVAILABLE, ranges.index_of(offset))
            if row < 0 or ranges.bounds(row)[0] > batch.last_offset:
                return
            row_first, row_last = ranges.bounds(row)
            first, last, count = max(offset, row_first), min(row_last, batch.last_offset), ranges.count(row)
            begin = bisect_left(batch.times, (first,))
            times = batch.times[begin : bisect_left(batch.times, (last + 1,), begin)]
            for run_first, run_last, state in _runs_of(times, wall_ms, may_expire=not count):
                rows = ranges.isolate(run_first, run_last)
                if state is RecordState.DELAYED:
                    ranges.set(rows.start, RecordState.DELAYED, count)
                else:
                    self._end_life(rows.start, limits)
                ranges.merge(rows)
            for each in times:
                if _state_of(each, wall_ms, may_expire=not count) is RecordState.DELAYED:
                    self._delays.add(each.due_ms, each.offset, wall_ms)
            offset = last + 1

    def _end_life(self, row: int, limits: DeliveryLimits) -> None:
        first, last = self._ranges.bounds(row)
        self._expired += last - first + 1
        if limits.has_dead_letters and limits.buries_expired:
            self._bury(row, CauseOfDeath.EXPIRED)
        else:
            self._settle(row, RecordState.ARCHIVED)

    def wake_delayed(self, wall_ms: int) -> bool:
        """Make available what is due, and what has to be looked at again. Returns whether there was anything."""
        ranges = self._ranges
        is_woken = False
        for first, last in self._delays.take_due(wall_ms):
            first, last = max(first, ranges.start_offset), min(last, ranges.end_offset - 1)
            if last < first:
                continue
            rows = ranges.isolate(first, last)
            for row in rows:
                if ranges.state(row) == RecordState.DELAYED and ranges.deadline_ms(row) <= wall_ms:
                    ranges.set(row, RecordState.AVAILABLE, ranges.count(row))
                    is_woken = True
            ranges.merge(rows)
        return is_woken

    def _acquire_known(self, acquisition: _Acquisition, first: int, last: int) -> None:
        """Acquire what is available in the window between two offsets."""
        ranges, limits = self._ranges, acquisition.limits
        position = first
        while position <= last and not acquisition.is_full:
            index = ranges.first_with(RecordState.AVAILABLE, ranges.index_of(position)) if position < self.end_offset else -1
            if index < 0:
                return
            range_first, range_last = ranges.bounds(index)
            position, end = max(position, range_first), min(range_last, last)
            if position > end:
                return
            if acquisition.is_crowded and index and ranges.state(index - 1) not in FINAL_STATES:
                position = end + 1
                continue
            count = ranges.count(index)
            if limits.width_max is None and count >= limits.delivery_count_max:
                self._give_up(position, end, limits)
                position = end + 1
                continue
            if count >= limits.throttle_count:
                if acquisition.count:
                    acquisition.is_full = True
                    return
                size = max(1, (range_last - range_first + 1) >> (count - limits.throttle_count + 1))
                if count >= limits.delivery_count_max - 1:
                    size = 1
                end = min(end, position + size - 1)
                acquisition.is_full = True
            if acquisition.request.is_limit_strict:
                end = min(end, position + acquisition.room - 1)
                acquisition.is_full = acquisition.is_full or end - position + 1 == acquisition.room
            if limits.width_max is None:
                room = limits.acquired_max - ranges.acquired
                end = min(end, position + room - 1)
                acquisition.is_full = acquisition.is_full or acquisition.is_crowded or end - position + 1 == room
            self._lock(acquisition, position, end)
            position = end + 1

    def _give_up(self, first: int, last: int, limits: DeliveryLimits) -> None:
        """Archive records whose last delivery was written, and ended with a crash instead of a release."""
        rows = self._ranges.isolate(first, last)
        for row in rows:
            self._release(row, limits)
        self._ranges.merge(rows)

    def _acquire_new(self, acquisition: _Acquisition, last: int) -> None:
        """Move the end of the window, by a whole batch unless the limit is strict. A batch that is wider than the window may be
        is cut all the same: it may have a million records, and each may get a state of its own."""
        room = min(self._room(acquisition.limits), acquisition.room)
        if room <= 0:
            acquisition.is_full = True
            return
        first = self.end_offset
        if not acquisition.request.is_limit_strict:
            # Whole batches, but no more records than a queue topic allows.
            room = last - first + 1 if acquisition.limits.width_max is not None else self._room(acquisition.limits)
        if first + room - 1 < last:
            last = first + room - 1
            acquisition.is_full = True
        width_max = acquisition.limits.width_max
        if width_max is not None:
            last = min(last, first + width_max - 1)
        self._ranges.extend(last, RecordState.AVAILABLE)
        self._lock(acquisition, first, last)
        if self._room(acquisition.limits) <= 0:
            acquisition.is_full = True

    def _lock(self, acquisition: _Acquisition, first: int, last: int) -> None:
        ranges = self._ranges
        rows = ranges.isolate(first, last)
        for row in rows:
            count = min(ranges.count(row) + 1, COUNT_MAX)
            ranges.set(row, RecordState.ACQUIRED, count, acquisition.owner, acquisition.deadline_ms)
            row_first, row_last = ranges.bounds(row)
            acquisition.add(row_first, row_last, count)
            if acquisition.limits.width_max is None:
                self._note(row_first, row_last, RecordState.AVAILABLE, count)
        ranges.merge(rows)
        self._wheel.add(acquisition.deadline_ms, first, last)

    def _skip(self, first: int, last: int) -> None:
        """Archive what nobody will read: available offsets without a record, or with one that is not for readers."""
        ranges = self._ranges
        first = max(first, ranges.start_offset)
        if last < first:
            return
        end_before = ranges.end_offset
        if last >= end_before:
            ranges.extend(last, RecordState.ARCHIVED)
            self._note(end_before, last, RecordState.ARCHIVED, 0)
        if first < end_before:
            rows = ranges.isolate(first, min(last, end_before - 1))
            for row in rows:
                if ranges.state(row) == RecordState.AVAILABLE:
                    self._settle(row, RecordState.ARCHIVED)
            ranges.merge(range(rows.start, rows.stop + 1))
        else:
            ranges.merge(range(len(ranges) - 1, len(ranges)))

    # -- settling ------------------------------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], limits: DeliveryLimits, now_ms: int) -> None:
        """Settle records, or renew their locks: all of them, or none and an ApiError. ``check_acknowledgements`` has approved of
        the batches. Offsets below the start offset are settled already, and ignored."""
        owner = self._members.get(member_id)
        for batch in batches:
            self._check_owner(batch, owner)
        for batch in batches:
            for first, last, kind in batch.runs():
                self._apply(max(first, self.start_offset), last, kind, limits, now_ms)
        self._advance_start()

    def _check_owner(self, batch: AcknowledgementBatch, owner: int | None) -> None:
        ranges = self._ranges
        if batch.last_offset < ranges.start_offset:
            return
        if batch.last_offset >= ranges.end_offset:
            message = f"The offsets {batch.first_offset} to {batch.last_offset} were not all delivered."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        for row in ranges.rows_between(batch.first_offset, batch.last_offset):
            if ranges.state(row) != RecordState.ACQUIRED or ranges.owner(row) != owner:
                first, last = ranges.bounds(row)
                why = "is not acquired" if ranges.state(row) != RecordState.ACQUIRED else "is acquired by another member"
                message = f"The range {max(first, batch.first_offset)} to {min(last, batch.last_offset)} {why}."
                raise ApiError(ErrorCode.INVALID_RECORD_STATE, message)

    def is_held(self, member_id: str, first: int, last: int) -> bool:
        """Whether the member has the locks of all these offsets, apart from those that the log has lost."""
        owner, ranges = self._members.get(member_id), self._ranges
        return owner is not None and all(
            ranges.state(row) == RecordState.ACQUIRED and ranges.owner(row) == owner for row in ranges.rows_between(first, last)
        )

    def _apply(self, first: int, last: int, kind: AcknowledgeType, limits: DeliveryLimits, now_ms: int) -> None:
        if last < first:
            return
        ranges = self._ranges
        rows = ranges.isolate(first, last)
        for row in rows:
            if kind is AcknowledgeType.RENEW:
                deadline_ms = now_ms + limits.lock_duration_ms
                ranges.set(row, RecordState.ACQUIRED, ranges.count(row), ranges.owner(row), deadline_ms)
            elif kind is AcknowledgeType.RELEASE:
                self._release(row, limits)
            elif kind is AcknowledgeType.REJECT and limits.has_dead_letters:
                self._bury(row, CauseOfDeath.REJECTED)
            else:
                self._settle(row, RecordState.ACKNOWLEDGED if kind is AcknowledgeType.ACCEPT else RecordState.ARCHIVED)
        if kind is AcknowledgeType.RENEW:
            self._wheel.add(now_ms + limits.lock_duration_ms, first, last)
        ranges.merge(rows)

    def _release(self, row: int, limits: DeliveryLimits) -> None:
        is_last = self._ranges.count(row) >= limits.delivery_count_max
        if is_last and limits.has_dead_letters:
            self._bury(row, CauseOfDeath.EXHAUSTED)
        else:
            self._settle(row, RecordState.ARCHIVED if is_last else RecordState.AVAILABLE)

    def _bury(self, row: int, cause: CauseOfDeath) -> None:
        count = self._ranges.count(row)
        self._ranges.set(row, RecordState.ARCHIVING, count)
        self._dead.append(DeadRecords(*self._ranges.bounds(row), count, cause))

    def _settle(self, row: int, state: RecordState) -> None:
        ranges = self._ranges
        count = ranges.count(row)
        ranges.set(row, state, count)
        first, last = ranges.bounds(row)
        self._note(first, last, state, count)
        if self._keys is not None and state in FINAL_STATES:
            freed = map(self._keys.settle, range(first, last + 1))
            self._freed += [offset for offset in freed if offset is not None]

    def take_dead(self) -> list[DeadRecords]:
        """What has died since the last call. ``archive_dead`` ends it."""
        dead, self._dead = self._dead, []
        return dead

    def archive_dead(self, first: int, last: int) -> None:
        """The letters about these offsets are durable. What the log has lost in the meantime is ignored."""
        ranges = self._ranges
        first, last = max(first, ranges.start_offset), min(last, ranges.end_offset - 1)
        if last < first:
            return
        rows = ranges.isolate(first, last)
        for row in rows:
            if ranges.state(row) == RecordState.ARCHIVING:
                self._settle(row, RecordState.ARCHIVED)
        ranges.merge(rows)
        self._advance_start()

    def release_member(self, member_id: str, limits: DeliveryLimits) -> bool:
        """Release everything that a member holds, because it is gone. The deliveries count. Returns whether it held anything."""
        return self.disown(member_id) and self.release_disowned(limits)

    def disown(self, member_id: str) -> bool:
        """The member is gone: nobody may settle what it holds any more, until ``release_disowned``, which takes longer. Returns
        whether it ever held anything."""
        owner = self._members.pop(member_id, None)
        if owner is not None:
            self._disowned.add(owner)
        return owner is not None

    def release_disowned(self, limits: DeliveryLimits) -> bool:
        disowned, self._disowned = self._disowned, set()
        ranges = self._ranges
        index = ranges.first_with(RecordState.ACQUIRED) if disowned else -1
        held = False
        while index >= 0:
            if ranges.owner(index) in disowned:
                held = True
                self._release(index, limits)
            index = ranges.first_with(RecordState.ACQUIRED, index + 1)
        if held:
            ranges.merge(range(len(ranges)))
            self._advance_start()
        return held

    def expire(self, limits: DeliveryLimits, now_ms: int) -> int:
        """Release the records whose locks have ended. Returns how many there were."""
        ranges = self._ranges
        expired = 0
        for first, last in self._wheel.take_due(now_ms):
            rows = range(0)
            for row in ranges.rows_between(first, last):
                # The whole range has this deadline, so all of it has ended, whichever acquisition led here.
                if ranges.state(row) == RecordState.ACQUIRED and ranges.deadline_ms(row) <= now_ms:
                    range_first, range_last = ranges.bounds(row)
                    expired += range_last - range_first + 1
                    self._release(row, limits)
                    rows = range(rows.start if rows else row, row + 1)
            if rows:
                ranges.merge(rows)
        if expired:
            self._advance_start()
        return expired

    # -- the start offset ----------------------------------------------------------------------------------------------------

    def move_start(self, offset: int) -> bool:
        """The log begins at ``offset``: what was below it is gone, locked or not. Returns whether the start offset moved."""
        if offset <= self.start_offset:
            return False
        self._ranges.move_start(offset)
        self._is_start_unwritten = True
        if self._keys is not None:
            self._freed += self._keys.settle_below(offset)
        self._advance_start()
        return True

    def _advance_start(self) -> None:
        ranges = self._ranges
        # Only here, because rows are split by it, and whoever settles goes through them.
        freed, self._freed = self._freed, []
        for offset in freed:
            if ranges.start_offset <= offset < ranges.end_offset:
                rows = ranges.isolate(offset, offset)
                if ranges.state(rows.start) == RecordState.WAITING:
                    ranges.set(rows.start, RecordState.AVAILABLE, ranges.count(rows.start))
                ranges.merge(rows)
        if not ranges.acquired:
            self._wheel.clear()
        if len(ranges) and ranges.state(0) in FINAL_STATES:
            # Final neighbours are merged, so there is only one such range.
            ranges.move_start(ranges.bounds(0)[1] + 1)
            self._is_start_unwritten = True

    # -- what is written -----------------------------------------------------------------------------------------------------

    def _note(self, first: int, last: int, state: RecordState, count: int) -> None:
        previous = self._unwritten[-1] if self._unwritten else None
        if previous is not None and previous[1:] == (first - 1, state, count):
            self._unwritten[-1] = StateBatch(previous.first_offset, last, state, count)
        else:
            self._unwritten.append(StateBatch(first, last, state, count))

    def take_update(self) -> StateUpdate | None:
        """The changes since the last call; None if there are none. What is below the start offset needs no state."""
        if not self._unwritten and not self._is_start_unwritten:
            return None
        start = self.start_offset
        batches = [
            batch if batch.first_offset >= start else batch._replace(first_offset=start)
            for batch in self._unwritten
            if batch.last_offset >= start
        ]
        self._unwritten = []
        self._is_start_unwritten = False
        return StateUpdate(start, self.delivery_complete_count, tuple(batches))


def _runs_of(
    times: Sequence[DeliveryTimes], wall_ms: int, *, may_expire: bool
) -> Iterator[tuple[int, int, Literal[RecordState.DELAYED, RecordState.ARCHIVED]]]:
    """Which neighbouring records are delayed, and which have expired: (first, last, DELAYED or ARCHIVED)."""
    first = last = -1
    state = None
    for each in times:
        its = _state_of(each, wall_ms, may_expire=may_expire)
        if its is not None and its is state and each.offset == last + 1:
            last = each.offset
            continue
        if state is not None:
            yield first, last, state
        first, last, state = each.offset, each.offset, its
    if state is not None:
        yield first, last, state


def _state_of(
    times: DeliveryTimes, wall_ms: int, *, may_expire: bool
) -> Literal[RecordState.DELAYED, RecordState.ARCHIVED] | None:
    """What becomes of an available record; None if it may be handed out."""
    if may_expire and times.expires_ms and times.expires_ms <= wall_ms:
        return RecordState.ARCHIVED
    return RecordState.DELAYED if times.due_ms > wall_ms else None
