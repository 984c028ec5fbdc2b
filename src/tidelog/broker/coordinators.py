"""The coordinators of this broker: groups in ``__consumer_offsets``."""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import NewTopic, TopicCreation, create_topics
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard_timers import ShardTimers
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.machine import GroupMachine
from tidelog.groups.records import RECORD_CODEC
from tidelog.metadata.delta import ImageDelta
from tidelog.metadata.topics import GROUPS_TOPIC
from tidelog.ports.executor import Executor
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

Groups = CoordinatorService[GroupMachine]


class CoordinatorType(IntEnum):
    """As in FindCoordinator."""

    GROUP = 0


class Coordinators:
    __slots__ = ("_broker", "groups")

    def __init__(self, broker: "Broker", executor: Executor) -> None:
        self._broker = broker
        self.groups: Groups = CoordinatorService(
            CoordinatorRuntime(
                GROUPS_TOPIC,
                RECORD_CODEC,
                self._group_machine,
                clock=broker.clock,
                scheduler=broker.timers,
                executor=executor,
                report=broker.report,
            ),
            _groups_topic(broker),
            node_id=broker.config.node_id,
            image=broker.image,
            partitions=broker.partitions,
            scheduler=broker.timers,
            create_topic=self._create_topic,
        )

    def _group_machine(self, timers: ShardTimers) -> GroupMachine:
        broker = self._broker
        return GroupMachine(
            GroupEnvironment(broker.clock, broker.randomness, broker.image, broker.config.values, timers, broker.report)
        )

    def _create_topic(self, topic: NewTopic, on_done: Callable[[Exception | None], None]) -> None:
        broker = self._broker

        def created(results: list[TopicCreation] | None, error: Exception | None) -> None:
            if results and results[0].error is not ErrorCode.NONE:
                error = ApiError(results[0].error, results[0].message)
            on_done(error)

        broker.decisions.submit(
            lambda image: create_topics(
                image, broker.topic_rules, broker.static_config, [topic], broker.randomness, is_internal=True
            ),
            created,
        )

    def find(self, kind: int) -> CoordinatorService[Any] | None:
        return self.groups if kind == CoordinatorType.GROUP else None

    def start(self) -> None:
        self.groups.start()

    def apply(self, delta: ImageDelta) -> None:
        self.groups.apply(delta)
        if delta.topics_deleted:
            for shard in self.groups.runtime:
                if shard.machine is not None:
                    shard.machine.on_topics_deleted()

    def flush(self) -> None:
        """The end of a burst."""
        self.groups.runtime.flush()


def _groups_topic(broker: "Broker") -> NewTopic:
    values = broker.config.values
    configs = (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(values["offsets.topic.segment.bytes"])),
    )
    return NewTopic(
        GROUPS_TOPIC, values["offsets.topic.num.partitions"], values["offsets.topic.replication.factor"], configs=configs
    )
