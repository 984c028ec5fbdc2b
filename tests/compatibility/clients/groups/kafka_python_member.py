"""kafka-python as a member."""

from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError

from tests.compatibility.clients.groups.member import HEARTBEAT_INTERVAL_MS, POLL_RECORDS_MAX, Member

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
COMMIT_TIMEOUT_MS = 5_000
# Longer than a rebalance takes: when a poll ends in the middle of one that new metadata caused, kafka-python 3.0.12 at times
# never takes up the assignment. With records at hand a poll ends at once.
POLL_TIMEOUT_MS = 1_000


class KafkaPythonMember(Member):
    client = "kafka-python"
    assignors = frozenset(ASSIGNORS)

    def take_part(self) -> None:
        wanted = self.membership
        consumer = KafkaConsumer(
            bootstrap_servers=wanted.bootstrap_servers,
            client_id=wanted.client_id,
            group_id=wanted.group,
            group_instance_id=wanted.instance_id,
            session_timeout_ms=wanted.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            partition_assignment_strategy=[ASSIGNORS[wanted.assignor]],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            max_poll_records=POLL_RECORDS_MAX,
            metadata_max_age_ms=500,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
        )
        try:
            consumer.subscribe(topics=list(wanted.topics), pattern=wanted.pattern, listener=_Listener(self, consumer))
            while not self.is_leaving:
                for records in consumer.poll(POLL_TIMEOUT_MS).values():
                    for record in records:
                        self.on_read(record.topic, record.partition, record.offset, record.value)
                self.commit(consumer)
        finally:
            consumer.close()

    def commit(self, consumer: Any) -> None:
        offsets = self.take_uncommitted()
        if not offsets:
            return
        wanted = {TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        try:
            consumer.commit(wanted, timeout_ms=COMMIT_TIMEOUT_MS)
        except KafkaError as error:
            self.refused_commits.append(type(error).__name__)
        else:
            self.on_committed(offsets)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    def __init__(self, member: KafkaPythonMember, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.commit(self._consumer)
        self._member.on_gone("revoked", revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member.on_gone("lost", lost)
