"""The interfaces between the runtime, a coordinator's state machine, and the log, timers and codec that the broker hands in."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tidelog.log.reading import LogSlice
from tidelog.ports.disk import Buffer

OnCommitted = Callable[[Exception | None], None]
OnDone = Callable[[Any, Exception | None], None]


class CoordinatorResult(NamedTuple):
    """The outcome of a decision."""

    records: Sequence[Any] = ()
    """One atomic batch. It is replayed at once, and after a crash either all of it is found or nothing."""
    response: Any = None
    """Sent to the client once the records, and all before them, are committed."""
    on_committed: OnCommitted | None = None
    """Called at the same moment, to answer clients other than the one that asked. It gets an error when the shard was dropped
    first, or at once when the records do not fit into a batch (DecisionTooLarge): then nothing was written and the machine
    carries on."""
    on_replayed: Callable[[], None] | None = None
    """Called as soon as the records are replayed, long before they are committed. Decisions that waited for this one then go into
    the same batch. Not called when the replay made the shard drop."""


class Machine(Protocol):
    """The state of one shard. Only ``replay`` changes the state that the log holds. Other state, such as which clients wait for a
    response and when a member last sent a heartbeat, is lost with the machine, and clients must cope with that."""

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:
        """Apply one record, in the order of the log. ``producer_id`` is -1 outside of transactions."""
        ...

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """Apply a marker: what ``producer_id`` wrote in its open transaction takes effect, or none of it does."""
        ...

    def on_loaded(self) -> None:
        """Called when the whole log was replayed, before the first request. Time-outs begin here."""
        ...

    def on_dropped(self, error: Exception) -> None:
        """Called when the shard is dropped: every client that waits for a response gets this error."""
        ...


MachineType = TypeVar("MachineType", bound=Machine)


class RecordCodec(Protocol):
    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Return key and value; a value of None is a tombstone."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """Return None for an unknown kind of record. Raises UnreadableShard for one that cannot be read."""
        ...


class ShardLog(Protocol):
    """The partition that holds a shard's records. This broker leads it, and only the shard writes to it."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def committed_offset(self) -> int:
        """The high watermark."""
        ...

    @property
    def batch_bytes_max(self) -> int: ...

    def append(self, batch: Buffer) -> int:
        """Return the first record's offset. Raises when the batch was not written."""
        ...

    def wait_committed(self, end_offset: int, on_committed: OnCommitted) -> None:
        """Call back once everything below ``end_offset`` is below the high watermark, or can no longer get there."""
        ...

    def read(self, offset: int, bytes_max: int) -> LogSlice | None:
        """Return whole batches from the one that holds ``offset`` on, committed or not; None at the end."""
        ...


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    def schedule(self, delay_ms: int, action: Callable[[], None]) -> Cancellable: ...


TimedDecision = Callable[[], CoordinatorResult]


class ShardTimers:
    """The time-outs of one shard, by name. Each runs a decision on the shard, and all of them end with the shard. Scheduling a
    name again replaces its time-out."""

    __slots__ = ("_by_name", "_scheduler", "run")

    def __init__(self, scheduler: Scheduler, run: Callable[[TimedDecision], None]) -> None:
        self._scheduler = scheduler
        self.run = run
        """Runs a decision at once."""
        self._by_name: dict[Hashable, Cancellable] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._by_name

    def schedule(self, name: Hashable, delay_ms: int, decide: TimedDecision) -> None:
        self.cancel(name)

        def due() -> None:
            del self._by_name[name]
            self.run(decide)

        self._by_name[name] = self._scheduler.schedule(max(0, delay_ms), due)

    def cancel(self, name: Hashable) -> None:
        timer = self._by_name.pop(name, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        by_name, self._by_name = self._by_name, {}
        for timer in by_name.values():
            timer.cancel()
