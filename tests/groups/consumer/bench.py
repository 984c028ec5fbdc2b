"""A shard of the group coordinator without a broker: its log in memory, time on a simulated clock, topics as a test says."""

from collections.abc import Iterable, Mapping
from typing import Any

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.coordinator.harness import MemoryLog, SimulatedTimers
from tidelog.config.groups import BROKER_GROUP_SETTINGS
from tidelog.controller.errors import ApiError
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard import Shard, ShardState
from tidelog.coordinator.shard_timers import ShardTimers
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.records import RECORD_CODEC
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers
from tidelog.wire.errors import ErrorCode

GROUP = "billing"
SESSION_MS = 45_000
REBALANCE_MS = 30_000
BATCH_BYTES_MAX = 1 << 20


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class ConsumerBench:
    def __init__(self, topics: Mapping[str, int] | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.settings = {setting.name: setting.default for setting in BROKER_GROUP_SETTINGS} | dict(settings or {})
        self.image = ClusterImage()
        self._randomness = SimulatedRandomness(1)
        self._executor = SimulatedExecutor(self.scheduler, self._randomness, SimulatedDisk(self.clock), self.clock)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.log = MemoryLog()
        self.log.batch_bytes_max = BATCH_BYTES_MAX
        self.shard: Shard[GroupCoordinator]
        self.members: dict[str, Member] = {}
        for name, partitions in (topics or {"orders": 4}).items():
            self.create_topic(name, partitions)
        self.start()

    # -- the shard's life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        def make_machine(timers: ShardTimers) -> GroupCoordinator:
            environment = GroupEnvironment(self.clock, self._randomness, self.image, self.settings, timers, self._report)
            return GroupCoordinator(environment)

        runtime: CoordinatorRuntime[GroupCoordinator] = CoordinatorRuntime(
            "__consumer_offsets",
            RECORD_CODEC,
            make_machine,
            clock=self.clock,
            scheduler=SimulatedTimers(self.scheduler),
            executor=self._executor,
            report=self._report,
        )
        self.shard = runtime.take_over(0, self.log)
        self.scheduler.run_until(lambda: self.shard.state is ShardState.ACTIVE)

    def restart(self) -> None:
        """The machine is gone; what is in the log is found again."""
        self.commit()
        self.shard.close(RuntimeError("restart"))
        self.start()

    def _report(self, event: str, facts: dict[str, object]) -> None:
        assert event != "unexpected_error", facts
        self.events.append((event, facts))

    def commit(self) -> None:
        self.shard.flush()
        self.log.commit()

    def run_for(self, duration_ms: int) -> None:
        """Time passes; what time-outs decide is committed."""
        self.scheduler.run_for(duration_ms * 1000)
        self.commit()

    # -- what a test looks at ------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> GroupCoordinator:
        assert self.shard.machine is not None
        return self.shard.machine

    @property
    def group(self) -> ConsumerGroup:
        group = self.machine.groups.find(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    def records(self) -> list[Any]:
        """Everything in the log."""
        found = []
        for position, header in iterate_headers(bytes(self.log.data)):
            for record in read_records(bytes(self.log.data), position, header, size_max=BATCH_BYTES_MAX, count_max=10_000):
                found.append(RECORD_CODEC.decode(record.key or b"", record.value))
        return found

    # -- topics --------------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int) -> None:
        self._replay([TopicRecord(name, topic_id(name)), *_partitions(name, range(partitions))])

    def grow_topic(self, name: str, partitions: int) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self._replay(_partitions(name, range(len(topic.partitions), partitions)))

    def delete_topic(self, name: str) -> None:
        self._replay([RemoveTopicRecord(topic_id(name))])

    def _replay(self, records: Iterable[Any]) -> None:
        self.image.replay(records, self.image.last_offset + 1)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def write(self, decide: Any) -> Any:
        """Decide and commit; the response, or what was raised."""
        answers: list[tuple[Any, Exception | None]] = []
        self.shard.write(decide, lambda response, error: answers.append((response, error)))
        self.commit()
        ((response, error),) = answers
        if error is not None:
            raise error
        return response

    def heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        response = self.write(lambda machine: machine.consumer.heartbeat(request))
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def refusal(self, request: ConsumerHeartbeatRequest) -> tuple[ErrorCode, str]:
        try:
            response = self.heartbeat(request)
        except ApiError as error:
            return error.code, error.message
        raise AssertionError(f"accepted: {response}")

    def join(self, name: str, topics: Iterable[str] | None = ("orders",), **fields: Any) -> "Member":
        member = self.members[name] = Member(self, name)
        member.join(topics, **fields)
        return member

    def settle(self, *names: str, rounds: int = 10) -> None:
        """Members send heartbeats, and follow what they are told, until nothing changes."""
        for _ in range(rounds):
            before = [(self.members[name].epoch, self.members[name].owned) for name in names or self.members]
            for name in names or self.members:
                self.members[name].heartbeat()
            if before == [(self.members[name].epoch, self.members[name].owned) for name in names or self.members]:
                return
        raise AssertionError("the members do not come to rest")


class Member:
    """A client that does what it should: it owns what it was told last."""

    def __init__(self, bench: ConsumerBench, name: str) -> None:
        self.bench = bench
        self.name = name
        self.epoch = 0
        self.instance_id: str | None = None
        self.owned: dict[bytes, frozenset[int]] = {}

    def join(self, topics: Iterable[str] | None = ("orders",), **fields: Any) -> ConsumerHeartbeatResponse:
        self.epoch, self.owned = 0, {}
        self.instance_id = fields.get("instance_id", self.instance_id)
        names = None if topics is None else list(topics)
        return self.send(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=names, owned={}, **fields)

    def heartbeat(self, **fields: Any) -> ConsumerHeartbeatResponse:
        return self.send(owned=self.owned, **fields)

    def send(self, **fields: Any) -> ConsumerHeartbeatResponse:
        response = self.bench.heartbeat(self.request(**fields))
        self.follow(response)
        return response

    def follow(self, response: ConsumerHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {topic: frozenset(partitions) for topic, partitions in response.assignment.items()}

    def request(self, **fields: Any) -> ConsumerHeartbeatRequest:
        return ConsumerHeartbeatRequest(
            GROUP, self.name, **{"member_epoch": self.epoch, "instance_id": self.instance_id, **fields}
        )

    def leave(self, epoch: int = -1) -> None:
        self.bench.heartbeat(self.request(member_epoch=epoch))
        self.bench.members.pop(self.name, None)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return sorted(
            (topic.decode().rstrip("-"), partition) for topic, partitions in self.owned.items() for partition in partitions
        )

    def indexes(self) -> list[int]:
        """Of whichever topic."""
        return [partition for _, partition in self.partitions]


def _partitions(name: str, indexes: range) -> list[PartitionRecord]:
    return [PartitionRecord(index, topic_id(name), (1,), (1,), leader=1) for index in indexes]
