"""A shard without a broker: its log in memory, committed when a test says so, and a machine that keeps words under keys."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Event, Scheduler
from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.machine import CoordinatorResult, OnCommitted, ShardTimers
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard import Shard, ShardState
from tidelog.log.reading import LogSlice
from tidelog.ports.disk import Buffer
from tidelog.records.header import iterate_headers, restamp

BATCH_BYTES_MAX = 10_000


class MemoryFile:
    """Just enough of a file to be read from."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.path = "memory"

    def size(self) -> int:
        return len(self._data)

    def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise AssertionError("a log is appended to, not written")

    def truncate(self, size: int) -> None:
        raise AssertionError("a log is appended to, not cut")

    def sync(self) -> None:
        raise AssertionError("the test says what is committed")

    def descriptor(self) -> int:
        raise OSError("a file in memory")


class MemoryLog:
    """``commit`` moves the high watermark; ``append_error``, ``commit_error`` and ``read_error`` make things fail."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.batches: list[tuple[int, int]] = []
        self.start_offset = self.end_offset = self.committed_offset = 0
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.append_error: Exception | None = None
        self.read_error: Exception | None = None
        self.waiting: list[tuple[int, OnCommitted]] = []

    def append(self, batch: Buffer) -> int:
        if self.append_error is not None:
            raise self.append_error
        first_offset = self.end_offset
        stamped = bytearray(batch)
        restamp(stamped, 0, first_offset, 0)
        self.batches.append((first_offset, len(self.data)))
        self.data += stamped
        ((_, header),) = iterate_headers(stamped)
        self.end_offset = header.next_offset
        return first_offset

    def wait_committed(self, end_offset: int, on_committed: OnCommitted) -> None:
        if self.committed_offset >= end_offset:
            on_committed(None)
        else:
            self.waiting.append((end_offset, on_committed))

    def commit(self, offset: int | None = None) -> None:
        self.committed_offset = self.end_offset if offset is None else offset
        due = [entry for entry in self.waiting if entry[0] <= self.committed_offset]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.committed_offset]
        for _, on_committed in due:
            on_committed(None)

    def fail_commits(self, error: Exception) -> None:
        waiting, self.waiting = self.waiting, []
        for _, on_committed in waiting:
            on_committed(error)

    def read(self, offset: int, bytes_max: int) -> LogSlice | None:
        if self.read_error is not None:
            raise self.read_error
        for first_offset, position in reversed(self.batches):
            if first_offset <= offset < self.end_offset:
                return LogSlice(MemoryFile(bytes(self.data)), position, min(max(bytes_max, 0), len(self.data) - position))
        return None


class Word(NamedTuple):
    key: str
    value: str | None


class WordCodec:
    def encode(self, record: Word) -> tuple[bytes, bytes | None]:
        return record.key.encode(), None if record.value is None else record.value.encode()

    def decode(self, key: bytes, value: bytes | None) -> Word | None:
        if key.startswith(b"unknown"):
            return None
        if key.startswith(b"broken"):
            raise UnreadableShard("a broken record")
        return Word(key.decode(), None if value is None else value.decode())


class Words:
    """``replayed`` is every record with its offset, in order."""

    def __init__(self, timers: ShardTimers) -> None:
        self.timers = timers
        self.words: dict[str, str] = {}
        self.replayed: list[tuple[Word, int, int, int]] = []
        self.ended: list[tuple[int, bool]] = []
        self.loaded = 0
        self.dropped: Exception | None = None

    def replay(self, record: Word, offset: int, producer_id: int, producer_epoch: int) -> None:
        if record.value == "unplayable":
            raise ValueError("cannot be replayed")
        self.replayed.append((record, offset, producer_id, producer_epoch))
        if record.value is None:
            self.words.pop(record.key, None)
        else:
            self.words[record.key] = record.value

    def replay_end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.ended.append((producer_id, is_commit))

    def on_loaded(self) -> None:
        self.loaded += 1

    def on_dropped(self, error: Exception) -> None:
        self.dropped = error


class SimulatedTimers:
    """A coordinator's scheduler on the simulation's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> Event:
        return self._scheduler.schedule(delay_ms * 1000, "timer", action)


class Bench:
    """A runtime with one shard, number 0."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        randomness = SimulatedRandomness(1)
        self.executor = SimulatedExecutor(self.scheduler, randomness, SimulatedDisk(self.clock), self.clock)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.machines: list[Words] = []
        self.runtime: CoordinatorRuntime[Words] = CoordinatorRuntime(
            "__words",
            WordCodec(),
            self._machine,
            clock=self.clock,
            scheduler=SimulatedTimers(self.scheduler),
            executor=self.executor,
            report=lambda event, facts: self.events.append((event, facts)),
        )
        self.log = log if log is not None else MemoryLog()
        self.shard: Shard[Words] = self.runtime.take_over(0, self.log)
        self.answers: list[tuple[Any, Exception | None]] = []

    def _machine(self, timers: ShardTimers) -> Words:
        self.machines.append(Words(timers))
        return self.machines[-1]

    @property
    def machine(self) -> Words:
        assert self.shard.machine is not None
        return self.shard.machine

    def load(self) -> None:
        self.scheduler.run_until(lambda: self.shard.state is ShardState.ACTIVE)

    def put(self, key: str, value: str | None, response: Any = None, **more: Any) -> None:
        self.write(lambda _: CoordinatorResult([Word(key, value)], key if response is None else response, **more))

    def write(self, decide: Callable[[Words], CoordinatorResult]) -> None:
        self.shard.write(decide, lambda response, error: self.answers.append((response, error)))

    def read(self, key: str) -> None:
        self.shard.read(lambda machine: machine.words.get(key), lambda response, error: self.answers.append((response, error)))

    def run_for(self, duration_ms: int) -> None:
        is_over: list[bool] = []
        self.scheduler.schedule(duration_ms * 1000, "time passes", lambda: is_over.append(True))
        self.scheduler.run_until(lambda: bool(is_over))
