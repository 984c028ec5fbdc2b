"""One shard: a state machine, the partition that holds its records, and the answers that wait for them.

Decisions run at once and one after the other. Their records are replayed at once too, and gathered: the log gets one batch for
all decisions of a burst (``flush``). An answer is kept with the batch that it depends on, which is the newest one, and given when
that is committed. So nobody hears of anything that a crash could take back, and decisions still need not wait for each other.

The end of a shard: an append that fails, a batch that can no longer be committed, a replay that fails. Then memory and log may
differ, so the machine is dropped, everybody who waits is told to try again, and the shard is loaded anew.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic

from tidelog.coordinator.errors import (
    CoordinatorError,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    DecisionTooLarge,
    NotCoordinator,
)
from tidelog.coordinator.loading import ShardLoader
from tidelog.coordinator.machine import (
    Cancellable,
    CoordinatorResult,
    MachineType,
    OnCommitted,
    OnDone,
    RecordCodec,
    Scheduler,
    ShardLog,
)
from tidelog.coordinator.shard_timers import ShardTimers, TimedDecision
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Executor
from tidelog.records.batch import build_batch_of_pairs
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import HEADER_SIZE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

# What a record needs beside its key and value: lengths, deltas, the count of headers.
RECORD_OVERHEAD_BYTES = 32
# A batch that has grown to this size is written without waiting for the end of the burst.
FLUSH_BYTES = 256 << 10
# Between a failure and the next try to load.
RELOAD_MS_MIN = 100
RELOAD_MS_MAX = 10_000

# Id and epoch.
Producer = tuple[int, int]
NO_PRODUCER = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class _Batch:
    """Records of some decisions, and who waits for them. A batch is of one transaction's producer, or of none."""

    __slots__ = ("first_offset", "producer", "records", "size", "size_max", "waiting")

    def __init__(self, first_offset: int, producer: Producer = NO_PRODUCER, size_max: int = 0) -> None:
        """``size_max`` is where the next decision begins another batch."""
        self.first_offset = first_offset
        self.producer = producer
        self.size_max = size_max
        self.records: list[tuple[bytes, bytes | None]] = []
        self.size = HEADER_SIZE
        self.waiting: list[tuple[OnDone | None, Any, OnCommitted | None]] = []


