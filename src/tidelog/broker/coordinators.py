"""The coordinators of this broker: groups in ``__consumer_offsets``, transactions in ``__transaction_state``, and the progress of
share groups in ``__share_group_state``."""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import DECISION_MS_MAX
from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.share_states import Shares, ShareStates, StatePorts
from tidelog.broker.transactions.marker_writer import ClusterMarkerWriter, PartitionMarkerWriter
from tidelog.config.groups import METADATA_BYTES_TOTAL_MAX
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import NewTopic
from tidelog.coordinator.errors import NotCoordinator
from tidelog.coordinator.machine import MachineType, RecordCodec, ShardTimers
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import MetadataBudget
from tidelog.groups.records import RECORD_CODEC as GROUP_RECORD_CODEC
from tidelog.metadata.features import TRANSACTION_VERSION
from tidelog.metadata.image import ImageDelta
from tidelog.metadata.topics import GROUPS_TOPIC, SHARE_STATES_TOPIC, TRANSACTIONS_TOPIC
from tidelog.ports.executor import Executor
from tidelog.queues.records import RECORD_CODEC as SHARE_RECORD_CODEC
from tidelog.queues.share_coordinator import ShareCoordinator
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.transactions.end_transaction import MarkerSender
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.producer_ids import OnBlock, ProducerIdBlock, ProducerIds
from tidelog.transactions.records import RECORD_CODEC as TRANSACTION_RECORD_CODEC
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

CREATE_TOPICS = ApiKey.CREATE_TOPICS, 7
ALLOCATE_PRODUCER_IDS = ApiKey.ALLOCATE_PRODUCER_IDS, 0
# How long this node's image may lag behind the controller before a client is told to come back.
IMAGE_MS_MAX = 5_000

Groups = CoordinatorService[GroupCoordinator]
Transactions = CoordinatorService[TransactionCoordinator]


