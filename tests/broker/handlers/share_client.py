"""A member of a share group that speaks bytes to a broker on simulated ports."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.broker.handlers.group_clients import find_coordinator, wait_loaded
from tests.broker.harness import FakeClient, Machine, offsets_in
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

GROUP = "jobs"
VERSION = 2
# A group that has no records to hand out keeps its first fetch waiting for so long.
BEGIN_MS_MAX = 100
EARLIEST = {"share.auto.offset.reset": "earliest"}

QUEUE = {"tidelog_queue_enable": "true"}
"""The setting of a queue topic, as ``create_topic`` takes it."""

# (first offset, last offset, delivery count)
Acquired = list[tuple[int, int, int]]


def configure(client: FakeClient, group: str = GROUP, **configs: str) -> int:
    """Settings of a group, named with '_' for '.'; returns the error code."""
    changes = [{"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": 32, "resource_name": group, "configs": changes}
    (answer,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses
    return int(answer.error_code)


def share_machine(
    partitions: int = 1,
    settings: dict[str, str] | None = None,
    topic_configs: Mapping[str, str] | None = None,
    **configs: str,
) -> tuple[Machine, FakeClient, bytes]:
    """A broker with the topic orders, and a group that begins at its beginning."""
    machine = Machine(settings)
    client = machine.client()
    topic_id = client.create_topic("orders", partitions=partitions, **(topic_configs or {}))
    find_coordinator(client, GROUP)
    wait_loaded(machine)
    assert configure(client, share_auto_offset_reset="earliest", **configs) == 0
    return machine, client, topic_id


class ShareMember:
    """One member with a connection of its own. It keeps its session's epoch."""

    def __init__(self, machine: Machine, name: str, topic_id: bytes, partitions: Sequence[int] = (0,)) -> None:
        self.client = machine.client()
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.epoch = 0
        self.member_epoch = 0

    def join(self) -> DecodedMessage:
        response = self.beat(0, subscribed_topic_names=["orders"])
        assert response.error_code == 0, response
        self.member_epoch = response.member_epoch
        return response

    def beat(self, member_epoch: int, **fields: Any) -> DecodedMessage:
        fields = {"group_id": GROUP, "member_id": self.name, "member_epoch": member_epoch, **fields}
        return self.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **fields)

    def topics(self, acks: Sequence[tuple[int, int, int, Sequence[int]]] = ()) -> list[dict[str, Any]]:
        """``acks`` are (partition, first offset, last offset, types)."""
        batches: dict[int, list[dict[str, Any]]] = {index: [] for index in self.partitions} if self.epoch == 0 else {}
        for partition, first, last, types in acks:
            batch = {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            batches.setdefault(partition, []).append(batch)
        partitions = [{"partition_index": index, "acknowledgement_batches": each} for index, each in batches.items()]
        return [{"topic_id": self.topic_id, "partitions": partitions}] if partitions else []

    def fetch_fields(self, acks: Sequence[tuple[int, int, int, Sequence[int]]] = (), **fields: Any) -> dict[str, Any]:
        return {
            "group_id": GROUP,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            # Nothing is handed out before it is written where the group begins.
            "max_wait_ms": 0 if self.epoch else BEGIN_MS_MAX,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": self.topics(acks),
            "forgotten_topics_data": [],
            **fields,
        }

    def fetch(self, *acks: tuple[int, int, int, Sequence[int]], version: int = VERSION, **fields: Any) -> DecodedMessage:
        response = self.client.call(ApiKey.SHARE_FETCH, version, **self.fetch_fields(acks, **fields))
        if response.error_code == 0:
            self.epoch += 1
        return response

    def acknowledge(self, *acks: tuple[int, int, int, Sequence[int]], version: int = VERSION, **fields: Any) -> DecodedMessage:
        fields = {
            "group_id": GROUP,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "is_renew_ack": False,
            "topics": self.topics(acks),
            **fields,
        }
        response = self.client.call(ApiKey.SHARE_ACKNOWLEDGE, version, **fields)
        if response.error_code == 0:
            self.epoch += 1
        return response

    def acquired(self, *acks: tuple[int, int, int, Sequence[int]], partition: int = 0, **fields: Any) -> Acquired:
        """Fetch, and return what was acquired in one partition."""
        return acquired_in(self.fetch(*acks, **fields), partition)

    def settle(self, first: int, last: int, *types: int, **fields: Any) -> int:
        """Acknowledge offsets of partition 0; returns the error code."""
        response = self.acknowledge((0, first, last, types), **fields)
        assert response.error_code == 0, response
        return int(response.responses[0].partitions[0].error_code)


def partition_in(response: DecodedMessage, partition: int = 0) -> DecodedMessage | None:
    assert response.error_code == 0, response
    found = [each for topic in response.responses for each in topic.partitions if each.partition_index == partition]
    return found[0] if found else None


def acquired_in(response: DecodedMessage, partition: int = 0) -> Acquired:
    found = partition_in(response, partition)
    if found is None:
        return []
    assert found.error_code == 0, found
    acquired = [(each.first_offset, each.last_offset, each.delivery_count) for each in found.acquired_records]
    offsets = offsets_in(memoryview(found.records))
    missing = [offset for first, last, _ in acquired for offset in range(first, last + 1) if offset not in offsets]
    assert not missing or not offsets, "acquired records are sent"
    return acquired
