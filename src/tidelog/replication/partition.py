"""A partition that this broker leads: appends, what consumers may see, and who waits for it.

The high watermark is the least *durable* end offset over the in-sync set, and does not move while that set is smaller than
``min.insync.replicas``: nobody reads what a power cut could take back. With one replica that is the log's own durable end. On a
topic that asked for relaxed durability (``flush.messages`` above 1) "durable" reads "appended".

Who waits: producers with acks=all for the high watermark to pass their records, and fetches for it to pass their offset. Both are
called from ``advance``, never from within ``append``.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog.log.append_check import AppendOrigin
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.ports.disk import Buffer
from tidelog.replication.errors import FencedLeaderEpoch, NotEnoughReplicas, UnknownLeaderEpoch

OnReplicated = Callable[[Exception | None], None]


class FetchWaiter(Protocol):
    def on_data(self, partition: "Partition") -> None:
        """The high watermark, or what read_committed may see, has moved; or the partition went offline."""
        ...


class Partition:
    __slots__ = (
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
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: PartitionLog,
        leader_epoch: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        min_insync_replicas: int,
        is_internal: bool = False,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.min_insync_replicas = min_insync_replicas
        self.is_internal = is_internal
        # Of records, from and to clients, since it is led here.
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.closed_by: Exception | None = None
        """Why it is out of use, once it is: whoever still holds it hears that."""
        self._producers_waiting: deque[tuple[int, OnReplicated]] | None = None
        # A dictionary for its order: which fetch is answered first must not depend on hashes.
        self._fetch_waiters: dict[FetchWaiter, None] | None = None

    def check_epoch(self, epoch: int) -> None:
        """-1: the client does not know or care."""
        if self.closed_by is not None:
            raise self.closed_by
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.log.name} is in leader epoch {self.leader_epoch}, the request is of epoch {epoch}")
        raise UnknownLeaderEpoch(f"{self.log.name} is in leader epoch {self.leader_epoch}, the request is of epoch {epoch}")

    def append(self, records: Buffer, acks_all: bool, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        """Written when it returns; durable and visible when the high watermark has passed it."""
        if acks_all and len(self.isr) < self.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self.log.name} has {len(self.isr)} of {len(self.replicas)} replicas in sync, min.insync.replicas is "
                f"{self.min_insync_replicas}"
            )
        return self.log.append_as_leader(records, self.leader_epoch, origin)

    def advance(self) -> None:
        """The log's durable end may have moved (on a relaxed topic: its end)."""
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
        """The partition is gone or led elsewhere: everybody who waits hears of it."""
        self.closed_by = error
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
