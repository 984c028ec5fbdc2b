"""Copies partitions from their leader: one ``ReplicaFetcher`` per leader, with one fetch session for all of its partitions.

The fetcher decides and appends; the broker sends its requests and hands it the responses. The cycle:

1. ``poll`` makes a request. It names, in an incremental session, only the partitions whose position has changed.
2. ``take_response`` appends the records straight from the response's buffer, byte for byte as the leader has them.
3. One group commit makes all of them durable. Only then does ``poll`` make the next request: *a fetch offset is durable*, and the
   leader counts on that. (On topics with relaxed durability nobody waits for the commit.)

A partition's history may differ from the leader's: a former leader may have records that were never committed. So each request
names the epoch of the partition's last record. If the leader's history differs, it answers with the epoch and offset up to which
the two may agree, and no records. The follower truncates to there and asks again, and only an answer without a divergence raises
its high watermark or gives it records. It never truncates to its high watermark, which may be behind the leader's.

What a replica in sync, or eligible, has below its high watermark is committed. If the leader asks such a replica to give that up,
something is badly wrong, and the log goes offline instead. A replica outside of both sets follows whoever leads: after an unclean
election it may have to give up more, and reports it.

A partition that gets an error leaves the session for a while, and so does one whose throttle lets nothing pass. The metadata
decides who leads; an error alone never does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from tidelog.log.errors import LogError
from tidelog.log.leader_epochs import UNDEFINED_EPOCH
from tidelog.log.partition_log import PartitionLog
from tidelog.metadata.topics import PartitionImage
from tidelog.ports.clock import Clock
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, read_header
from tidelog.replication.throttle import ReplicationThrottle
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic

NO_SESSION = 0
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
RECOVERED = 0
# A partition that got an error is asked for again after this time. Most errors mean that the metadata of one of the two brokers
# is a few milliseconds behind.
RETRY_MS = 100

OnDone = Callable[[BaseException | None], None]
ReplicaKey = tuple[bytes, int]

_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


class FollowerPhase(IntEnum):
    SYNCING = 0
    """What the log holds is not durable yet."""
    FETCHING = 1
    TRUNCATING = 2
    DELAYED = 3
    """The last answer was an error, or the throttle lets nothing pass."""
    OFFLINE = 4


class FollowedPartition:
    """A partition that this broker copies in one leader epoch."""

    __slots__ = (
        "index",
        "is_in_sync",
        "is_trusted",
        "leader",
        "leader_epoch",
        "log",
        "phase",
        "requested",
        "retry_at_ms",
        "throttle",
        "topic_id",
    )

    def __init__(self, topic_id: bytes, index: int, log: PartitionLog, node_id: int, state: PartitionImage) -> None:
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.is_trusted = False
        """Whether everything below the high watermark is committed, for certain."""
        self.is_in_sync = False
        self.throttle: ReplicationThrottle | None = None
        """The limit on what is copied while this broker is not in sync, if the partition has one."""
        self.phase = FollowerPhase.SYNCING
        self.requested: FetchPartition | None = None
        """What the leader was last asked for; None before the first request of this epoch."""
        self.retry_at_ms = 0
        self.follow(node_id, state)

    @property
    def key(self) -> ReplicaKey:
        return self.topic_id, self.index

    def follow(self, node_id: int, state: PartitionImage) -> None:
        """Take over another in-sync set from the metadata, within the same leader epoch."""
        self.is_in_sync = node_id in state.isr
        is_member = self.is_in_sync or node_id in state.eligible_leader_replicas
        self.is_trusted = is_member and state.leader_recovery_state == RECOVERED and not self.log.settings.is_relaxed

    def change_throttle(self, throttle: ReplicationThrottle | None) -> None:
        self.throttle = throttle

    @property
    def is_throttled(self) -> bool:
        return self.throttle is not None and self.throttle.is_limited and not self.is_in_sync


@dataclass(frozen=True, slots=True)
class FetcherPorts:
    """What a fetcher needs of its broker."""

    clock: Clock
    report: Callable[[str, dict[str, object]], None]
    wait_durable: Callable[[PartitionLog, int, OnDone], None]
    truncate: Callable[[PartitionLog, int, OnDone], None]
    """Cut the log at an offset, so that a crash in between does not look like lost data."""
    start_over: Callable[[PartitionLog, int, OnDone], None]
    """Drop everything, and let the log begin at an offset."""
    raise_start: Callable[[PartitionLog, int], None]
    on_ready: Callable[[], None]
    """Called when ``poll`` may have a request again."""
    on_offline: Callable[[FollowedPartition], None]


@dataclass(frozen=True, slots=True)
class FetcherOptions:
    node_id: int
    wait_ms_max: int = 500
    bytes_min: int = 1
    response_bytes_max: int = 10 << 20
    partition_bytes_max: int = 1 << 20


class ReplicaFetcher:
    __slots__ = (
        "_changed",
        "_delayed",
        "_forgotten",
        "_in_session",
        "_is_in_flight",
        "_options",
        "_partitions",
        "_ports",
        "_retry_at_ms",
        "_session_epoch",
        "_session_id",
        "_unsynced",
        "fetched_bytes",
    )

    def __init__(self, options: FetcherOptions, ports: FetcherPorts) -> None:
        self._options = options
        self._ports = ports
        self._partitions: dict[ReplicaKey, FollowedPartition] = {}
        # Dictionaries, because they keep the order. What the next request has to mention, and what it has to drop.
        self._changed: dict[ReplicaKey, None] = {}
        self._forgotten: dict[ReplicaKey, None] = {}
        self._in_session: dict[ReplicaKey, None] = {}
        self._delayed: dict[ReplicaKey, FollowedPartition] = {}
        self._unsynced = 0
        self._is_in_flight = False
        self._retry_at_ms = 0
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self.fetched_bytes = 0

    def __len__(self) -> int:
        return len(self._partitions)

    # -- which partitions ----------------------------------------------------------------------------------------------------

    def find(self, key: ReplicaKey) -> FollowedPartition | None:
        return self._partitions.get(key)

    def add(self, partition: FollowedPartition) -> None:
        """Copy a partition from now on. Another one of the same key is dropped. The log is not being truncated."""
        self.remove(partition.key)
        self._partitions[partition.key] = partition
        self._sync_then_fetch(partition)

    def remove(self, key: ReplicaKey) -> None:
        if self._partitions.pop(key, None) is not None:
            self._leave_session(key)
            self._delayed.pop(key, None)

    def _leave_session(self, key: ReplicaKey) -> None:
        self._changed.pop(key, None)
        if self._in_session.pop(key, False) is None:
            self._forgotten[key] = None

    def _sync_then_fetch(self, partition: FollowedPartition) -> None:
        """Fetch once everything that the log holds is durable: the fetch offset says so."""
        log = partition.log

        def durable(error: BaseException | None) -> None:
            if self._partitions.get(partition.key) is not partition:
                return
            if error is not None:
                self._delay(partition, f"its log cannot be synced: {error}")
            else:
                partition.phase = FollowerPhase.FETCHING
                self._changed[partition.key] = None
                self._ports.on_ready()

        partition.phase = FollowerPhase.SYNCING
        if log.settings.is_relaxed:
            durable(None)
        else:
            self._ports.wait_durable(log, log.log_end_offset, durable)

    def _delay(self, partition: FollowedPartition, reason: str) -> None:
        if partition.log.offline_reason is not None:
            self._go_offline(partition)
            return
        self._leave_session(partition.key)
        partition.phase = FollowerPhase.DELAYED
        partition.retry_at_ms = self._ports.clock.monotonic_ms() + RETRY_MS
        self._delayed[partition.key] = partition
        self._ports.report("replica_fetch_delayed", {"partition": partition.log.name, "reason": reason})

    def _go_offline(self, partition: FollowedPartition) -> None:
        partition.phase = FollowerPhase.OFFLINE
        self._leave_session(partition.key)
        self._ports.on_offline(partition)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When ``poll`` should be called although nothing happened."""
        deadlines = [partition.retry_at_ms for partition in self._delayed.values()]
        if self._retry_at_ms:
            deadlines.append(self._retry_at_ms)
        return min(deadlines, default=None)

    def poll(self) -> FetchRequest | None:
        """Return the next request, and treat it as sent; None if it is not time for one."""
        now_ms = self._ports.clock.monotonic_ms()
        for partition in [each for each in self._delayed.values() if each.retry_at_ms <= now_ms]:
            del self._delayed[partition.key]
            self._sync_then_fetch(partition)
        if self._is_in_flight or self._unsynced or self._retry_at_ms > now_ms:
            return None
        self._hold_throttled(now_ms)
        if not self._changed and not self._in_session and not self._forgotten:
            return None
        self._retry_at_ms = 0
        if self._session_epoch == INITIAL_EPOCH:
            # A request outside of a session, and the first one of a session, name everything.
            self._changed = {**self._in_session, **self._changed}
            self._in_session = {}
            self._forgotten = {}
            if not self._changed:
                return None
        topics: dict[bytes, list[FetchPartition]] = {}
        for key in self._changed:
            partition = self._partitions[key]
            partition.requested = self._position(partition)
            topics.setdefault(partition.topic_id, []).append(partition.requested)
            self._in_session[key] = None
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._forgotten:
            if (topic_id, index) not in self._in_session:
                forgotten.setdefault(topic_id, []).append(index)
        self._changed, self._forgotten = {}, {}
        self._is_in_flight = True
        options = self._options
        return FetchRequest(
            replica_id=options.node_id,
            wait_ms_max=options.wait_ms_max,
            bytes_min=options.bytes_min,
            bytes_max=options.response_bytes_max,
            isolation_level=0,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[FetchTopic(None, topic_id, partitions) for topic_id, partitions in topics.items()],
            forgotten=[ForgottenTopic(None, topic_id, indexes) for topic_id, indexes in forgotten.items()],
            rack_id="",
        )

    def _hold_throttled(self, now_ms: int) -> None:
        """Take the partitions whose throttle lets nothing pass out of the session until it does."""
        for key in (*self._in_session, *self._changed):
            partition = self._partitions[key]
            if not partition.is_throttled:
                continue
            wait_ms = partition.throttle.wait_ms() if partition.throttle is not None else 0
            if not wait_ms:
                # The request has to say how much may pass now.
                self._changed[key] = None
                continue
            self._leave_session(key)
            partition.phase = FollowerPhase.DELAYED
            partition.retry_at_ms = now_ms + wait_ms
            self._delayed[key] = partition

    def _position(self, partition: FollowedPartition) -> FetchPartition:
        log, bytes_max = partition.log, self._options.partition_bytes_max
        if partition.throttle is not None and partition.is_throttled:
            bytes_max = min(bytes_max, partition.throttle.available())
        return FetchPartition(
            partition.index,
            log.log_end_offset,
            bytes_max,
            partition.leader_epoch,
            log.epochs.latest_epoch,
            log.log_start_offset,
        )

    # -- responses -----------------------------------------------------------------------------------------------------------

    def request_failed(self) -> None:
        """No response came. The leader may have begun another epoch of the session, so the session is abandoned."""
        self._is_in_flight = False
        self._end_session()
        self._retry_at_ms = self._ports.clock.monotonic_ms() + RETRY_MS

    def _end_session(self) -> None:
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH

    def take_response(self, response: FetchResponse) -> None:
        self._is_in_flight = False
        if response.error is not ErrorCode.NONE:
            self._end_session()
            if response.error not in _SESSION_ERRORS:
                self._retry_at_ms = self._ports.clock.monotonic_ms() + RETRY_MS
            return
        self._session_id = response.session_id
        if response.session_id == NO_SESSION:
            self._session_epoch = INITIAL_EPOCH
        else:
            self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
        appended: list[FollowedPartition] = []
        for topic in response.topics:
            for result in topic.partitions:
                partition = self._partitions.get((topic.topic_id or b"", result.partition))
                if partition is not None and self._is_current(partition) and self._take(partition, result):
                    appended.append(partition)
        self._wait_durable(appended)

    def _is_current(self, partition: FollowedPartition) -> bool:
        """Whether an answer about the partition is an answer to its present state. It may have begun another epoch since."""
        requested = partition.requested
        return (
            requested is not None
            and partition.phase is FollowerPhase.FETCHING
            and requested.fetch_offset == partition.log.log_end_offset
        )

    def _take(self, partition: FollowedPartition, result: FetchedPartition) -> bool:
        """Take one partition's answer. Returns whether records were appended."""
        log = partition.log
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0:
            self._start_over(partition, result.log_start_offset)
            return False
        if result.error is not ErrorCode.NONE:
            self._delay(partition, result.error.name)
            return False
        if result.diverging_epoch is not None:
            self._truncate(partition, *result.diverging_epoch)
            return False
        has_records = result.records is not None and len(result.records) > 0
        if has_records:
            assert result.records is not None
            if self._begins_within(log, result.records):
                self._begin_with_batch(partition, result._replace(records=memoryview(bytes(result.records))))
                return False
            if not self._append(partition, result.records):
                return False
            self._changed[partition.key] = None
        self._follow_watermarks(partition, result)
        return has_records

    def _append(self, partition: FollowedPartition, records: memoryview) -> bool:
        try:
            partition.log.append_as_follower(records)
        except (LogError, RecordError, OSError) as error:
            self._delay(partition, str(error))
            return False
        self.fetched_bytes += len(records)
        if partition.throttle is not None and partition.is_throttled:
            partition.throttle.record(len(records))
        return True

    def _follow_watermarks(self, partition: FollowedPartition, result: FetchedPartition) -> None:
        log = partition.log
        log.advance_high_watermark(result.high_watermark)
        if result.log_start_offset > log.log_start_offset:
            self._ports.raise_start(log, min(result.log_start_offset, log.high_watermark))
            if partition.phase is FollowerPhase.FETCHING:
                self._changed[partition.key] = None

    def _wait_durable(self, appended: list[FollowedPartition]) -> None:
        """One group commit for everything of a response; then the next request."""
        waiting = [partition for partition in appended if not partition.log.settings.is_relaxed]
        self._unsynced += len(waiting)
        for partition in waiting:
            log = partition.log
            self._ports.wait_durable(log, log.log_end_offset, partial(self._on_durable, partition))

    def _on_durable(self, partition: FollowedPartition, error: BaseException | None) -> None:
        self._unsynced -= 1
        if error is not None and self._partitions.get(partition.key) is partition:
            self._delay(partition, f"its log cannot be synced: {error}")
        if not self._unsynced:
            self._ports.on_ready()

    # -- where the histories differ ------------------------------------------------------------------------------------------

    def _truncate(self, partition: FollowedPartition, epoch: int, end_offset: int) -> None:
        log = partition.log
        offset = truncation_offset(log, epoch, end_offset)
        if offset >= log.log_end_offset:
            self._delay(partition, f"the leader's epoch {epoch} ends at {end_offset}, which asks for no truncation")
        elif self._may_cut(partition, offset):
            self._cut(partition, offset, self._ports.truncate)

    def _start_over(self, partition: FollowedPartition, leader_start: int) -> None:
        """The leader has nothing that continues this log: its log begins above our end, or ends below an empty log of ours."""
        log = partition.log
        if log.epochs.latest_epoch > partition.leader_epoch:
            # No leader has had this epoch: the field is damaged on our disk, which no checksum covers.
            _, offset = log.epochs.end_offset_for(partition.leader_epoch, log.log_end_offset)
            if self._may_cut(partition, offset):
                self._cut(partition, offset, self._ports.truncate)
        elif leader_start <= log.log_end_offset and log.epochs.latest_epoch != UNDEFINED_EPOCH:
            self._delay(partition, "the leader's log does not reach ours")
        elif leader_start > log.log_end_offset or self._may_cut(partition, leader_start):
            self._cut(partition, leader_start, self._ports.start_over)

    def _may_cut(self, partition: FollowedPartition, offset: int) -> bool:
        log = partition.log
        if offset >= log.high_watermark:
            return True
        facts = {"partition": log.name, "offset": offset, "high_watermark": log.high_watermark, "leader": partition.leader}
        if partition.is_trusted:
            self._ports.report("truncation_refused", {**facts, "leader_epoch": partition.leader_epoch})
            log.go_offline(
                f"the leader, broker {partition.leader}, asks to truncate to offset {offset}, but everything below "
                f"{log.high_watermark} is committed: the leader has lost records"
            )
            self._go_offline(partition)
            return False
        self._ports.report("committed_records_truncated", facts)
        return True

    @staticmethod
    def _begins_within(log: PartitionLog, records: memoryview) -> bool:
        """Whether this log is empty and begins within the first of these batches: where records were deleted, the leader's log
        may start anywhere."""
        if log.log_start_offset < log.log_end_offset or len(records) < HEADER_SIZE:
            return False
        return read_header(records, 0).base_offset < log.log_end_offset

    def _begin_with_batch(self, partition: FollowedPartition, result: FetchedPartition) -> None:
        """Let the empty log begin with the first batch of the answer. The leader does not serve that offset, so the records that
        have come are kept until the log is ready for them."""
        records = result.records
        assert records is not None

        def append() -> None:
            if self._append(partition, records):
                self._follow_watermarks(partition, result)
                self._sync_then_fetch(partition)

        self._cut(partition, read_header(records, 0).base_offset, self._ports.start_over, append)

    def _cut(
        self,
        partition: FollowedPartition,
        offset: int,
        cut: Callable[[PartitionLog, int, OnDone], None],
        go_on: Callable[[], None] | None = None,
    ) -> None:
        partition.phase = FollowerPhase.TRUNCATING
        self._leave_session(partition.key)
        self._ports.report(
            "replica_truncated", {"partition": partition.log.name, "offset": offset, "end": partition.log.log_end_offset}
        )

        def done(error: BaseException | None) -> None:
            if self._partitions.get(partition.key) is not partition:
                return
            if error is not None:
                self._delay(partition, f"truncating it failed: {error}")
            elif go_on is not None:
                go_on()
            else:
                self._sync_then_fetch(partition)

        cut(partition.log, offset, done)


def truncation_offset(log: PartitionLog, epoch: int, end_offset: int) -> int:
    """Where the log may agree with the leader's, of which the newest epoch that both may know ends at ``end_offset``."""
    own_epoch, own_end_offset = log.epochs.end_offset_for(epoch, log.log_end_offset)
    if own_epoch == UNDEFINED_EPOCH:
        return min(end_offset, log.log_end_offset)
    return min(end_offset, own_end_offset, log.log_end_offset)
