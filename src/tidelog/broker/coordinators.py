"""The coordinators of this broker: groups in ``__consumer_offsets``, transactions in ``__transaction_state``."""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.transactions.marker_writer import PartitionMarkerWriter
from tidelog.controller.errors import ApiError
from tidelog.controller.producer_ids import BLOCK_SIZE, allocate_producer_ids
from tidelog.controller.topics import NewTopic, TopicCreation, create_topics
from tidelog.coordinator.errors import NotCoordinator
from tidelog.coordinator.machine import MachineType, RecordCodec, ShardTimers
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.records import RECORD_CODEC as GROUP_RECORD_CODEC
from tidelog.metadata.features import TRANSACTION_VERSION
from tidelog.metadata.image import ImageDelta
from tidelog.metadata.topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.ports.executor import Executor
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.transactions.end_transaction import MarkerSender
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.producer_ids import OnBlock, ProducerIdBlock, ProducerIds
from tidelog.transactions.records import RECORD_CODEC as TRANSACTION_RECORD_CODEC
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

Groups = CoordinatorService[GroupCoordinator]
Transactions = CoordinatorService[TransactionCoordinator]


class CoordinatorType(IntEnum):
    """The coordinator types, with FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    __slots__ = ("_broker", "_executor", "groups", "markers", "producer_ids", "transactions")

    def __init__(self, broker: "BrokerNode", executor: Executor) -> None:
        self._broker = broker
        self._executor = executor
        self.groups: Groups = self._service(GROUP_RECORD_CODEC, self._group_machine, _groups_topic(broker))
        self.transactions: Transactions = self._service(
            TRANSACTION_RECORD_CODEC, self._transaction_coordinator, _transactions_topic(broker)
        )
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        writer = PartitionMarkerWriter(broker.partitions, self.groups, broker.clock)
        self.markers = MarkerSender(writer, broker.clock, broker.timers, broker.report)

    def _service(
        self, codec: RecordCodec, make_machine: Callable[[ShardTimers], MachineType], topic: NewTopic
    ) -> CoordinatorService[MachineType]:
        broker = self._broker
        runtime = CoordinatorRuntime(
            topic.name,
            codec,
            make_machine,
            clock=broker.clock,
            scheduler=broker.timers,
            executor=self._executor,
            report=broker.report,
        )
        return CoordinatorService(
            runtime,
            topic,
            node_id=broker.config.node_id,
            image=broker.image,
            partitions=broker.partitions,
            scheduler=broker.timers,
            create_topic=self._create_topic,
        )

    # -- machines ------------------------------------------------------------------------------------------------------------

    def _group_machine(self, timers: ShardTimers) -> GroupCoordinator:
        broker = self._broker
        return GroupCoordinator(
            GroupEnvironment(broker.clock, broker.randomness, broker.image, broker.config.values, timers, broker.report)
        )

    def _transaction_coordinator(self, timers: ShardTimers) -> TransactionCoordinator:
        broker = self._broker
        return TransactionCoordinator(
            TransactionEnvironment(
                clock=broker.clock,
                settings=broker.config.values,
                timers=timers,
                producer_ids=self.producer_ids,
                send_markers=self.markers.send,
                coordinator_epoch=self._coordinator_epoch,
                transaction_version=lambda: broker.image.features.get(TRANSACTION_VERSION, 0),
                record_bytes_max=lambda: broker.settings.log_settings(TRANSACTIONS_TOPIC).message_bytes_max,
                report=broker.report,
            )
        )

    def _coordinator_epoch(self, transactional_id: str) -> int:
        topic = self.transactions.topic
        if topic is None:
            raise NotCoordinator(f"{TRANSACTIONS_TOPIC} does not exist")
        return self.transactions.locate(topic, transactional_id).leader_epoch

    # -- decisions of the controller -----------------------------------------------------------------------------------------

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

    def _allocate_producer_ids(self, on_block: OnBlock) -> None:
        broker = self._broker

        def decided(first: int | None, error: Exception | None) -> None:
            on_block(None if first is None else ProducerIdBlock(first, BLOCK_SIZE), error)

        broker.decisions.submit(
            lambda image: allocate_producer_ids(image, broker.config.node_id, broker.broker_epoch),
            decided,
        )

    # -- the broker ----------------------------------------------------------------------------------------------------------

    def find(self, kind: int) -> CoordinatorService[Any] | None:
        if kind == CoordinatorType.GROUP:
            return self.groups
        return self.transactions if kind == CoordinatorType.TRANSACTION else None

    def start(self) -> None:
        self.groups.start()
        self.transactions.start()

    def apply(self, delta: ImageDelta) -> None:
        self.groups.apply(delta)
        self.transactions.apply(delta)
        if delta.topics_deleted:
            for shard in self.groups.runtime:
                if shard.machine is not None:
                    shard.machine.on_topics_deleted()

    def flush(self) -> None:
        """Called at the end of a burst."""
        self.markers.flush()
        self.groups.runtime.flush()
        self.transactions.runtime.flush()


def _groups_topic(broker: "BrokerNode") -> NewTopic:
    values = broker.config.values
    configs = (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(values["offsets.topic.segment.bytes"])),
    )
    return NewTopic(
        GROUPS_TOPIC, values["offsets.topic.num.partitions"], values["offsets.topic.replication.factor"], configs=configs
    )


def _transactions_topic(broker: "BrokerNode") -> NewTopic:
    values = broker.config.values
    configs = (
        ("cleanup.policy", "compact"),
        ("compression.type", "uncompressed"),
        ("segment.bytes", str(values["transaction.state.log.segment.bytes"])),
        ("min.insync.replicas", str(values["transaction.state.log.min.isr"])),
    )
    return NewTopic(
        TRANSACTIONS_TOPIC,
        values["transaction.state.log.num.partitions"],
        values["transaction.state.log.replication.factor"],
        configs=configs,
    )
