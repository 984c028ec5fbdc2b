"""A partition that this broker leads: appends, the end of what consumers may see, and the requests that wait for it.

One ``Partition`` is one leadership: it lives from the begin of a leader epoch to its end, and a later epoch gets another one.

The high watermark is the lowest *durable* end offset among the replicas in sync, and does not move while there are fewer of
them than the effective ``min.insync.replicas``: nobody reads what a power cut could undo. ``InSyncReplicas`` says which replicas
count. With one replica that is the log's own durable end. On a topic with relaxed durability (``flush.messages`` above 1)
"durable" means "appended".

The partition listens to its log: after every commit pass that covered it, ``advance`` moves the high watermark. So does a
follower's fetch. Producers with acks=all wait for it to pass their records, and fetches for it to pass their offset. Both are
called from ``advance``, never from within ``append``. Fetches of followers wait for the log end; they are called at the end of a
burst of appends. What an append leaves to be done later is kept in the ``AppendTracker`` that all partitions of a broker share.

A new leader does not know its predecessor's high watermark exactly. Until its own has reached the log end with which it began
(``epoch_start_offset``), it does not tell anybody where the log ends: the answer could be lower than an earlier one.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple, Protocol

from tidelog.log.append_check import AppendOrigin, ValidatedBatch
from tidelog.log.errors import LogError, OffsetOutOfRange
from tidelog.log.leader_epochs import UNDEFINED_EPOCH
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.log.reading import Isolation, LogSlice, read
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.ports.disk import Buffer
from tidelog.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OffsetNotAvailable,
    UnknownLeaderEpoch,
)
from tidelog.replication.in_sync_replicas import InSyncReplicas
from tidelog.replication.throttle import ReplicationThrottle
from tidelog.wire.fetch import FetchPartition

OnReplicated = Callable[[Exception | None], None]


class AppendTracker:
    """Tracks the work that appends leave behind: bytes to sync, followers to wake, and partitions with relaxed durability to
    advance.

    Unsynced bytes are counted by commit passes, not by logs: what was written since the pass before the last one ended may be
    unsynced, everything earlier is synced. Topics with relaxed durability do not count, because nobody waits for their syncs.
    Their high watermark moves at the end of the burst, since nobody who waits may be called from within an append."""

    __slots__ = ("_awaited_by_followers", "_bytes_before_pass", "_bytes_since_pass", "_catching_up", "_relaxed", "last_log")

    def __init__(self) -> None:
        self._bytes_before_pass = 0
        self._bytes_since_pass = 0
        # Dictionaries, because they keep the order.
        self._relaxed: dict[Partition, None] = {}
        self._awaited_by_followers: dict[Partition, None] = {}
        self._catching_up: dict[Partition, None] = {}
        self.last_log: PartitionLog | None = None
        """The last log whose append has to be synced."""

    @property
    def unsynced_bytes(self) -> int:
        """An upper bound for the bytes that are not synced."""
        return self._bytes_before_pass + self._bytes_since_pass

    def appended(self, partition: "Partition", length: int) -> None:
        log = partition.log
        if log.settings.is_relaxed:
            self._relaxed[partition] = None
        else:
            self._bytes_since_pass += length
            self.last_log = log
        if partition.follower_waiters:
            self._awaited_by_followers[partition] = None

    def wake_followers(self) -> None:
        """Answer the followers' fetches that wait for what was appended. Called at the end of a burst: a follower syncs once for
        everything that it gets at once."""
        awaited, self._awaited_by_followers = self._awaited_by_followers, {}
        for partition in awaited:
            partition.wake_followers()

    def note_catching_up(self, partition: "Partition") -> None:
        self._catching_up[partition] = None

    def take_catching_up(self) -> "dict[Partition, None]":
        """The partitions from which followers have fetched that are not in sync, since the last call."""
        catching_up, self._catching_up = self._catching_up, {}
        return catching_up

    def pass_ended(self) -> None:
        self._bytes_before_pass, self._bytes_since_pass = self._bytes_since_pass, 0

    def advance_relaxed(self) -> bool:
        """Advance the relaxed partitions with new records; returns whether there were any."""
        relaxed, self._relaxed = self._relaxed, {}
        for partition in relaxed:
            partition.advance()
        return bool(relaxed)


class FetchWaiter(Protocol):
    def on_data(self, partition: "Partition") -> None:
        """Called when the high watermark or the last stable offset has moved (for a follower: the log end), or when the partition
        has gone offline or elsewhere."""
        ...


class FollowerRead(NamedTuple):
    records: LogSlice | None
    diverging_epoch: tuple[int, int] | None
    """Where the follower's history leaves this one; there are no records then."""


