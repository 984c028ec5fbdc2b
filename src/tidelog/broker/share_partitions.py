"""The share partitions that this broker leads: an engine for each group and partition, the log that it reads, and its state.

A ``ShareLeader`` begins when a member first fetches: it reads what was written from the share coordinator, and resolves where the
group begins if that was never done. It hands nothing out before that is written: with ``latest``, whoever leads next would
otherwise begin later and skip records. A log may have lost records that were settled, by an unclean election, or by a power cut
where the topic is not synced. What the state says about them is forgotten, because other records get their offsets.

Every change of its engine is written, and whoever asked for it is answered once that is committed. Who asks for nothing new, such
as a late acknowledgement of what others have settled, waits for the writes that are in flight. If a write fails, because
another broker leads the partition or an administrator has set the offsets, the leader is dropped and nothing is patched: the next
fetch begins with what was written.

What a fetch reads may not be in the page cache, and the event loop does not wait for the disk. So a fetch that finds such a place
skips the partition, and says what has to be read (``FetchBudget``). It tries again when a helper thread has read that.

A fetch that waits is woken when there may be something for it: records, released or expired locks, room in the window, or the
loss of the partition. Waiting fetches are woken in the order in which they came, and no more of them than there are records.

On a queue topic, the records that are read have times (``queues/record_times``), and the engine is told of them. Whoever waits is
woken when a delayed record is due. What is due is decided by the wall clock, which may jump, so it is looked at every second
while anything is delayed. The times of the last batches are kept, because one batch often has records for many fetches.

When the last member of a group on this broker is gone, the group's leaders are dropped too: everything is released and written by
then, and an administrator may change it. Only a leader whose dead letters are being written stays until they are: otherwise a
record that kills its only member would be delivered for ever.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.broker.api import Pace, ResultCollector
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.share_dead_letters import Burial, DeadLetterWriter
from tidelog.broker.share_settings import ShareSettings
from tidelog.broker.share_states import ShareStates
from tidelog.broker.work_slices import WorkSlices
from tidelog.config.groups import BY_DURATION, duration_ms
from tidelog.controller.errors import ApiError
from tidelog.coordinator.errors import CoordinatorError
from tidelog.log.errors import OffsetOutOfRange
from tidelog.log.reading import Isolation, LogRead, LogSlice, cold_read, cold_slice, offset_for_timestamp, read
from tidelog.log.segments.indexes import AbortedTransaction
from tidelog.ports.clock import Clock
from tidelog.ports.steps import Steps
from tidelog.queues.acknowledgements import AcknowledgementBatch, AcknowledgeType
from tidelog.queues.key_order import read_record_keys
from tidelog.queues.record_times import NO_TTL, DeliveryTimes, read_times
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import UNINITIALIZED_OFFSET, ShareState, ShareStateWrite
from tidelog.queues.share_partition import (
    AcquiredRecords,
    AcquireRequest,
    DeadRecords,
    DeliveryLimits,
    LogBatch,
    SharePartition,
)
from tidelog.queues.states import StateBatch
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, read_header
from tidelog.replication.errors import NotLeader
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.partitions import Partitions
    from tidelog.broker.timers import Timer, Timers

# The share coordinator is asked again after this time, while it is loading or moving.
RETRY_MS = 100
# Several reads are tried if those before have only found what is not for readers: markers and aborted batches.
READS_MAX = 16
# What one request may find in one partition. A client may ask for any number of bytes, and batches may have 70 bytes each.
READ_BYTES_MAX = 4 << 20
# What one request may look at in all partitions: a batch, or a range of records, takes a few microseconds.
ITEMS_MAX = 2_000
# The same for a partition that is read, whatever is found there.
ITEMS_PER_READ = 10
# What a helper thread reads at once, if it is not in the page cache: milliseconds of the disk's time.
COLD_BYTES_MAX = 1 << 20
# For so many places of one request.
COLD_PLACES_MAX = 4
# A request makes so many trips to a helper thread for one place: for the index, for the batch that it leads to, for the records,
# and for what was evicted in the meantime.
COLD_TRIPS_MAX = 5
# Headers are read in pieces of this size: many small batches, or the header of a large one.
HEADERS_READ_BYTES = 8192
# A queue topic is read in pieces of this size, because all of it is searched for times.
QUEUE_READ_BYTES = 64 << 10
# One fetch decodes this many records, which takes some milliseconds. Then others have their turn.
RECORDS_PER_TURN = 2_000
# How many records with times are kept, besides those of the last batch, and for how many batches.
TIMES_KEPT_MAX = 4_096
BATCHES_KEPT_MAX = 256
# Delayed records are looked at this often, in case that the wall clock has jumped.
DUE_CHECK_MS_MAX = 1_000
# And this far apart at least: what becomes due in between comes together, and other work has its turn.
DUE_PAUSE_MS = 10

OnSettled = Callable[[Exception | None], None]
ColdRead = Callable[[], object]
ReadPlace = tuple[SharePartitionKey, int]


class ShareWaiter(Protocol):
    def on_available(self) -> None:
        """Called when there may be records, or an error."""
        ...


class ShareFetched(NamedTuple):
    acquired: Sequence[AcquiredRecords] = ()
    records: Sequence[LogSlice] = ()

    @property
    def length(self) -> int:
        return sum(part.length for part in self.records)

    def with_more(self, acquired: Sequence[AcquiredRecords], records: Sequence[LogSlice]) -> "ShareFetched":
        return ShareFetched((*self.acquired, *acquired), (*self.records, *records))


NOTHING_FETCHED = ShareFetched()


class _StoredBatch(NamedTuple):
    batch: LogBatch
    position: int
    size: int


class ColdReads:
    """What a request has to read in a helper thread before it can go on."""

    __slots__ = ("_reads", "_tried")

    def __init__(self) -> None:
        # By place: a share partition, and an offset.
        self._reads: dict[ReadPlace, ColdRead] = {}
        self._tried: dict[ReadPlace, int] = {}

    def __bool__(self) -> bool:
        return bool(self._reads)

    def begin(self) -> None:
        """The request tries again, and notes what is still missing."""
        self._reads = {}

    def note(self, place: "ReadPlace", read: ColdRead) -> bool:
        """Returns whether the place has to be skipped for now. What was read often, and is never there, is read at once:
        otherwise it would never be delivered."""
        if self._tried.get(place, 0) >= COLD_TRIPS_MAX:
            return False
        self._reads[place] = read
        return True

    def take(self) -> ColdRead:
        """Return the call that a helper thread has to make. It is for a few places, because one that has records is enough."""
        taken = list(self._reads.items())[:COLD_PLACES_MAX]
        self._reads = {}
        self._tried = {place: self._tried.get(place, 0) + 1 for place, _ in taken}
        return partial(_read_all, [read for _, read in taken])


def _read_all(reads: Sequence[ColdRead]) -> None:
    for each in reads:
        with suppress(OSError):  # Reading again reports it.
            each()


class FetchBudget:
    """How much of the loop's time a request has left, in batches and ranges of records to look at. When it is used up, the
    request is answered with what it has; the next one goes on from there.

    What is not in the page cache is not looked at, but noted in ``cold_reads``."""

    __slots__ = ("cold_reads", "left")

    def __init__(self, cold_reads: "ColdReads") -> None:
        self.left = ITEMS_MAX
        self.cold_reads = cold_reads

    def spend(self, items: int) -> None:
        self.left -= items

    @property
    def is_spent(self) -> bool:
        return self.left <= 0


class _UnfinishedTimes(NamedTuple):
    """A batch whose records are being read, in several turns if there are many."""

    first_offset: int
    reading: Iterator[DeliveryTimes | None]
    times: list[DeliveryTimes]


class _KnownTimes:
    """The times of the records in batches that were read lately."""

    __slots__ = ("_by_batch", "_count", "_decoded", "_ttl_ms", "_unfinished")

    def __init__(self) -> None:
        self._by_batch: dict[int, Sequence[DeliveryTimes]] = {}
        self._count = 0
        self._ttl_ms = NO_TTL
        self._decoded = 0
        self._unfinished: _UnfinishedTimes | None = None

    def begin_turn(self) -> None:
        self._decoded = 0

    @property
    def is_turn_over(self) -> bool:
        """Whether so many records have been decoded that others should have the loop."""
        return self._decoded >= RECORDS_PER_TURN

    def add_to(self, stored: Sequence[_StoredBatch], records: LogSlice, ttl_ms: int) -> list[_StoredBatch]:
        """The batches with the times of their records, up to the first one that this turn was too short for."""
        if ttl_ms != self._ttl_ms:
            self._by_batch.clear()
            self._count, self._ttl_ms, self._unfinished = 0, ttl_ms, None
        known: list[_StoredBatch] = []
        for each in stored:
            if not each.batch.is_skipped:
                times = self._find(each, records)
                if times is None:
                    break
                each = each._replace(batch=each.batch._replace(times=times))
            known.append(each)
        return known

    def _find(self, stored: _StoredBatch, records: LogSlice) -> Sequence[DeliveryTimes] | None:
        first_offset = stored.batch.first_offset
        found = self._by_batch.get(first_offset)
        if found is not None:
            return found
        if self._unfinished is None or self._unfinished.first_offset != first_offset:
            data = records.file.read(stored.position, stored.size)
            self._unfinished = _UnfinishedTimes(first_offset, read_times(data, 0, read_header(data, 0), self._ttl_ms), [])
        _, reading, times = self._unfinished
        try:
            for each in reading:
                self._decoded += 1
                if each is not None:
                    times.append(each)
                if self.is_turn_over:
                    return None
        except RecordError:
            # Whoever reads the batch will say so. It must not be kept back for ever because of what it might say.
            times.clear()
        self._unfinished = None
        self._keep(first_offset, times)
        return times

    def _keep(self, first_offset: int, times: Sequence[DeliveryTimes]) -> None:
        known = self._by_batch
        while known and (self._count + len(times) > TIMES_KEPT_MAX or len(known) >= BATCHES_KEPT_MAX):
            self._count -= len(known.pop(next(iter(known))))
        known[first_offset] = times
        self._count += len(times)


class _WritesInFlight:
    """The writes of one leader that are not answered, and those who wait for all that were begun before they came."""

    __slots__ = ("_begun", "_in_flight", "_waiting")

    def __init__(self) -> None:
        self._begun = 0
        # The numbers of the writes, in their order. A write that is repeated may be answered after later ones.
        self._in_flight: dict[int, None] = {}
        # Each with the number of the last write that it waits for.
        self._waiting: deque[tuple[int, OnSettled]] = deque()

    def begin(self) -> int:
        self._begun += 1
        self._in_flight[self._begun] = None
        return self._begun

    def wait(self, on_written: OnSettled) -> None:
        if self._in_flight:
            self._waiting.append((self._begun, on_written))
        else:
            on_written(None)

    def end(self, number: int, error: Exception | None) -> None:
        del self._in_flight[number]
        if error is not None:
            failed = [on_written for last, on_written in self._waiting if last >= number]
            self._waiting = deque([each for each in self._waiting if each[0] < number])
            for on_written in failed:
                on_written(error)
        while self._waiting and self._waiting[0][0] < next(iter(self._in_flight), self._begun + 1):
            self._waiting.popleft()[1](None)


class ShareCounters:
    """What has happened in all share partitions of this broker since it began."""

    __slots__ = ("expired", "outlived", "released")

    def __init__(self) -> None:
        self.expired = 0
        """Records whose locks have ended."""
        self.released = 0
        """Records that members have released."""
        self.outlived = 0
        """Records that nobody received before their time to live was over."""

    def count_expired(self, records: int) -> None:
        self.expired += records

    def count_outlived(self, records: int) -> None:
        self.outlived += records

    def count_released(self, records: int) -> None:
        self.released += records


class ShareEnvironment(NamedTuple):
    """What all leaders share."""

    clock: Clock
    timers: "Timers"
    states: ShareStates
    settings: ShareSettings
    dead_letters: DeadLetterWriter
    counters: "ShareCounters"
    work_slices: WorkSlices
    report: Callable[[str, dict[str, object]], None]

    def report_cut(self, key: SharePartitionKey, topic: str, start_offset: int, end_offset: int) -> None:
        facts = {"group": key.group_id, "topic": topic, "partition": key.partition}
        self.report("share_state_cut", {**facts, "start_offset": start_offset, "log_end_offset": end_offset})


class ShareLeader:
    __slots__ = (
        "_burials",
        "_due_timer",
        "_due_timer_ms",
        "_engine",
        "_environment",
        "_is_cold",
        "_is_retiring",
        "_lock_timer",
        "_lock_timer_ms",
        "_on_dropped",
        "_partition",
        "_retry",
        "_state_epoch",
        "_times",
        "_waiters",
        "_wake_timer",
        "_writes",
        "dropped_by",
        "key",
    )

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        environment: ShareEnvironment,
        on_dropped: Callable[["ShareLeader"], None],
    ) -> None:
        self.key = key
        self._partition = partition
        self._environment = environment
        self._on_dropped = on_dropped
        self._engine: SharePartition | None = None
        self._state_epoch = 0
        self._waiters: dict[ShareWaiter, None] = {}
        self._lock_timer: Timer | None = None
        self._lock_timer_ms = 0
        self._due_timer: Timer | None = None
        self._due_timer_ms = 0
        self._wake_timer: Timer | None = None
        self._times = _KnownTimes()
        self._writes = _WritesInFlight()
        self._retry: Timer | None = None
        # How many times dead letters are being written, and whether the leader is dropped when they are.
        self._burials = 0
        self._is_retiring = False
        # Whether the last fetch found something that has to be read from the disk first.
        self._is_cold = False
        self.dropped_by: Exception | None = None
        """Why this leader is out of use, if it is."""
        partition.add_fetch_waiter(self)
        self._load()

    # -- loading -------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._retry = None
        self._environment.states.read(self.key, self._partition.leader_epoch, self._loaded)

    def _loaded(self, found: tuple[ShareState, bool] | None, error: Exception | None) -> None:
        if self.dropped_by is not None:
            return
        if isinstance(error, CoordinatorError):
            self._retry = self._environment.timers.schedule(RETRY_MS, self._load)
            return
        if error is not None or found is None:
            self.drop(_as_leader_error(error))
            return
        state, is_inherited = found
        self._state_epoch = state.state_epoch
        if state.start_offset == UNINITIALIZED_OFFSET:
            self._environment.work_slices.run(self._begin(), self._begun)
            return
        partition = self._partition
        # What earlier leaders have handed out, this one had when it began to lead. Since then others may have got those offsets.
        end_offset = partition.in_sync.epoch_start_offset if is_inherited else partition.log.log_end_offset
        kept = state.within(end_offset)
        engine = SharePartition(kept.start_offset, kept.batches, is_ordered_by_key=self._is_ordered_by_key())
        if kept is state:
            self._start(engine)
        else:
            self._state_epoch = kept.state_epoch
            self._environment.report_cut(self.key, partition.topic, state.start_offset, end_offset)
            self._start_when_written(engine, kept.batches)

    def _begin(self) -> Steps[None]:
        start_offset = yield from self._first_offset()
        if self.dropped_by is None:
            self._start_when_written(SharePartition(start_offset, is_ordered_by_key=self._is_ordered_by_key()), ())

    def _begun(self, error: Exception | None) -> None:
        if error is not None:
            self.drop(error)

    def _start_when_written(self, engine: SharePartition, batches: tuple[StateBatch, ...]) -> None:
        def written(error: Exception | None) -> None:
            if error is None:
                self._start(engine)

        leader_epoch, count = self._partition.leader_epoch, engine.delivery_complete_count
        self._write(ShareStateWrite(self._state_epoch, leader_epoch, engine.start_offset, count, batches), written)

    def _start(self, engine: SharePartition) -> None:
        if self.dropped_by is None:
            self._engine = engine
            engine.move_start(self._partition.log.log_start_offset)
            self._changed()

    def _first_offset(self) -> Steps[int]:
        """Where a group begins that has read nothing yet."""
        log = self._partition.log
        reset = self._environment.settings.offset_reset(self.key.group_id)
        if reset == "earliest":
            return log.log_start_offset
        if reset.startswith(BY_DURATION):
            back_ms = duration_ms(reset.removeprefix(BY_DURATION)) or 0
            found = yield from offset_for_timestamp(log, self._environment.clock.now_ms() - back_ms)
            if found is not None:
                return min(found.offset, log.high_watermark)
        return log.high_watermark

    # -- fetching ------------------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> SharePartition | None:
        """None while the state is being read."""
        return self._engine

    def check(self) -> None:
        """Raises the reason why this leader is out of use."""
        self._partition.check_open()
        if self.dropped_by is not None:
            raise _copy(self.dropped_by)

    def _is_ordered_by_key(self) -> bool:
        return self._environment.settings.is_ordered_by_key(self.key.group_id, self._partition.topic)

    def _limits(self) -> DeliveryLimits:
        return self._environment.settings.limits(self.key.group_id, self._partition.topic)

    def readable_bytes(self, bytes_max: int, budget: FetchBudget) -> int:
        """An estimate of what ``fetch`` would return: enough to know whether it is worth it."""
        engine = self._engine
        if engine is None:
            return 0
        self._follow_log_start(engine)
        if not self._has_records(engine):
            return 0
        budget.spend(ITEMS_PER_READ)
        found = self._read(engine.next_fetch_offset(self._limits()), bytes_max, budget).records
        return 0 if found is None else found.length

    def fetch(self, request: AcquireRequest, bytes_max: int, budget: FetchBudget, on_written: OnSettled) -> ShareFetched:
        """Lock records for a member, and return where they are. The member may see them when ``on_written`` was called: on queue
        topics, deliveries are counted before they happen."""
        engine = self._engine
        if engine is None:
            on_written(None)
            return NOTHING_FETCHED
        if engine.is_ordered_by_key != self._is_ordered_by_key():
            self.drop(NotLeader("the order of the group has changed"))
            self.check()
        self._follow_log_start(engine)
        # The share coordinator may have refused the new start at once.
        self.check()
        if not self._has_records(engine):
            on_written(None)
            return NOTHING_FETCHED
        limits = self._limits()
        rules = self._environment.settings.queue_rules(self._partition.topic)
        read_bytes = bytes_max if rules is None else min(bytes_max, QUEUE_READ_BYTES)
        clock = self._environment.clock
        self._times.begin_turn()
        fetched = NOTHING_FETCHED
        for _ in range(READS_MAX):
            if budget.is_spent or not engine.can_acquire(limits):
                break
            offset = engine.next_fetch_offset(limits)
            try:
                records, stored = self._look_at(engine, offset, read_bytes, request.records_max, budget)
            except Exception:
                if not fetched.acquired:
                    raise
                # What is locked already must reach its member. The next fetch begins with what cannot be read.
                break
            if records is None:
                break
            batches = [each.batch for each in stored]
            may_acquire = request._replace(ranges_max=min(request.ranges_max, budget.left))
            acquired = engine.acquire(may_acquire, batches, limits, clock.monotonic_ms(), clock.now_ms())
            budget.spend(ITEMS_PER_READ + len(stored) + len(acquired))
            if acquired:
                fetched = fetched.with_more(acquired, _slices(records, stored, acquired))
                request = request.after(acquired)
                if rules is None or fetched.length >= bytes_max or not request.records_max:
                    break
                # What is due may be scattered over the log. Suspected poison is delivered by itself, and no batch is sent twice.
                if acquired[-1].delivery_count > limits.throttle_count or engine.is_next_suspect(limits):
                    break
                if engine.next_fetch_offset(limits) <= stored[-1].batch.last_offset:
                    break
            if self._times.is_turn_over:
                self.wake_later()
                break
            if engine.next_fetch_offset(limits) == offset:
                break
        else:
            self.wake_later()
        self._partition.count_fetched(fetched.length)
        self._environment.counters.count_outlived(engine.take_expired_count())
        is_counted = rules is not None and bool(fetched.acquired)
        self._changed(on_written if is_counted else None, wakes=False, waits_for_letters=False)
        if not is_counted:
            on_written(None)
        return fetched

    def _look_at(
        self, engine: SharePartition, offset: int, bytes_max: int, records_max: int, budget: FetchBudget
    ) -> tuple[LogSlice | None, list[_StoredBatch]]:
        """The batches from an offset on, with what the engine has to know of their records."""
        found = self._read(offset, bytes_max, budget)
        if found.records is None:
            return None, []
        stored = _stored_batches(found, offset, records_max, budget.left)
        rules = self._environment.settings.queue_rules(self._partition.topic)
        if rules is not None:
            stored = self._times.add_to(stored, found.records, rules.ttl_ms)
        if engine.is_ordered_by_key:
            stored = [_with_keys(each, found.records, engine.key_frontier) for each in stored]
        return found.records, stored

    def held_by(self, member_id: str, acquired: Sequence[AcquiredRecords]) -> list[AcquiredRecords]:
        """What the member still holds of what it acquired."""
        engine = self._engine
        return [] if engine is None else [each for each in acquired if engine.is_held(member_id, each[0], each[1])]

    def wake_later(self) -> None:
        """There may be more behind what was not for readers, or not for them yet."""
        if self._wake_timer is None and self.dropped_by is None:
            self._wake_timer = self._environment.timers.schedule(0, self._wake_again)

    def _wake_again(self) -> None:
        self._wake_timer = None
        self._wake()

    def _read(self, offset: int, bytes_max: int, budget: FetchBudget) -> LogRead:
        """Where records are that can be looked at without waiting for the disk."""
        log = self._partition.log
        isolation = self._environment.settings.isolation(self.key.group_id)
        nothing = LogRead(None, log.high_watermark, [])
        place, cold_reads = (self.key, offset), budget.cold_reads
        cold = None
        with suppress(Exception):  # Whatever is wrong with the log, reading it finds out.
            cold = cold_read(log, offset)
        if cold is None or not cold_reads.note(place, cold):
            try:
                found = read(log, offset, min(bytes_max, READ_BYTES_MAX), isolation)
                cold = None if found.records is None else cold_slice(log, offset, found.records)
                if cold is not None and found.records is not None and found.records.length > COLD_BYTES_MAX:
                    found = read(log, offset, COLD_BYTES_MAX, isolation)
                    cold = None if found.records is None else cold_slice(log, offset, found.records)
            except OffsetOutOfRange:
                # The watermark of a new leader has not grown again to where the group is.
                return nothing
            if cold is None or not cold_reads.note(place, cold):
                return found
        self._is_cold = True
        return nothing

    def _follow_log_start(self, engine: SharePartition) -> None:
        if engine.move_start(self._partition.log.log_start_offset):
            self._changed(wakes=False)

    # -- settling ------------------------------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], on_settled: OnSettled) -> None:
        """Settle records; ``on_settled`` is called when that is committed, or refused."""
        engine = self._engine
        try:
            self.check()
            if engine is None:
                raise ApiError(ErrorCode.INVALID_RECORD_STATE, "The records are not acquired: the state is being read.")
            limits = self._limits()
            engine.acknowledge(member_id, batches, limits, self._environment.clock.monotonic_ms())
        except Exception as error:
            on_settled(error)
            return
        runs = [run for batch in batches for run in batch.runs()]
        self._environment.counters.count_released(
            sum(last - first + 1 for first, last, kind in runs if kind is AcknowledgeType.RELEASE)
        )
        if all(kind is AcknowledgeType.RENEW for _, _, kind in runs):
            # A lock is not written, so there is nothing to wait for.
            self._changed()
            on_settled(None)
        else:
            self._changed(on_settled)

    def disown(self, member_id: str) -> bool:
        """The member is gone: nobody may settle what it held any more. Returns whether there is something to release."""
        return self._engine is not None and self._engine.disown(member_id)

    def release_disowned(self) -> None:
        """Release what members held that are gone."""
        if self._engine is not None and self.dropped_by is None:
            self._engine.release_disowned(self._limits())
            self._changed()

    def _expire(self) -> None:
        self._lock_timer = None
        engine = self._engine
        if engine is None or self.dropped_by is not None:
            return
        limits = self._limits()
        self._environment.counters.count_expired(engine.expire(limits, self._environment.clock.monotonic_ms()))
        self._changed()

    def _look_at_delayed(self) -> None:
        self._due_timer = None
        engine = self._engine
        if engine is None or self.dropped_by is not None:
            return
        is_woken = engine.wake_delayed(self._environment.clock.now_ms())
        self._set_due_timer(engine)
        if is_woken:
            self._wake()

    # -- what follows a change -----------------------------------------------------------------------------------------------

    def _changed(self, on_written: OnSettled | None = None, *, wakes: bool = True, waits_for_letters: bool = True) -> None:
        """Write what has changed, set the timer of the locks, and wake those who wait. ``on_written`` is called when all of it is
        written, dead letters included unless ``waits_for_letters`` is false. If nothing has changed, it is called when everything
        that changed before is written, because a crash would take that back."""
        engine = self._engine
        if engine is None:
            return
        update = engine.take_update()
        dead = engine.take_dead()
        if dead and waits_for_letters:
            on_written = self._bury(engine, dead, on_written)
        elif dead:
            self._bury(engine, dead, None)
        if update is not None:
            start_offset, count, batches = update
            leader_epoch = self._partition.leader_epoch
            self._write(ShareStateWrite(self._state_epoch, leader_epoch, start_offset, count, batches), on_written)
        elif on_written is not None:
            self._writes.wait(on_written)
        self._set_lock_timer(engine)
        self._set_due_timer(engine)
        if wakes:
            self._wake()

    def _bury(self, engine: SharePartition, dead: Sequence[DeadRecords], on_written: OnSettled | None) -> OnSettled | None:
        """Write dead letters, and archive their records when they are durable. Returns the callback for whatever else has
        changed: ``on_written`` waits for both, or until it is said that the letters cannot be written for now."""
        both = None
        if on_written is not None:
            both = ResultCollector(2, lambda errors: on_written(errors[0] if errors[0] is not None else errors[1]))
        is_told = False
        self._burials += 1

        def buried(error: Exception | None) -> None:
            if error is None and self._engine is engine:
                for records in dead:
                    engine.archive_dead(records.first_offset, records.last_offset)
                self._changed(archived)
            else:
                archived(error or NotLeader("the share partition was dropped while its dead letters were written"))

        def archived(error: Exception | None) -> None:
            self._burials -= 1
            tell(error)
            if self._is_retiring:
                self.retire()

        def tell(error: Exception | None) -> None:
            nonlocal is_told
            if both is not None and not is_told:
                is_told = True
                both.put(1, error)

        burial = Burial(self.key, self._partition, dead, lambda: self.dropped_by is None, tell)
        self._environment.dead_letters.write(burial, buried)
        return None if both is None else lambda error: both.put(0, error)

    def _set_lock_timer(self, engine: SharePartition) -> None:
        due_ms = engine.next_lock_end_ms()
        if self._lock_timer is not None and (due_ms is None or due_ms < self._lock_timer_ms):
            self._lock_timer.cancel()
            self._lock_timer = None
        if due_ms is not None and self._lock_timer is None and self.dropped_by is None:
            self._lock_timer_ms = due_ms
            delay_ms = max(0, due_ms - self._environment.clock.monotonic_ms())
            self._lock_timer = self._environment.timers.schedule(delay_ms, self._expire)

    def _set_due_timer(self, engine: SharePartition) -> None:
        due_ms = engine.next_due_ms()
        if due_ms is None or self.dropped_by is not None:
            return
        clock = self._environment.clock
        at_ms = clock.monotonic_ms() + min(max(DUE_PAUSE_MS, due_ms - clock.now_ms()), DUE_CHECK_MS_MAX)
        if self._due_timer is not None:
            if self._due_timer_ms <= at_ms:
                return
            self._due_timer.cancel()
        self._due_timer_ms = at_ms
        self._due_timer = self._environment.timers.schedule(at_ms - clock.monotonic_ms(), self._look_at_delayed)

    def _write(self, change: ShareStateWrite, on_written: OnSettled | None) -> None:
        number = self._writes.begin()

        def written(_: object, error: Exception | None) -> None:
            if error is not None:
                error = _as_leader_error(error)
                self.drop(error)
            try:
                if on_written is not None:
                    on_written(error)
            finally:
                self._writes.end(number, error)

        self._environment.states.write(self.key, change, written, lambda: self.dropped_by is None)

    # -- waiting -------------------------------------------------------------------------------------------------------------

    def add_waiter(self, waiter: ShareWaiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: ShareWaiter) -> None:
        self._waiters.pop(waiter, None)

    def on_data(self, partition: Partition) -> None:
        """The partition's watermark has moved, or the partition is gone."""
        if partition.closed_by is not None:
            self.drop(partition.closed_by)
        else:
            self._wake()

    def _wake(self) -> None:
        self._times.begin_turn()
        for waiter in list(self._waiters):
            engine = self._engine
            if engine is None or self.dropped_by is not None or not self._has_records(engine):
                return
            self._is_cold = False
            if waiter in self._waiters:
                waiter.on_available()
            if self._is_cold:
                # It is being read for this one, who calls ``wake_later`` for the others then.
                return
            if self._times.is_turn_over:
                self.wake_later()
                return

    def _has_records(self, engine: SharePartition) -> bool:
        log = self._partition.log
        # Of all who wait, nearly every one finds nothing, and that is known without the settings of the group.
        if engine.has_nothing_below(log.high_watermark):
            return False
        isolation = self._environment.settings.isolation(self.key.group_id)
        bound = log.last_stable_offset if isolation is Isolation.LAST_STABLE else log.high_watermark
        limits = self._limits()
        return engine.next_fetch_offset(limits) < bound and engine.can_acquire(limits)

    def retire(self) -> None:
        """Nobody of the group fetches here any more."""
        self._is_retiring = self._burials > 0
        if not self._is_retiring:
            self.drop(NotLeader("no member of the group is connected to this broker"))

    def return_to_use(self) -> None:
        self._is_retiring = False

    def drop(self, reason: Exception) -> None:
        """Take the leader out of use. Whoever waits gets the reason."""
        if self.dropped_by is not None:
            return
        self.dropped_by = reason.with_traceback(None)
        self._engine = None
        self._partition.remove_fetch_waiter(self)
        for timer in (self._lock_timer, self._due_timer, self._wake_timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._on_dropped(self)
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.on_available()


class SharePartitions:
    __slots__ = ("_by_group", "_environment", "_partitions")

    def __init__(self, partitions: "Partitions", environment: ShareEnvironment) -> None:
        self._partitions = partitions
        self._environment = environment
        self._by_group: dict[str, dict[SharePartitionKey, ShareLeader]] = {}

    def __len__(self) -> int:
        return sum(len(leaders) for leaders in self._by_group.values())

    @property
    def settings(self) -> ShareSettings:
        return self._environment.settings

    @property
    def counters(self) -> ShareCounters:
        return self._environment.counters

    @property
    def dead_letter_count(self) -> int:
        return self._environment.dead_letters.written_count

    def by_group(self) -> Iterator[tuple[str, Collection[ShareLeader]]]:
        """The groups that fetch here, with the leaders of their partitions. Groups may come and go while the caller pauses."""
        for group_id, leaders in list(self._by_group.items()):
            yield group_id, list(leaders.values())

    def find(self, group_id: str, topic_id: bytes, index: int) -> ShareLeader:
        """Return the leader, which may have to read its state first. Raises ApiError, NotLeader or LogOffline."""
        key = SharePartitionKey(group_id, topic_id, index)
        leader = self._by_group.get(group_id, {}).get(key)
        if leader is None:
            partition = self._partitions.find(None, topic_id, index)
            partition.check_open()
            leader = ShareLeader(key, partition, self._environment, self._forget)
            if leader.dropped_by is None:
                self._by_group.setdefault(group_id, {})[key] = leader
        leader.check()
        leader.return_to_use()
        return leader

    def find_existing(self, group_id: str, topic_id: bytes, index: int) -> ShareLeader | None:
        return self._by_group.get(group_id, {}).get(SharePartitionKey(group_id, topic_id, index))

    def release_member(self, group_id: str, member_id: str, is_group_used: Callable[[], bool]) -> None:
        """Release everything that a member holds, and drop the group's leaders, unless somebody else fetches from them. The
        member holds nothing from now on; the rest is done in slices, because it may have had records of many partitions."""
        leaders = list(self._by_group.get(group_id, {}).values())
        disowned = [leader for leader in leaders if leader.disown(member_id)]
        steps = _release(disowned, leaders, is_group_used)
        self._environment.work_slices.run(steps, _raise_error)

    def drop_group(self, group_id: str) -> None:
        """The group is being deleted."""
        for leader in list(self._by_group.get(group_id, {}).values()):
            leader.retire()

    def _forget(self, leader: ShareLeader) -> None:
        leaders = self._by_group.get(leader.key.group_id, {})
        if leaders.get(leader.key) is leader:
            del leaders[leader.key]
            if not leaders:
                del self._by_group[leader.key.group_id]


def _release(disowned: Sequence[ShareLeader], leaders: Sequence[ShareLeader], is_group_used: Callable[[], bool]) -> Steps[None]:
    for leader in disowned:
        leader.release_disowned()
        yield
    pace = Pace()
    for leader in leaders:
        if is_group_used():
            return
        leader.retire()
        if pace.is_pause_due():
            yield


def _raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error


_FENCED = (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _as_leader_error(error: Exception | None) -> Exception:
    """What clients are told when the share coordinator has refused: look for the leader again, or try again."""
    if error is None:
        return NotLeader("the state of the share partition was not found")
    code, message = error_code_of(error)
    if code in _FENCED:
        return NotLeader(f"the share coordinator has fenced this leader: {message}")
    if isinstance(error, CoordinatorError):
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return error


def _copy(error: Exception) -> Exception:
    """An error that is raised again and again must not collect tracebacks."""
    return ApiError(*error_code_of(error))


def _stored_batches(found: LogRead, offset: int, records_max: int, batches_max: int) -> list[_StoredBatch]:
    """The batches from the one that holds ``offset`` on, until there are enough for one request."""
    assert found.records is not None
    file, begin, length = found.records
    aborted = _aborted_by_producer(found.aborted)
    stored: list[_StoredBatch] = []
    position, end = begin, begin + length
    data, data_begin = b"", begin
    while position + HEADER_SIZE <= end and len(stored) < batches_max:
        if position + HEADER_SIZE > data_begin + len(data):
            data, data_begin = file.read(position, min(HEADERS_READ_BYTES, end - position)), position
        header = read_header(data, position - data_begin)
        size = header.size
        if position + size > end:
            break
        is_aborted = header.is_transactional and _is_aborted(aborted.get(header.producer_id, ()), header.base_offset)
        batch = LogBatch(header.base_offset, header.next_offset - 1, header.is_control or is_aborted)
        stored.append(_StoredBatch(batch, position, size))
        if batch.last_offset - offset + 1 >= records_max:
            break
        position += size
    return stored


def _aborted_by_producer(aborted: Sequence[AbortedTransaction]) -> dict[int, list[AbortedTransaction]]:
    """The transactions of each producer, in their order: they do not overlap."""
    by_producer: dict[int, list[AbortedTransaction]] = {}
    for each in aborted:
        by_producer.setdefault(each.producer_id, []).append(each)
    for transactions in by_producer.values():
        transactions.sort(key=attrgetter("first_offset"))
    return by_producer


def _is_aborted(transactions: Sequence[AbortedTransaction], offset: int) -> bool:
    index = bisect_right(transactions, offset, key=attrgetter("first_offset")) - 1
    return index >= 0 and offset <= transactions[index].last_offset


def _with_keys(stored: _StoredBatch, records: LogSlice, frontier: int) -> _StoredBatch:
    batch = stored.batch
    if batch.is_skipped or batch.last_offset < frontier:
        return stored
    data = records.file.read(stored.position, stored.size)
    try:
        keys = read_record_keys(data, 0, read_header(data, 0))
    except RecordError:
        # Whoever reads the batch will say so. It must not keep back everything behind it for ever.
        return stored
    return stored._replace(batch=batch._replace(keys=keys))


def _slices(records: LogSlice, stored: Sequence[_StoredBatch], acquired: Sequence[AcquiredRecords]) -> list[LogSlice]:
    """The batches that hold acquired records, as few slices as possible."""
    slices: list[LogSlice] = []
    pieces = iter(acquired)
    piece = next(pieces, None)
    for batch, position, size in stored:
        while piece is not None and piece.last_offset < batch.first_offset:
            piece = next(pieces, None)
        if piece is None:
            break
        if piece.first_offset > batch.last_offset:
            continue
        if slices and slices[-1].position + slices[-1].length == position:
            slices[-1] = slices[-1]._replace(length=slices[-1].length + size)
        else:
            slices.append(LogSlice(records.file, position, size))
    return slices
