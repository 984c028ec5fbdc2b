"""kafka-python as a member."""

import time
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError

from tests.compatibility.clients.groups.member import HEARTBEAT_INTERVAL_MS, POLL_RECORDS_MAX, POLL_SECONDS, Member

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
        consumer = self._connect()
        if consumer is None:
            return
        try:
            consumer.subscribe(topics=list(wanted.topics), pattern=wanted.pattern, listener=_Listener(self, consumer))
            while not self.is_leaving:
                self._poll(consumer)
                self.commit(consumer)
        finally:
            consumer.close()

    def _connect(self) -> Any:
        """None if it was told to leave before it found a broker."""
        wanted = self.membership
        while not self.is_leaving:
            try:
                return KafkaConsumer(
                    bootstrap_servers=wanted.bootstrap_servers,
                    client_id=wanted.client_id,
                    group_id=wanted.group,
                    group_instance_id=wanted.instance_id,
                    session_timeout_ms=wanted.session_timeout_ms,
                    heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
                    partition_assignment_strategy=[ASSIGNORS[wanted.assignor]],
                    enable_auto_commit=False,
                    auto_offset_reset="earliest" if wanted.may_reset else "none",
                    fetch_max_wait_ms=50,
                    max_poll_records=POLL_RECORDS_MAX,
                    metadata_max_age_ms=500,
                    reconnect_backoff_ms=10,
                    reconnect_backoff_max_ms=100,
                    retry_backoff_ms=20,
                )
            except KafkaConnectionError:
                time.sleep(POLL_SECONDS)
        return None

    def _poll(self, consumer: Any) -> None:
        try:
            polled = consumer.poll(POLL_TIMEOUT_MS)
        except KafkaConnectionError:
            # The broker is away; the client goes on with the next poll.
            time.sleep(POLL_SECONDS)
            return
        for records in polled.values():
            for record in records:
                self.on_read(record.topic, record.partition, record.offset, record.value)

    def commit(self, consumer: Any) -> None:
        offsets = self.take_uncommitted()
        if not offsets:
            return
        wanted = {TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        try:
            consumer.commit(wanted, timeout_ms=COMMIT_TIMEOUT_MS)
        except KafkaError as error:
            self.on_refused(offsets, type(error).__name__)
        else:
            self.on_committed(offsets)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    def __init__(self, member: KafkaPythonMember, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        # When a poll ends before the committed offsets have arrived, kafka-python 3.0.12 keeps that request, and uses its answer
        # the next time it owns the same partitions, however many commits have come in between. It must ask again.
        self._consumer._coordinator._offset_fetch_futures.clear()
        self._member.on_assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        try:
            self._member.commit(self._consumer)
        except Exception as error:
            # kafka-python commits within its own rebalance here, and may fail in ways of its own. Whoever reads next starts
            # from the last commit.
            self._member.on_refused({}, repr(error))
        self._member.on_gone("revoked", revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member.on_gone("lost", lost)
