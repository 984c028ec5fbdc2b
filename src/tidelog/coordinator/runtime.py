"""All shards of one coordinator on this broker: taken over when it leads their partition, given up when it no longer does."""

from collections.abc import Callable, Iterator
from typing import Generic

from tidelog.coordinator.machine import MachineType, RecordCodec, Scheduler, ShardLog
from tidelog.coordinator.shard import Shard
from tidelog.coordinator.shard_timers import ShardTimers
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
        """Begin to load; an empty log is loaded when this returns."""
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
        """The end of a burst: each shard that decided something writes one batch."""
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for shard in dirty:
                shard.flush()
