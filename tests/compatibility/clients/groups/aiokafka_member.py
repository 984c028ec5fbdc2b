"""aiokafka as a member."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaConnectionError, KafkaError

from tests.compatibility.clients.groups.member import HEARTBEAT_INTERVAL_MS, POLL_RECORDS_MAX, POLL_SECONDS, Member

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}


class AiokafkaMember(Member):
    client = "aiokafka"
    assignors = frozenset(ASSIGNORS)

    def take_part(self) -> None:
        asyncio.run(self._take_part())

    async def _take_part(self) -> None:
        wanted = self.membership
        consumer = await self._connect()
        if consumer is None:
            return
        try:
            consumer.subscribe(topics=list(wanted.topics), pattern=wanted.pattern, listener=_Listener(self, consumer))
            while not self.is_leaving:
                polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=POLL_RECORDS_MAX)
                for records in polled.values():
                    for record in records:
                        self.on_read(record.topic, record.partition, record.offset, record.value)
                await self.commit(consumer)
        finally:
            # A connection that is lost meanwhile cancels what the client waits for, and it does not tell that from itself.
            with suppress(asyncio.CancelledError):
                await consumer.stop()

    async def _connect(self) -> Any:
        """None if it was told to leave before it found a broker."""
        wanted = self.membership
        while not self.is_leaving:
            consumer = AIOKafkaConsumer(
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
                metadata_max_age_ms=500,
                retry_backoff_ms=20,
            )
            try:
                await consumer.start()
            except KafkaConnectionError:
                await consumer.stop()
                await asyncio.sleep(POLL_SECONDS)
            else:
                return consumer
        return None

    async def commit(self, consumer: Any) -> None:
        offsets = self.take_uncommitted()
        if not offsets:
            return
        try:
            await consumer.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
        except KafkaError as error:
            self.on_refused(offsets, type(error).__name__)
        else:
            self.on_committed(offsets)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    def __init__(self, member: AiokafkaMember, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._member.commit(self._consumer)
        self._member.on_gone("revoked", revoked)

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.on_assigned(assigned)