class Partition:
    __slots__ = (
        "_appends",
        "_fetch_waiters",
        "_min_insync_setting",
        "_producers_waiting",
        "closed_by",
        "fetched_bytes",
        "follower_waiters",
        "in_sync",
        "index",
        "is_internal",
        "is_under_min_isr",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "produced_bytes",
        "replicated_bytes",
        "throttle",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: TopicImage, index: int, log: PartitionLog, min_insync_replicas: int, appends: AppendTracker
    ) -> None:
        """Begin to lead in the epoch that ``topic`` states."""
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.is_internal = topic.is_internal
        state = topic.partitions[index]
        self.leader_epoch = state.leader_epoch
        self.in_sync = InSyncReplicas(state, log.log_end_offset, log.environment.clock.monotonic_ms())
        self._min_insync_setting = self.min_insync_replicas = 0
        """The effective minimum: the setting, but no more than there are replicas, without those that a move is adding."""
        self.is_under_min_isr = False
        """Whether too few replicas are in sync to acknowledge anything, by the minimum or because the controller thinks so."""
        self._take_minimum(min_insync_replicas)
        # Bytes of records from and to clients, and to followers, since this broker began to lead the partition.
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.replicated_bytes = 0
        self.throttle: ReplicationThrottle | None = None
        """The limit on what followers that are not in sync are sent, if the partition has one."""
        self.closed_by: Exception | None = None
        """The reason why the partition is out of use, if it is: whoever still holds it gets this error."""
        self._appends = appends
        self._producers_waiting: deque[tuple[int, OnReplicated]] | None = None
        # Dictionaries, because they keep the order: which fetch is answered first must not depend on hashes.
        self._fetch_waiters: dict[FetchWaiter, None] | None = None
        self.follower_waiters: dict[FetchWaiter, None] | None = None
        """The fetches of followers that wait for the log end to move."""
        log.add_durability_listener(self.advance)
        self.advance()

    def follow(self, state: PartitionImage, min_insync_replicas: int | None = None) -> None:
        """Take over other replicas or another in-sync set from the metadata, within the same leader epoch, and the
        ``min.insync.replicas`` that holds with it: a smaller set must not move the high watermark by a minimum that was raised
        together with it, because the controller counts who left as eligible."""
        assert state.leader_epoch == self.leader_epoch, "another epoch is another leadership"
        self.in_sync.follow(state, self.log.environment.clock.monotonic_ms())
        self.change_min_insync_replicas(self._min_insync_setting if min_insync_replicas is None else min_insync_replicas)

    def change_min_insync_replicas(self, setting: int) -> None:
        self._take_minimum(setting)
        self.advance()
        if self.is_under_min_isr:
            self._fail_producers(NotEnoughReplicasAfterAppend(self._shortage()))

    def _take_minimum(self, setting: int) -> None:
        in_sync = self.in_sync
        self._min_insync_setting = setting
        self.min_insync_replicas = min(setting, in_sync.settled_count)
        self.is_under_min_isr = len(in_sync.isr) < self.min_insync_replicas or in_sync.has_eligible

    def _shortage(self) -> str:
        in_sync = self.in_sync
        count = f"{self.log.name} has {len(in_sync.isr)} of {len(in_sync.replicas)} replicas in sync"
        if len(in_sync.isr) < self.min_insync_replicas:
            return f"{count}, min.insync.replicas is {self._min_insync_setting}"
        return f"{count}, which is too few for the controller: start all brokers with the same min.insync.replicas"

    def check_open(self) -> None:
        """Raise the error that closed the partition, if one did.

        It is a copy that is raised: with a traceback, the error that the partition keeps would refer to frames that refer to the
        partition, and every request in them would wait for the cycle collector."""
        if self.closed_by is not None:
            raise _copy_of(self.closed_by)

    def check_epoch(self, epoch: int) -> None:
        """Check the client's leader epoch. -1 means that the client does not know or care."""
        self.check_open()
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.log.name} is in leader epoch {self.leader_epoch}, the request has epoch {epoch}")
        raise UnknownLeaderEpoch(f"{self.log.name} is in leader epoch {self.leader_epoch}, the request has epoch {epoch}")

    def append(
        self, records: Buffer | ValidatedBatch, acks_all: bool, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendResult:
        """Append records. They are written when this returns, and durable and visible when the high watermark has passed them."""
        log = self.log
        is_short = acks_all and self.is_under_min_isr
        if is_short or log.environment.reserve.is_released:
            self._check_means(records, is_short=is_short)
        result = log.append_as_leader(records, self.leader_epoch, origin)
        length = len(records.view) if isinstance(records, ValidatedBatch) else len(records)
        if origin is AppendOrigin.CLIENT:
            self.produced_bytes += length
        self._appends.appended(self, length)
        return result

    def _check_means(self, records: Buffer | ValidatedBatch, *, is_short: bool) -> None:
        """Check whether there are enough replicas and there is enough room to append. A duplicate appends nothing, so it is only
        refused while the high watermark cannot reach it."""
        log = self.log
        end_offset = _end_of_duplicate(log, records)
        if end_offset is None:
            if is_short:
                raise NotEnoughReplicas(self._shortage())
            log.environment.reserve.check()
        elif is_short and end_offset > log.high_watermark:
            raise NotEnoughReplicasAfterAppend(self._shortage())

    def count_fetched(self, length: int) -> None:
        self.fetched_bytes += length

    def count_replicated(self, broker_id: int, length: int) -> None:
        """Count what a follower is sent."""
        self.replicated_bytes += length
        if self.throttle is not None and broker_id not in self.in_sync.isr:
            self.throttle.record(length)

    def change_throttle(self, throttle: ReplicationThrottle | None) -> None:
        self.throttle = throttle

    def read_as_follower(
        self, follower: tuple[int, int], wanted: FetchPartition, bytes_max: int, at_least_one: bool = True
    ) -> FollowerRead:
        """Serve a fetch of a follower, given by its (broker id, broker epoch). What it says about its log counts only if its
        history is ours. A throttled follower may be sent nothing."""
        self.check_epoch(wanted.current_leader_epoch)
        diverging = self.diverging_epoch(wanted.fetch_offset, wanted.last_fetched_epoch)
        if diverging is not None:
            return FollowerRead(None, diverging)
        if self.throttle is not None and follower[0] not in self.in_sync.isr:
            available = self.throttle.available()
            bytes_max, at_least_one = min(bytes_max, available), at_least_one and available > 0
        found = read(self.log, wanted.fetch_offset, bytes_max, Isolation.LOG_END, at_least_one)
        self.note_follower_fetch(*follower, wanted.fetch_offset, wanted.log_start_offset)
        return FollowerRead(found.records, None)

    def note_follower_fetch(self, broker_id: int, broker_epoch: int, offset: int, log_start_offset: int) -> None:
        """A follower fetches at ``offset``, and its history up to there is ours. Raises NotReplica or StaleBrokerEpoch."""
        log = self.log
        now_ms = log.environment.clock.monotonic_ms()
        follower = self.in_sync.note_fetch(broker_id, broker_epoch, offset, log_start_offset, log.log_end_offset, now_ms)
        if offset > log.high_watermark and follower in self.in_sync.maximal_followers:
            self.advance()
        if broker_id not in self.in_sync.isr:
            self._appends.note_catching_up(self)

    def diverging_epoch(self, offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where a follower, whose log ends at ``offset`` with a record of ``last_fetched_epoch``, may agree with this log, as
        (epoch, end offset). None if it agrees up to its end."""
        if last_fetched_epoch == UNDEFINED_EPOCH:
            return None
        log = self.log
        epoch, end_offset = log.epochs.end_offset_for(last_fetched_epoch, log.log_end_offset, self.leader_epoch)
        if epoch == UNDEFINED_EPOCH:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < offset else None

    def latest_offset(self, *, is_read_committed: bool) -> int:
        """The end of what consumers may read. Raises OffsetNotAvailable while it is not known."""
        log = self.log
        if log.high_watermark < self.in_sync.epoch_start_offset:
            raise OffsetNotAvailable(
                f"{log.name} is in a new leader epoch, and its high watermark {log.high_watermark} has not reached "
                f"{self.in_sync.epoch_start_offset} yet"
            )
        return log.last_stable_offset if is_read_committed else log.high_watermark

    def advance(self) -> None:
        """Move the high watermark, because the log's durable end (on a relaxed topic: its end), a follower's, or the in-sync set
        may have changed."""
        log = self.log
        if log.offline_reason is not None:
            self._fail(log)
            return
        if self.is_under_min_isr:
            return
        in_sync = self.in_sync
        before = log.high_watermark
        stable_before = log.last_stable_offset if self._fetch_waiters else before
        end = log.log_end_offset if log.settings.is_relaxed else log.durable.offset
        log.advance_high_watermark(in_sync.lowest_durable_end(end) if in_sync.maximal_followers else end)
        high_watermark = log.high_watermark
        if high_watermark != before:
            waiting = self._producers_waiting
            while waiting and waiting[0][0] <= high_watermark:
                waiting.popleft()[1](None)
        if self._fetch_waiters and (high_watermark != before or log.last_stable_offset != stable_before):
            for waiter in list(self._fetch_waiters):
                waiter.on_data(self)

    def wait_replicated(self, offset: int, on_replicated: OnReplicated) -> None:
        """Call back once everything below ``offset`` is below the high watermark. Offsets come in rising order, except those of
        duplicates."""
        if self.log.high_watermark >= offset:
            on_replicated(None)
            return
        waiting = self._producers_waiting
        if waiting is None:
            waiting = self._producers_waiting = deque()
        if waiting and offset < waiting[-1][0]:
            insort(waiting, (offset, on_replicated), key=_offset_of)
        else:
            waiting.append((offset, on_replicated))

    def add_fetch_waiter(self, waiter: FetchWaiter) -> None:
        if self._fetch_waiters is None:
            self._fetch_waiters = {}
        self._fetch_waiters[waiter] = None

    def remove_fetch_waiter(self, waiter: FetchWaiter) -> None:
        if self._fetch_waiters is not None:
            self._fetch_waiters.pop(waiter, None)

    def add_follower_waiter(self, waiter: FetchWaiter) -> None:
        if self.follower_waiters is None:
            self.follower_waiters = {}
        self.follower_waiters[waiter] = None

    def remove_follower_waiter(self, waiter: FetchWaiter) -> None:
        if self.follower_waiters is not None:
            self.follower_waiters.pop(waiter, None)

    def wake_followers(self) -> None:
        for waiter in list(self.follower_waiters or ()):
            waiter.on_data(self)

    def close(self, error: Exception) -> None:
        """Called when the partition is gone or its leader epoch has ended: all waiting requests get the error."""
        self.closed_by = error.with_traceback(None)
        self.log.remove_durability_listener(self.advance)
        self._fail_producers(error)
        for waiter in (*(self._fetch_waiters or ()), *(self.follower_waiters or ())):
            waiter.on_data(self)

    def _fail_producers(self, error: Exception) -> None:
        waiting, self._producers_waiting = self._producers_waiting, None
        for _, on_replicated in waiting or ():
            on_replicated(error)

    def _fail(self, log: PartitionLog) -> None:
        try:
            log.check_online()
        except Exception as error:
            self.close(error)


_offset_of = itemgetter(0)


def _end_of_duplicate(log: PartitionLog, records: Buffer | ValidatedBatch) -> int | None:
    """The offset after a client's batch that the log has already; None if it does not have it, or would refuse it."""
    if not isinstance(records, ValidatedBatch) or records.header.producer_id < 0:
        return None
    try:
        earlier = log.producers.check(records.header)
    except LogError:
        return None
    return None if earlier is None else earlier.last_offset + 1


def _copy_of(error: Exception) -> Exception:
    """Return an equal exception without a traceback. Exception types differ in the parameters of their constructors, so no
    constructor is called."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy
