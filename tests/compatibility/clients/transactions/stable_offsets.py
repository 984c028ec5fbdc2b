"""How far readers get: the last stable offset for read_committed, the high watermark for the others."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.groups.member import Partition
from tests.compatibility.clients.waiting import wait_until


def last_stable_offsets(admin: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    return _end_offsets(admin, partitions, IsolationLevel.READ_COMMITTED)


def high_watermarks(admin: Any, partitions: Iterable[Partition]) -> dict[Partition, int]:
    return _end_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)


def wait_until_stable(admin: Any, partitions: Iterable[Partition]) -> None:
    """No transaction is open in them any more: a committed one becomes visible partition by partition, after its commit."""
    wanted = list(partitions)
    wait_until(lambda: last_stable_offsets(admin, wanted) == high_watermarks(admin, wanted), "last stable offsets at the end")


def _end_offsets(admin: Any, partitions: Iterable[Partition], isolation: Any) -> dict[Partition, int]:
    wanted = {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=CALL_SECONDS_MAX)
    return {Partition(each.topic, each.partition): future.result(CALL_SECONDS_MAX).offset for each, future in answers.items()}
