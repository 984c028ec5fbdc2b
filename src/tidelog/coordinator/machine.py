"""What the runtime and a coordinator's state machine know of each other."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tidelog.log.reading import LogSlice
from tidelog.ports.disk import Buffer

OnCommitted = Callable[[Exception | None], None]
OnDone = Callable[[Any, Exception | None], None]


class CoordinatorResult(NamedTuple):
    """What a decision gives."""

    records: Sequence[Any] = ()
    """One atomic batch: replayed at once, and either all of them are found after a crash or none."""
    response: Any = None
    """True once the records, and all before them, are committed: whoever asked hears it then."""
    on_committed: OnCommitted | None = None
    """Called at the same moment, for answers to others than the one who asked. With an error when the shard was dropped first, or
    at once when the records do not fit into a batch (DecisionTooLarge): then nothing was written and the machine lives on."""
    on_replayed: Callable[[], None] | None = None
    """Called as soon as the state has the records, long before they are committed: for decisions that waited for this one and
    then go into the same batch. Not called when the shard was dropped over it."""


class Machine(Protocol):
    """The state of one shard. Nothing but ``replay`` changes what the log holds; what it does not hold (who waits for an answer,
    when somebody was last heard of) is lost with the machine, and its clients must be able to live with that."""

    def replay(self, record: Any, offset: int, producer_id: int, producer_epoch: int) -> None:
        """One record, in the order of the log. ``producer_id`` is -1 outside of transactions."""
        ...

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """A marker: what ``producer_id`` wrote in its open transaction takes effect, or none of it does."""
        ...

    def on_loaded(self) -> None:
        """All of the log was replayed: from now on there are requests. Time-outs begin here."""
        ...

    def on_dropped(self, error: Exception) -> None:
        """The shard is gone: whoever waits for an answer gets this error."""
        ...


MachineType = TypeVar("MachineType", bound=Machine)


class RecordCodec(Protocol):
    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Key and value; a value of None is a tombstone."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """None for a kind of record that is not known; UnreadableShard for one that cannot be read."""
        ...


class ShardLog(Protocol):
    """The partition that holds a shard's records; this broker leads it, and only the shard writes to it."""

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
        """The first record's offset. Raises when the batch was not written."""
        ...

    def wait_committed(self, end_offset: int, on_committed: OnCommitted) -> None:
        """Call back once everything below ``end_offset`` is below the high watermark, or can no longer get there."""
        ...

    def read(self, offset: int, bytes_max: int) -> LogSlice | None:
        """Whole batches from the one that holds ``offset`` on, committed or not; None at the end."""
        ...


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    def schedule(self, delay_ms: int, action: Callable[[], None]) -> Cancellable: ...
