"""A shard of the group coordinator without a broker: its log is in memory, and its time is simulated."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.coordinator.harness import MemoryLog, SimulatedTimers
from tidelog.config.groups import BROKER_GROUP_SETTINGS, METADATA_BYTES_TOTAL_MAX
from tidelog.coordinator.machine import CoordinatorResult, MachineType, ShardTimers
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard import Shard, ShardState
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import MetadataBudget
from tidelog.groups.records import RECORD_CODEC
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers

BATCH_BYTES_MAX = 1 << 20


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class ShardBench(Generic[MachineType]):
    def __init__(
        self,
        make_machine: Callable[[GroupEnvironment], MachineType],
        settings: Mapping[str, Any] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        log: MemoryLog | None = None,
        seed: int = 1,
    ) -> None:
        """``topics`` exist from the beginning, with so many partitions each."""
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.settings = {setting.name: setting.default for setting in BROKER_GROUP_SETTINGS} | dict(settings or {})
        self.metadata_budget = MetadataBudget(self.settings[METADATA_BYTES_TOTAL_MAX])
        self.seed = seed
        self.randomness = SimulatedRandomness(seed)
        self.image = ClusterImage()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.log = MemoryLog() if log is None else log
        self.log.batch_bytes_max = BATCH_BYTES_MAX
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

        def machine_with(timers: ShardTimers) -> MachineType:
            return make_machine(
                GroupEnvironment(
                    self.clock, self.randomness, self.image, self.settings, timers, self._report, self.metadata_budget
                )
            )

        self.runtime: CoordinatorRuntime[MachineType] = CoordinatorRuntime(
            "__consumer_offsets",
            RECORD_CODEC,
            machine_with,
            clock=self.clock,
            scheduler=SimulatedTimers(self.scheduler),
            executor=SimulatedExecutor(self.scheduler, self.randomness, SimulatedDisk(self.clock), self.clock),
            report=self._report,
        )
        self.shard: Shard[MachineType] = self.runtime.take_over(0, self.log)
        self.load()

    def _report(self, event: str, facts: dict[str, object]) -> None:
        self.events.append((event, facts))

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        self.scheduler.run_until(lambda: self.shard.state is ShardState.ACTIVE)

    def reload(self) -> None:
        """The machine is gone; what is in the log is found again."""
        self.runtime.release(0, RuntimeError("moved"))
        self.shard = self.runtime.take_over(0, self.log)
        self.load()

    def commit_all(self) -> None:
        self.runtime.flush()
        self.log.commit()

    def run_for(self, duration_ms: int) -> None:
        """Time passes; what is decided meanwhile is committed at once."""
        is_over: list[bool] = []
        self.scheduler.schedule(duration_ms * 1000, "time passes", lambda: is_over.append(True))
        while not is_over:
            self.scheduler.step()
            self.after_step()

    def after_step(self) -> None:
        self.commit_all()

    # -- what a test looks at ------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> MachineType:
        assert self.shard.machine is not None
        return self.shard.machine

    def records(self) -> list[Any]:
        """Everything in the log."""
        data = bytes(self.log.data)
        return [
            RECORD_CODEC.decode(record.key or b"", record.value)
            for position, header in iterate_headers(data)
            for record in read_records(data, position, header, size_max=1 << 24, count_max=1 << 20)
        ]

    def call(self, decide: Callable[[MachineType], CoordinatorResult]) -> Any:
        """Decide and commit: the response, or what was raised."""
        answers: list[tuple[Any, Exception | None]] = []
        self.shard.write(decide, lambda *answer: answers.append(answer))
        self.commit_all()
        ((response, error),) = answers
        if error is not None:
            raise error
        return response

    # -- topics --------------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 4, id_: bytes | None = None) -> bytes:
        created = topic_id(name) if id_ is None else id_
        self.replay_metadata([TopicRecord(name, created), *_partitions(created, range(partitions))])
        return created

    def grow_topic(self, name: str, partitions: int) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self.replay_metadata(_partitions(topic.topic_id, range(len(topic.partitions), partitions)))

    def delete_topic(self, name: str) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self.replay_metadata([RemoveTopicRecord(topic.topic_id)])

    def replay_metadata(self, records: Iterable[Any]) -> None:
        self.image.replay(records, self.image.last_offset + 1)


def _partitions(id_: bytes, indexes: range) -> list[PartitionRecord]:
    return [PartitionRecord(index, id_, (1,), (1,), leader=1) for index in indexes]
