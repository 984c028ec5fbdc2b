"""All shards of one coordinator on this broker.

The broker takes over a shard when it becomes the leader of the shard's partition and releases it when it no longer is. A group or
transactional id belongs to the shard that Kafka would choose (``partition_for``), so that Kafka's data directories open here.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic

from tidelog.coordinator.machine import MachineType, RecordCodec, Scheduler, ShardLog, ShardTimers
from tidelog.coordinator.shard import Shard
from tidelog.ports.clock import Clock
from tidelog.ports.executor import Executor


class CoordinatorRuntime(Generic[MachineType]):
    __slots__ = ("_clock", "_codec", "_dirty", "_executor", "_make_machine", "_report", "_scheduler", "_shards", "topic")

    def __init__(
        self,
        topic: str,
        codec: RecordCodec,
        make_machine: Callable[[ShardTimers], MachineType],
        *,
        clock: Clock,
        scheduler: Scheduler,
        executor: Executor,
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.topic = topic
        self._codec = codec
        self._make_machine = make_machine
        self._clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._report = report
        self._shards: dict[int, Shard[MachineType]] = {}
        self._dirty: dict[Shard[MachineType], None] = {}

    def __iter__(self) -> Iterator[Shard[MachineType]]:
        return iter(self._shards.values())

    def find(self, index: int) -> Shard[MachineType] | None:
        return self._shards.get(index)

    def take_over(self, index: int, log: ShardLog) -> Shard[MachineType]:
        """Begin to load the shard. If its log is empty, it is active when this returns."""
        assert index not in self._shards, f"{self.topic}-{index} is led already"
        shard: Shard[MachineType] = Shard(
            f"{self.topic}-{index}",
            log,
            self._codec,
            self._make_machine,
            clock=self._clock,
            scheduler=self._scheduler,
            executor=self._executor,
            report=self._report,
            on_dirty=self._note_dirty,
        )
        self._shards[index] = shard
        shard.load()
        return shard

    def release(self, index: int, reason: Exception) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            self._dirty.pop(shard, None)
            shard.close(reason)

    def _note_dirty(self, shard: Shard[MachineType]) -> None:
        self._dirty[shard] = None

    def flush(self) -> None:
        """Call at the end of a burst: each shard that has new records writes them as one batch."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for shard in dirty:
                shard.flush()


# Every request of every member needs its group's shard, and hashing takes 0.2 us per character. Long keys are hashed each time,
# so that the cache holds a few megabytes at most, whatever clients send.
CACHED_KEYS_MAX = 10_000
CACHED_KEY_LENGTH_MAX = 100


def partition_for(key: str, partitions: int) -> int:
    """Return Java's ``String.hashCode`` without its sign, modulo the number of partitions."""
    return (_cached_hash(key) if len(key) <= CACHED_KEY_LENGTH_MAX else _positive_hash(key)) % partitions


def _positive_hash(key: str) -> int:
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0  # This is the one number whose absolute value does not fit into 32 bits.
    return value if value < 0x80000000 else 0x100000000 - value


_cached_hash = lru_cache(CACHED_KEYS_MAX)(_positive_hash)