class CoordinatorType(IntEnum):
    """The coordinator types, with FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class Coordinators:
    __slots__ = (
        "_broker",
        "_executor",
        "_metadata_budget",
        "groups",
        "local_markers",
        "markers",
        "producer_ids",
        "share_states",
        "transactions",
    )

    def __init__(self, broker: "BrokerNode", executor: Executor) -> None:
        self._broker = broker
        self._executor = executor
        self._metadata_budget = MetadataBudget(broker.config.values[METADATA_BYTES_TOTAL_MAX])
        self.groups: Groups = self._service(GROUP_RECORD_CODEC, self._group_machine, _groups_topic(broker))
        self.transactions: Transactions = self._service(
            TRANSACTION_RECORD_CODEC, self._transaction_coordinator, _transactions_topic(broker)
        )
        shares: Shares = self._service(SHARE_RECORD_CODEC, self._share_coordinator, _share_states_topic(broker))
        config = broker.config
        ports = StatePorts(
            config.node_id, broker.clock, broker.image, broker.directory, config.values, broker.peers, broker.timers
        )
        self.share_states = ShareStates(shares, ports)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        writer = PartitionMarkerWriter(broker.partitions, self.groups, broker.clock)
        everywhere = ClusterMarkerWriter(writer, broker.image, broker.config.node_id, broker.peers)
        self.markers = MarkerSender(everywhere, broker.clock, broker.timers, broker.report)
        # For coordinators of other brokers, which send markers only to the partitions of this one.
        self.local_markers = MarkerSender(writer, broker.clock, broker.timers, broker.report)

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
            GroupEnvironment(
                broker.clock,
                broker.randomness,
                broker.image,
                broker.config.values,
                timers,
                broker.report,
                self._metadata_budget,
            )
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

    def _share_coordinator(self, timers: ShardTimers) -> ShareCoordinator:  # noqa: ARG002 - engines keep the time
        broker = self._broker
        return ShareCoordinator(broker.clock, broker.config.values["share.coordinator.snapshot.update.records.per.snapshot"])

    def _coordinator_epoch(self, transactional_id: str) -> int:
        topic = self.transactions.topic
        if topic is None:
            raise NotCoordinator(f"{TRANSACTIONS_TOPIC} does not exist")
        return self.transactions.locate(topic, transactional_id).leader_epoch

    # -- decisions of the controller -----------------------------------------------------------------------------------------

    def _create_topic(self, topic: NewTopic, on_done: Callable[[Exception | None], None]) -> None:
        broker = self._broker
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": [],
                    "configs": [{"name": name, "value": value} for name, value in topic.configs],
                }
            ],
            "timeout_ms": DECISION_MS_MAX,
            "validate_only": False,
        }

        def created(response: DecodedMessage) -> None:
            (result,) = response.topics
            code = ErrorCode(result.error_code)
            if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                on_done(ApiError(code, result.error_message))
                return
            # The image follows a moment later.
            broker.image_waiters.wait(lambda: broker.image.topic(topic.name) is not None, lambda: on_done(None), IMAGE_MS_MAX)

        broker.own_requests.request(CREATE_TOPICS, fields, created, on_done, DECISION_MS_MAX)

    def _allocate_producer_ids(self, on_block: OnBlock) -> None:
        broker = self._broker
        fields = {"broker_id": broker.config.node_id, "broker_epoch": broker.lifecycle.broker_epoch}

        def allocated(response: DecodedMessage) -> None:
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                on_block(ProducerIdBlock(response.producer_id_start, response.producer_id_len), None)
            else:
                on_block(None, ApiError(code, "the active controller allocated no producer ids"))

        def failed(error: Exception) -> None:
            on_block(None, error)

        broker.own_requests.request(ALLOCATE_PRODUCER_IDS, fields, allocated, failed, DECISION_MS_MAX)

    # -- the broker ----------------------------------------------------------------------------------------------------------

    def find(self, kind: int) -> CoordinatorService[Any] | None:
        if kind == CoordinatorType.GROUP:
            return self.groups
        if kind == CoordinatorType.SHARE:
            return self.share_states.service
        return self.transactions if kind == CoordinatorType.TRANSACTION else None

    def start(self) -> None:
        self.groups.start()
        self.transactions.start()
        self.share_states.service.start()
        self._prune_share_states()
        self._snapshot_share_states()

    def _prune_share_states(self) -> None:
        self.share_states.prune()
        self._repeat("share.coordinator.state.topic.prune.interval.ms", self._prune_share_states)

    def _snapshot_share_states(self) -> None:
        self.share_states.delete_orphans()
        self.share_states.snapshot_cold()
        self._repeat("share.coordinator.cold.partition.snapshot.interval.ms", self._snapshot_share_states)

    def _repeat(self, interval_setting: str, action: Callable[[], None]) -> None:
        broker = self._broker
        if broker.is_running:
            broker.timers.schedule(broker.config.values[interval_setting], action)

    def apply(self, delta: ImageDelta) -> None:
        self.groups.apply(delta)
        self.transactions.apply(delta)
        self.share_states.service.apply(delta)
        if delta.topics_deleted:
            self.share_states.delete_topics(frozenset(delta.topics_deleted))
            for shard in self.groups.runtime:
                if shard.machine is not None:
                    shard.machine.on_topics_deleted()

    def flush(self) -> None:
        """Called at the end of a burst."""
        self.markers.flush()
        self.local_markers.flush()
        self.groups.runtime.flush()
        self.transactions.runtime.flush()
        self.share_states.service.runtime.flush()


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


def _share_states_topic(broker: "BrokerNode") -> NewTopic:
    """Its records are deleted once later ones say the same again, never because of their age."""
    values = broker.config.values
    prefix = "share.coordinator.state.topic"
    configs = (
        ("cleanup.policy", "delete"),
        ("compression.type", "uncompressed"),
        ("segment.bytes", str(values[f"{prefix}.segment.bytes"])),
        ("min.insync.replicas", str(values[f"{prefix}.min.isr"])),
        ("retention.ms", "-1"),
    )
    return NewTopic(
        SHARE_STATES_TOPIC, values[f"{prefix}.num.partitions"], values[f"{prefix}.replication.factor"], configs=configs
    )
