"""A partition that this broker leads: appends, the end of what consumers may see, and the requests that wait for it.

The high watermark is the lowest *durable* end offset in the in-sync set, and does not move while that set is smaller than
``min.insync.replicas``: nobody reads what a power cut could undo. With one replica that is the log's own durable end. On a topic
with relaxed durability (``flush.messages`` above 1) "durable" means "appended".

The partition listens to its log: after every commit pass that covered it, ``advance`` moves the high watermark. Producers with
acks=all wait for it to pass their records, and fetches for it to pass their offset. Both are called from ``advance``, never from
within ``append``. What an append leaves to be done later is kept in the ``AppendTracker`` that all partitions of a broker share.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog.log.append_check import AppendOrigin
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.ports.disk import Buffer
from tidelog.replication.errors import FencedLeaderEpoch, NotEnoughReplicas, UnknownLeaderEpoch

OnReplicated = Callable[[Exception | None], None]


class AppendTracker:
    """Tracks the work that appends leave behind: bytes to sync, and partitions with relaxed durability to advance.

    Unsynced bytes are counted by commit passes, not by logs: what was written since the pass before the last one ended may be
    unsynced, everything earlier is synced. Topics with relaxed durability do not count, because nobody waits for their syncs.
    Their high watermark moves at the end of the burst, since nobody who waits may be called from within an append."""

    __slots__ = ("_bytes_before_pass", "_bytes_since_pass", "_relaxed", "last_log")

    def __init__(self) -> None:
        self._bytes_before_pass = 0
        self._bytes_since_pass = 0
        # A dictionary, because it keeps the order.
        self._relaxed: dict[Partition, None] = {}
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
        """Called when the high watermark or the last stable offset has moved, or the partition went offline."""
        ...


class Partition:
    __slots__ = (
        "_appends",
        "_fetch_waiters",
        "_producers_waiting",
        "closed_by",
        "fetched_bytes",
        "index",
        "is_internal",
        "isr",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "produced_bytes",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: TopicImage, index: int, log: PartitionLog, min_insync_replicas: int, appends: AppendTracker
    ) -> None:
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.is_internal = topic.is_internal
        state = topic.partitions[index]
        self.leader_epoch = state.leader_epoch
        self.replicas = state.replicas
        self.isr = state.isr
        # Bytes of records from and to clients since this broker began to lead the partition.
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.closed_by: Exception | None = None
        """The reason why the partition is out of use, if it is: whoever still holds it gets this error."""
        self._appends = appends
        self._producers_waiting: deque[tuple[int, OnReplicated]] | None = None
        # A dictionary, because it keeps the order: which fetch is answered first must not depend on hashes.
        self._fetch_waiters: dict[FetchWaiter, None] | None = None
        log.add_durability_listener(self.advance)
        self.advance()

    def follow(self, state: PartitionImage) -> None:
        """Take over a new epoch, replicas or in-sync set from the metadata."""
        self.leader_epoch = state.leader_epoch
        self.replicas = state.replicas
        self.isr = state.isr
        self.advance()

    def change_min_insync_replicas(self, count: int) -> None:
        self.min_insync_replicas = count
        self.advance()

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

    def append(self, records: Buffer, acks_all: bool, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        """Append records. They are written when this returns, and durable and visible when the high watermark has passed them."""
        if acks_all and len(self.isr) < self.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self.log.name} has {len(self.isr)} of {len(self.replicas)} replicas in sync, min.insync.replicas is "
                f"{self.min_insync_replicas}"
            )
        result = self.log.append_as_leader(records, self.leader_epoch, origin)
        length = len(records)
        if origin is AppendOrigin.CLIENT:
            self.produced_bytes += length
        self._appends.appended(self, length)
        return result

    def count_fetched(self, length: int) -> None:
        self.fetched_bytes += length

    def advance(self) -> None:
        """Move the high watermark, because the log's durable end (on a relaxed topic: its end) or the in-sync set may have
        changed."""
        log = self.log
        if log.offline_reason is not None:
            self._fail(log)
            return
        if len(self.isr) < self.min_insync_replicas:
            return
        before = log.high_watermark
        stable_before = log.last_stable_offset if self._fetch_waiters else before
        log.advance_high_watermark(log.log_end_offset if log.settings.is_relaxed else log.durable.offset)
        high_watermark = log.high_watermark
        if high_watermark != before:
            waiting = self._producers_waiting
            while waiting and waiting[0][0] <= high_watermark:
                waiting.popleft()[1](None)
        if self._fetch_waiters and (high_watermark != before or log.last_stable_offset != stable_before):
            for waiter in list(self._fetch_waiters):
                waiter.on_data(self)

    def wait_replicated(self, offset: int, on_replicated: OnReplicated) -> None:
        """Call back once everything below ``offset`` is below the high watermark. Offsets come in rising order."""
        if self.log.high_watermark >= offset:
            on_replicated(None)
            return
        if self._producers_waiting is None:
            self._producers_waiting = deque()
        self._producers_waiting.append((offset, on_replicated))

    def add_fetch_waiter(self, waiter: FetchWaiter) -> None:
        if self._fetch_waiters is None:
            self._fetch_waiters = {}
        self._fetch_waiters[waiter] = None

    def remove_fetch_waiter(self, waiter: FetchWaiter) -> None:
        if self._fetch_waiters is not None:
            self._fetch_waiters.pop(waiter, None)

    def close(self, error: Exception) -> None:
        """Called when the partition is gone or led elsewhere: all waiting requests get the error."""
        self.closed_by = error.with_traceback(None)
        self.log.remove_durability_listener(self.advance)
        waiting, self._producers_waiting = self._producers_waiting, None
        for _, on_replicated in waiting or ():
            on_replicated(error)
        for waiter in list(self._fetch_waiters or ()):
            waiter.on_data(self)

    def _fail(self, log: PartitionLog) -> None:
        try:
            log.check_online()
        except Exception as error:
            self.close(error)


def _copy_of(error: Exception) -> Exception:
    """Return an equal exception without a traceback. Exception types differ in the parameters of their constructors, so no
    constructor is called."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy
