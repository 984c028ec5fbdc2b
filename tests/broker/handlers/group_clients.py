"""Group members by hand, for the tests of the APIs of groups."""

from typing import Any

from tests.broker.harness import FakeClient, Machine
from tidelog.coordinator.shard import ShardState
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

SUBSCRIPTION_HEAD = b"\0\0"


def find_coordinator(client: FakeClient, group_id: str = "g") -> None:
    """Also makes the topic of the coordinator."""
    assert client.call(ApiKey.FIND_COORDINATOR, 3, key=group_id, key_type=0).error_code == 0


def wait_loaded(machine: Machine, group_id: str = "g") -> None:
    """After a start: until the group's shard can answer."""
    groups = machine.broker.coordinators.groups
    machine.run_until(lambda: groups.shard_of(group_id).state is ShardState.ACTIVE)


def subscription(*topics: str) -> bytes:
    """A consumer's metadata in JoinGroup, version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return SUBSCRIPTION_HEAD + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def join(
    client: FakeClient, *topics: str, group_id: str = "g", protocol_type: str = "consumer", **fields: Any
) -> tuple[str, int]:
    """The only member of a classic group, joined and synced: its id, and the generation."""
    joined = client.call(
        ApiKey.JOIN_GROUP,
        3,
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type=protocol_type,
        protocols=[{"name": "range", "metadata": subscription(*topics)}],
        **fields,
    )
    assert joined.error_code == 0
    synced = client.call(
        ApiKey.SYNC_GROUP,
        3,
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
    )
    assert synced.error_code == 0
    return joined.member_id, joined.generation_id


def commit(
    client: FakeClient,
    offsets: dict[str, dict[int, int]],
    version: int = 9,
    *,
    group_id: str = "g",
    member_id: str = "",
    generation: int = -1,
    metadata: str | None = "",
    leader_epoch: int = -1,
    **fields: Any,
) -> DecodedMessage:
    """``offsets`` by topic and partition; from version 10 on the topic's id is taken from the broker."""
    image = client.machine.broker.image
    topics = [
        {
            "name": name,
            "topic_id": topic.topic_id if (topic := image.topic(name)) is not None else b"unknown".ljust(16),
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": leader_epoch,
                    "committed_metadata": metadata,
                }
                for partition, offset in partitions.items()
            ],
        }
        for name, partitions in offsets.items()
    ]
    return client.call(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=topics,
        **fields,
    )


def codes(response: DecodedMessage) -> dict[str, dict[int, int]]:
    """By topic and partition, of a response to OffsetCommit or OffsetDelete."""
    return {
        topic.name: {partition.partition_index: partition.error_code for partition in topic.partitions}
        for topic in response.topics
    }


def committed(client: FakeClient, topic: str = "orders", partition: int = 0, group_id: str = "g") -> int:
    response = client.call(ApiKey.OFFSET_FETCH, 7, group_id=group_id, topics=[{"name": topic, "partition_indexes": [partition]}])
    assert response.error_code == 0
    ((answer,),) = [found.partitions for found in response.topics]
    assert answer.error_code == 0
    offset: int = answer.committed_offset
    return offset


def heartbeat(client: FakeClient, member_id: str, epoch: int, *topics: str, group_id: str = "g", **fields: Any) -> DecodedMessage:
    """Of a member of a KIP-848 group; with epoch 0 it joins."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": list(topics), "topic_partitions": [], **fields}
    response = client.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group_id, member_id=member_id, member_epoch=epoch, **fields
    )
    assert response.error_code == 0, response.error_message
    return response
