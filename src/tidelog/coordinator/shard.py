"""One shard: a state machine, the partition that holds its records, and the answers that wait for them.

Decisions run at once and one after the other. Their records are replayed at once too, and collected: the log gets one batch for
all decisions of a burst (``flush``). A response waits for the newest batch, on which it may depend, and is sent when that batch
is committed. So no client sees anything that a crash could undo, and decisions still need not wait for each other.

A shard is dropped when an append fails, when a batch can no longer be committed, or when a replay fails. Memory and log may then
differ, so the machine is discarded, every waiting client is told to try again, and the shard is reloaded from its log.

An append that found no room has written nothing. The log is sound, so the shard is reloaded at once, and reads wait for that and
are answered from what is committed. Writes are *suspended* for a while: they are refused before anything is decided, because a
decision also changes state that is not in the log (who waits, which timers run), and time-outs are postponed. Then the next write
finds out whether there is room again. So on a full disk a group's positions can be read, and nothing is lost or patched.

``ShardLoader`` replays the log from start to end. A helper thread reads the bytes. Decoding and replaying is Python and stays on
the loop, in slices, so that other shards, and all clients that produce and fetch, are served in between.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic

from tidelog.coordinator.errors import (
    CoordinatorError,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    DecisionTooLarge,
    NotCoordinator,
    UnreadableShard,
)
from tidelog.coordinator.machine import (
    Cancellable,
    CoordinatorResult,
    Machine,
    MachineType,
    OnCommitted,
    OnDone,
    RecordCodec,
    Scheduler,
    ShardLog,
    ShardTimers,
    TimedDecision,
)
from tidelog.log.append_check import whole_batches_bytes
from tidelog.log.errors import StorageError
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Completion, Executor
from tidelog.records.batch import build_batch_of_pairs, read_records
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker, read_control_type
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, BatchHeader, crc_is_valid, iterate_headers

# The bytes of a record in addition to its key and value: lengths, deltas, the count of headers.
RECORD_OVERHEAD_BYTES = 32
# A batch that has grown to this size is written without waiting for the end of the burst.
FLUSH_BYTES = 256 << 10
# The delay between a failure and the next attempt to load.
RELOAD_MS_MIN = 100
RELOAD_MS_MAX = 10_000
# How long writes are suspended after an append that found no room; twice as long after each attempt that finds none again. Each
# attempt may cost a reload, and whoever makes room does not want to wait for long.
SUSPENSION_MS_MIN = 100
SUSPENSION_MS_MAX = 5_000
# The reads that wait for a reload after such an append. Clients retry what is refused beyond that.
HELD_READS_MAX = 1_000

# A producer's id and epoch.
Producer = tuple[int, int]
NO_PRODUCER = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class _Batch:
    """The records of some decisions, and the responses that wait for them. All belong to the same transaction, or to none."""

    __slots__ = ("first_offset", "producer", "records", "size", "size_max", "waiting")

    def __init__(self, first_offset: int, producer: Producer = NO_PRODUCER, size_max: int = 0) -> None:
        """A decision that would make the batch larger than ``size_max`` begins another one."""
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
        "_held_reads",
        "_in_flight",
        "_loader",
        "_log",
        "_machine",
        "_make_machine",
        "_on_dirty",
        "_open",
        "_postponed",
        "_reload",
        "_reload_ms",
        "_report",
        "_scheduler",
        "_suspension",
        "_suspension_ms",
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
        # Ends the suspension; None unless writes are suspended.
        self._suspension: Cancellable | None = None
        self._suspension_ms = SUSPENSION_MS_MIN
        self._postponed: list[TimedDecision] = []
        self._held_reads: list[tuple[Callable[[MachineType], Any], OnDone]] = []
        self.load_ms = 0
        """The duration of the last load."""
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
            held, self._held_reads = self._held_reads, []
            for query, on_done in held:
                self.read(query, on_done)

        self._loader = ShardLoader(self._log, self._codec, machine, self._executor, self._scheduler, loaded)
        self._loader.start()

    def _wait_for_tail(self) -> None:
        """Make responses wait for what was loaded but is not committed yet, as for a batch of our own."""
        end_offset = self._log.end_offset
        if self._log.committed_offset < end_offset:
            batch = _Batch(end_offset)
            self._in_flight.append(batch)
            self._log.wait_committed(end_offset, lambda error: self._committed(batch, error))

    @property
    def machine(self) -> MachineType | None:
        """The machine; None unless the shard is active. For metrics only, never for a response: it may be ahead of what is
        committed."""
        return self._machine

    # -- requests ------------------------------------------------------------------------------------------------------------

    def write(
        self,
        decide: Callable[[MachineType], CoordinatorResult],
        on_done: OnDone | None = None,
        producer: Producer = NO_PRODUCER,
    ) -> None:
        """Decide, replay, and respond when the records are committed. ``on_done`` gets the response, or the exception of
        ``decide`` (at once), or the reason why the decision was lost. With a ``producer`` the records are part of its
        transaction."""
        if self._suspension is not None:
            self._finish(on_done, None, None, NotCoordinator(f"{self.name} has no room to write; try again later"))
            return
        self._decide(decide, on_done, producer)

    def _decide(
        self, decide: Callable[[MachineType], CoordinatorResult], on_done: OnDone | None, producer: Producer = NO_PRODUCER
    ) -> None:
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
        """Run what waited for a decision. A failure here does not concern the decision itself."""
        try:
            on_replayed()
        except Exception as unexpected:
            self._report("unexpected_error", {"where": f"what followed a decision of {self.name}", "error": repr(unexpected)})

    def read(self, query: Callable[[MachineType], Any], on_done: OnDone) -> None:
        """Respond from the state, once everything in it is committed."""
        is_reloading = self._suspension is not None and self.state is ShardState.LOADING
        if is_reloading and len(self._held_reads) < HELD_READS_MAX:
            self._held_reads.append((query, on_done))
        else:
            self._decide(lambda machine: CoordinatorResult(response=query(machine)), on_done)

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
        """Replay the records and keep them for the next flush. Returns False when the shard was dropped in the meantime."""
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
        if self._suspension is not None:
            # Nothing is decided until then, so nothing can cancel it in between.
            self._postponed.append(decide)
        else:
            self._decide(lambda _: decide(), self._timed_done)

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
        except StorageError as error:
            self._suspend(error)
            return False
        except Exception as error:
            self.drop(error)
            return False
        self._suspension_ms = SUSPENSION_MS_MIN
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
        if self._suspension is not None:
            on_done(NotCoordinator(f"{self.name} has no room to write; try again later"))
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
            return  # The shard was dropped in the meantime.
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
        """Run one callback. If it fails, other clients must still get their responses."""
        try:
            if on_committed is not None:
                on_committed(error)
            if on_done is not None:
                on_done(None if error is not None else response, error)
        except Exception as unexpected:
            self._report("unexpected_error", {"where": f"an answer of {self.name}", "error": repr(unexpected)})

    # -- the end -------------------------------------------------------------------------------------------------------------

    def drop(self, reason: Exception) -> None:
        """Discard the state, and reload it after a while."""
        if self.state is not ShardState.CLOSED:
            self._discard(reason)
            self._reload = self._scheduler.schedule(self._reload_ms, self.load)
            self._reload_ms = min(self._reload_ms * 2, RELOAD_MS_MAX)

    def _discard(self, reason: Exception) -> None:
        self.drops += 1
        self._report("coordinator_shard_dropped", {"shard": self.name, "error": str(reason) or repr(reason)})
        self._unload(ShardState.FAILED, NotCoordinator(f"{self.name} is being reloaded: {reason}"))

    def _suspend(self, reason: StorageError) -> None:
        """Reload the state at once, because the log has what it had before, and suspend writes."""
        self._discard(reason)
        self._suspension = self._scheduler.schedule(self._suspension_ms, self._end_suspension)
        self._suspension_ms = min(self._suspension_ms * 2, SUSPENSION_MS_MAX)
        self.state = ShardState.LOADING
        # Not from within this call: whoever wrote may still hold the machine that was discarded.
        self._reload = self._scheduler.schedule(0, self.load)

    def _end_suspension(self) -> None:
        self._suspension = None
        postponed, self._postponed = self._postponed, []
        for decide in postponed:
            # When one of them finds that there is still no room, the reload schedules again what is due.
            if self._suspension is None and self._machine is not None:
                self._run_timed(decide)

    def close(self, reason: Exception) -> None:
        """Called when this broker no longer leads the partition, or the partition was deleted."""
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
        if self._suspension is not None:
            self._suspension.cancel()
            self._suspension = None
        self._postponed = []
        held, self._held_reads = self._held_reads, []
        for _, on_done in held:
            self._finish(on_done, None, None, error)
        for batch in in_flight:
            self._finish_all(batch, error)
        if still_open is not None:
            self._finish_all(still_open, error)
        if machine is not None:
            machine.on_dropped(error)


READ_BYTES = 1 << 20
# About 2 ms of decoding and replaying, whichever comes first.
SLICE_RECORDS = 200
SLICE_BYTES = 64 << 10
# Above the size of any batch of an internal topic; a damaged one must not exhaust the memory.
BATCH_BYTES_MAX = 256 << 20
BATCH_RECORDS_MAX = 10_000_000

_END_OF_TRANSACTION = {ControlType.COMMIT: True, ControlType.ABORT: False}


class ShardLoader:
    __slots__ = (
        "_codec",
        "_executor",
        "_is_cancelled",
        "_log",
        "_machine",
        "_offset",
        "_on_loaded",
        "_scheduler",
        "_step",
        "records",
    )

    def __init__(
        self,
        log: ShardLog,
        codec: RecordCodec,
        machine: Machine,
        executor: Executor,
        scheduler: Scheduler,
        on_loaded: Callable[[Exception | None], None],
    ) -> None:
        """``on_loaded`` may be called from within ``start``."""
        self._log = log
        self._codec = codec
        self._machine = machine
        self._executor = executor
        self._scheduler = scheduler
        self._on_loaded = on_loaded
        self._offset = log.start_offset
        self._is_cancelled = False
        self._step: Cancellable | None = None
        self.records = 0

    def start(self) -> None:
        self._read_on()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._step is not None:
            self._step.cancel()

    def _read_on(self) -> None:
        try:
            found = self._log.read(self._offset, READ_BYTES)
        except Exception as error:
            self._on_loaded(error)
            return
        if found is None:
            self._on_loaded(None)
            return
        file, position, length = found

        def read(completion: Completion) -> None:
            if self._is_cancelled:
                return
            if completion.error is not None:
                self._on_loaded(_as_exception(completion.error))
                return
            data = completion.result
            self._run(self._replay(data[: whole_batches_bytes(memoryview(data))]))

        self._executor.submit(lambda: file.read(position, length), read)

    def _run(self, replaying: Iterator[None]) -> None:
        """Decode and replay one slice."""
        self._step = None
        try:
            next(replaying)
        except StopIteration:
            self._read_on()
        except RecordError as error:
            self._on_loaded(UnreadableShard(str(error)))
        except Exception as error:
            self._on_loaded(error)
        else:
            self._step = self._scheduler.schedule(0, lambda: self._run(replaying))

    def _replay(self, data: bytes) -> Iterator[None]:
        records_max = self.records + SLICE_RECORDS
        bytes_left = SLICE_BYTES
        begin = self._offset
        for position, header in iterate_headers(data):
            if not crc_is_valid(data, position, header):
                raise UnreadableShard(f"the batch at offset {header.base_offset} fails its checksum")
            self._offset = header.next_offset
            if header.is_control:
                self._replay_marker(data, position, header)
                continue
            producer_id, producer_epoch = (header.producer_id, header.producer_epoch) if header.is_transactional else (-1, -1)
            for record in read_records(data, position, header, size_max=BATCH_BYTES_MAX, count_max=BATCH_RECORDS_MAX):
                key, value = record.key, record.value
                if record.offset < begin or key is None:
                    continue  # The record precedes the log start, or no coordinator wrote it: their records have keys.
                known = self._codec.decode(key, value)
                if known is not None:
                    self._machine.replay(known, record.offset, producer_id, producer_epoch)
                self.records += 1
                bytes_left -= len(key) + len(value or b"")
                if self.records >= records_max or bytes_left <= 0:
                    yield
                    records_max, bytes_left = self.records + SLICE_RECORDS, SLICE_BYTES

    def _replay_marker(self, data: bytes, position: int, header: BatchHeader) -> None:
        is_commit = _END_OF_TRANSACTION.get(read_control_type(data, position, header))
        if is_commit is not None:
            self._machine.replay_end_transaction(header.producer_id, is_commit)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else UnreadableShard(repr(error))