class Shard(Generic[MachineType]):
    __slots__ = (
        "_clock",
        "_codec",
        "_executor",
        "_in_flight",
        "_loader",
        "_log",
        "_machine",
        "_make_machine",
        "_on_dirty",
        "_open",
        "_reload",
        "_reload_ms",
        "_report",
        "_scheduler",
        "_timers",
        "drops",
        "load_ms",
        "name",
        "state",
    )

    def __init__(
        self,
        name: str,
        log: ShardLog,
        codec: RecordCodec,
        make_machine: Callable[[ShardTimers], MachineType],
        *,
        clock: Clock,
        scheduler: Scheduler,
        executor: Executor,
        report: Callable[[str, dict[str, object]], None],
        on_dirty: Callable[["Shard[MachineType]"], None],
    ) -> None:
        """``on_dirty`` is called when there is something to ``flush``."""
        self.name = name
        self._log = log
        self._codec = codec
        self._make_machine = make_machine
        self._clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._report = report
        self._on_dirty = on_dirty
        self.state = ShardState.LOADING
        self._machine: MachineType | None = None
        self._timers = ShardTimers(scheduler, self._run_timed)
        self._loader: ShardLoader | None = None
        self._open: _Batch | None = None
        self._in_flight: deque[_Batch] = deque()
        self._reload: Cancellable | None = None
        self._reload_ms = RELOAD_MS_MIN
        self.load_ms = 0
        """How long the last load took."""
        self.drops = 0

    # -- loading -------------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        self._reload = None
        self.state = ShardState.LOADING
        began_ms = self._clock.monotonic_ms()
        machine = self._make_machine(self._timers)

        def loaded(error: Exception | None) -> None:
            if error is not None:
                self.drop(error)
                return
            self._loader = None
            self._machine = machine
            self.state = ShardState.ACTIVE
            self._reload_ms = RELOAD_MS_MIN
            self.load_ms = self._clock.monotonic_ms() - began_ms
            self._wait_for_tail()
            machine.on_loaded()

        self._loader = ShardLoader(self._log, self._codec, machine, self._executor, self._scheduler, loaded)
        self._loader.start()

    def _wait_for_tail(self) -> None:
        """What was loaded but is not committed yet: answers wait for it as for a batch of our own."""
        end_offset = self._log.end_offset
        if self._log.committed_offset < end_offset:
            batch = _Batch(end_offset)
            self._in_flight.append(batch)
            self._log.wait_committed(end_offset, lambda error: self._committed(batch, error))

    @property
    def machine(self) -> MachineType | None:
        """For figures that nobody takes for an answer: it may be ahead of what is committed. None unless active."""
        return self._machine

    # -- requests ------------------------------------------------------------------------------------------------------------

    def write(
        self,
        decide: Callable[[MachineType], CoordinatorResult],
        on_done: OnDone | None = None,
        producer: Producer = NO_PRODUCER,
    ) -> None:
        """Decide, replay, and answer when it is committed. ``on_done`` gets the response, or what ``decide`` raised (at once), or
        why the decision was lost. With a ``producer`` the records are part of its transaction."""
        try:
            machine = self._machine or self._active()
            records, response, on_committed, on_replayed = decide(machine)
        except Exception as error:
            self._finish(on_done, None, None, error)
            return
        if records:
            try:
                encoded, size = self._encode(records)
            except Exception as error:
                self._finish(on_done, None, on_committed, error)
                return
            if not self._take(machine, records, encoded, size, producer):
                self._finish(on_done, None, on_committed, NotCoordinator(f"{self.name} was dropped"))
                return
        newest = self._open or (self._in_flight[-1] if self._in_flight else None)
        if newest is None:
            self._finish(on_done, response, on_committed, None)
        else:
            newest.waiting.append((on_done, response, on_committed))
        if on_replayed is not None:
            self._go_on(on_replayed)

    def _go_on(self, on_replayed: Callable[[], None]) -> None:
        """What waited for a decision is not that decision's business, nor is how it fails."""
        try:
            on_replayed()
        except Exception as unexpected:
            self._report("unexpected_error", {"where": f"what followed a decision of {self.name}", "error": repr(unexpected)})

    def read(self, query: Callable[[MachineType], Any], on_done: OnDone) -> None:
        """Answer from the state, when all of it that was there is committed."""
        self.write(lambda machine: CoordinatorResult(response=query(machine)), on_done)

    def _active(self) -> MachineType:
        if self._machine is not None:
            return self._machine
        if self.state is ShardState.LOADING:
            raise CoordinatorLoading(f"{self.name} is being loaded")
        if self.state is ShardState.CLOSED:
            raise NotCoordinator(f"{self.name} is not led here")
        raise CoordinatorNotAvailable(f"{self.name} cannot be used at the moment")

    def _encode(self, records: Sequence[Any]) -> tuple[list[tuple[bytes, bytes | None]], int]:
        encoded = []
        size = 0
        encode = self._codec.encode
        for record in records:
            pair = encode(record)
            encoded.append(pair)
            key, value = pair
            size += len(key) + RECORD_OVERHEAD_BYTES
            if value is not None:
                size += len(value)
        if size + HEADER_SIZE > self._log.batch_bytes_max:
            raise DecisionTooLarge(f"{len(records)} records of {size} bytes, a batch holds {self._log.batch_bytes_max}")
        return encoded, size

    def _take(
        self,
        machine: MachineType,
        records: Sequence[Any],
        encoded: list[tuple[bytes, bytes | None]],
        size: int,
        producer: Producer,
    ) -> bool:
        """Replay the records and keep them for the next flush. False when the shard was lost over it."""
        batch = self._open
        if batch is not None and (batch.size + size > batch.size_max or batch.producer != producer):
            self.flush()
            batch = self._open
            if self._machine is not machine:
                return False
        if batch is None:
            log = self._log
            batch = self._open = _Batch(log.end_offset, producer, min(FLUSH_BYTES, log.batch_bytes_max))
            self._on_dirty(self)
        offset = batch.first_offset + len(batch.records)
        producer_id, producer_epoch = producer
        try:
            for record in records:
                machine.replay(record, offset, producer_id, producer_epoch)
                offset += 1
        except Exception as error:
            self._report("unexpected_error", {"where": f"replay of {self.name}", "error": repr(error)})
            self.drop(error)
            return False
        batch.records += encoded
        batch.size += size
        return True

    def _run_timed(self, decide: TimedDecision) -> None:
        self.write(lambda _: decide(), self._timed_done)

    def _timed_done(self, _: Any, error: Exception | None) -> None:
        if error is not None and not isinstance(error, NotCoordinator):
            self._report("unexpected_error", {"where": f"a time-out of {self.name}", "error": repr(error)})

    # -- writing -------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was decided since the last flush."""
        batch = self._open
        if batch is None:
            return
        self._open = None
        self._in_flight.append(batch)
        producer_id, producer_epoch = batch.producer
        data = build_batch_of_pairs(batch.records, self._clock.now_ms(), producer_id, producer_epoch)
        self._append(batch, data, len(batch.records))

    def _append(self, batch: _Batch, data: bytes, count: int) -> bool:
        try:
            first_offset = self._log.append(data)
        except Exception as error:
            self.drop(error)
            return False
        assert first_offset == batch.first_offset, "nobody else writes to a shard's partition"
        self._log.wait_committed(first_offset + count, partial(self._committed, batch))
        return True

    def end_transaction(
        self, producer: Producer, marker: EndTransactionMarker, on_done: Callable[[Exception | None], None]
    ) -> None:
        """Write a marker: what the producer wrote in its transaction takes effect, or none of it does."""
        try:
            machine = self._active()
        except CoordinatorError as error:
            on_done(error)
            return
        self.flush()
        if self._machine is not machine:
            on_done(NotCoordinator(f"{self.name} was dropped"))
            return
        producer_id, producer_epoch = producer
        batch = _Batch(self._log.end_offset, producer)
        batch.waiting.append((None, None, on_done))
        self._in_flight.append(batch)
        now_ms = self._clock.now_ms()
        data = build_end_transaction_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        if not self._append(batch, data, 1):
            return
        try:
            machine.replay_end_transaction(producer_id, marker.control_type is ControlType.COMMIT)
        except Exception as error:
            self._report("unexpected_error", {"where": f"replay of {self.name}", "error": repr(error)})
            self.drop(error)

    def _committed(self, batch: _Batch, error: Exception | None) -> None:
        if batch not in self._in_flight:
            return  # Of before a drop.
        if error is not None:
            self.drop(error)
            return
        while self._in_flight:
            first = self._in_flight.popleft()
            self._finish_all(first, None)
            if first is batch:
                return

    def _finish_all(self, batch: _Batch, error: Exception | None) -> None:
        for on_done, response, on_committed in batch.waiting:
            self._finish(on_done, response, on_committed, error)

    def _finish(self, on_done: OnDone | None, response: Any, on_committed: OnCommitted | None, error: Exception | None) -> None:
        """One answer that fails must not keep others from theirs."""
        try:
            if on_committed is not None:
                on_committed(error)
            if on_done is not None:
                on_done(None if error is not None else response, error)
        except Exception as unexpected:
            self._report("unexpected_error", {"where": f"an answer of {self.name}", "error": repr(unexpected)})

    # -- the end -------------------------------------------------------------------------------------------------------------

    def drop(self, reason: Exception) -> None:
        """Forget the state, and load it again after a while."""
        if self.state is ShardState.CLOSED:
            return
        self.drops += 1
        self._report("coordinator_shard_dropped", {"shard": self.name, "error": str(reason) or repr(reason)})
        self._unload(ShardState.FAILED, NotCoordinator(f"{self.name} is loaded anew: {reason}"))
        self._reload = self._scheduler.schedule(self._reload_ms, self.load)
        self._reload_ms = min(self._reload_ms * 2, RELOAD_MS_MAX)

    def close(self, reason: Exception) -> None:
        """This broker no longer leads the partition, or it was deleted."""
        if self.state is not ShardState.CLOSED:
            self._unload(ShardState.CLOSED, reason)

    def _unload(self, state: ShardState, error: Exception) -> None:
        self.state = state
        machine, self._machine = self._machine, None
        in_flight, self._in_flight = self._in_flight, deque()
        still_open, self._open = self._open, None
        self._timers.cancel_all()
        if self._loader is not None:
            self._loader.cancel()
            self._loader = None
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        for batch in in_flight:
            self._finish_all(batch, error)
        if still_open is not None:
            self._finish_all(still_open, error)
        if machine is not None:
            machine.on_dropped(error)
