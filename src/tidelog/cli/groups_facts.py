"""What a cluster says about groups: members, committed offsets, where the partitions begin and end.

Everything by Kafka's own requests through librdkafka, so that it works on any Kafka. Lag is counted as Kafka's tools do; its age
in seconds is that of the record at the committed offset, which is fetched (``groups_ages``).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import REQUEST_SECONDS_MAX, Cluster
from tidelog.cli.output import count_of

Partition = tuple[str, int]

# An error is one line.
CLIENTS_SHOWN_MAX = 3

STATE_NAMES = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
# The client knows no names for the states in which a group of the new protocol is between two assignments.
OTHER_STATE = "Rebalancing"
TYPE_NAMES = {ConsumerGroupType.CONSUMER: "consumer", ConsumerGroupType.CLASSIC: "classic"}


class Member(NamedTuple):
    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    partitions: tuple[Partition, ...]


class Group(NamedTuple):
    group_id: str
    state: str
    type: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]

    @property
    def is_live(self) -> bool:
        return bool(self.members) or self.state not in ("Empty", "Dead")

    def owner(self, partition: Partition) -> Member | None:
        return next((member for member in self.members if partition in member.partitions), None)


class Committed(NamedTuple):
    offset: int
    leader_epoch: int | None
    metadata: str


class Span(NamedTuple):
    """Log start offset and high watermark."""

    start: int
    end: int


def state_name(state: Any) -> str:
    return STATE_NAMES.get(state, OTHER_STATE)


def type_name(kind: Any) -> str:
    return TYPE_NAMES.get(kind, "classic")


def describe(cluster: Cluster, admin: Any, group_ids: Sequence[str]) -> list[Group]:
    """A group that does not exist is Dead, as Kafka has it."""
    if not group_ids:
        return []
    with cluster.errors():
        futures = admin.describe_consumer_groups(list(group_ids), request_timeout=REQUEST_SECONDS_MAX)
    return [_described(cluster, group_id, futures[group_id]) for group_id in group_ids]


def _described(cluster: Cluster, group_id: str, future: Any) -> Group:
    try:
        found = future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return Group(group_id, "Dead", "", "", "", ())
        raise CommandFailed(f"group {group_id}: {cluster.reason(error.args[0])}") from error
    members = tuple(
        Member(member.member_id, member.client_id, member.host, member.group_instance_id, _partitions(member.assignment))
        for member in found.members
    )
    node = found.coordinator
    coordinator = f"broker {node.id} ({node.host}:{node.port})" if node is not None else ""
    return Group(
        group_id,
        state_name(found.state),
        type_name(found.type),
        found.partition_assignor,
        coordinator,
        tuple(sorted(members, key=lambda member: (member.client_id, member.member_id))),
    )


def _partitions(assignment: Any) -> tuple[Partition, ...]:
    return tuple(sorted((place.topic, place.partition) for place in assignment.topic_partitions)) if assignment else ()


def find(cluster: Cluster, admin: Any, group_id: str) -> tuple[Group, dict[Partition, Committed]]:
    """One that exists: it has members, or at least offsets."""
    (group,) = describe(cluster, admin, [group_id])
    offsets = committed(cluster, admin, group_id)
    if group.state == "Dead" and not offsets:
        raise no_such_group(cluster, group_id)
    return group, offsets


def no_such_group(cluster: Cluster, group_id: str) -> CommandFailed:
    return CommandFailed(f"there is no group {group_id} at {cluster.bootstrap}; tidelog groups list shows those there are")


def refuse_live(group: Group, verb: str) -> None:
    """Its members would go on from where they are and commit over what was done."""
    if not group.is_live:
        return
    clients = sorted({f"{member.client_id} at {member.host}" for member in group.members})
    who = f"{count_of(len(group.members), 'member')} ({', '.join(clients[:CLIENTS_SHOWN_MAX])})" if clients else "no members yet"
    raise CommandFailed(
        f"group {group.group_id} cannot be {verb} while it is in use: it is {group.state} with {who}; stop them first"
    )


def committed(cluster: Cluster, admin: Any, group_id: str) -> dict[Partition, Committed]:
    asked = ConsumerGroupTopicPartitions(group_id)
    with cluster.errors():
        found = admin.list_consumer_group_offsets([asked], request_timeout=REQUEST_SECONDS_MAX)[group_id].result()
    offsets: dict[Partition, Committed] = {}
    for place in sorted(found.topic_partitions, key=lambda place: (place.topic, place.partition)):
        if place.error is not None:
            raise CommandFailed(f"group {group_id}, {place.topic}-{place.partition}: {cluster.reason(place.error)}")
        if place.offset >= 0:
            offsets[place.topic, place.partition] = Committed(place.offset, place.leader_epoch, place.metadata or "")
    return offsets


def spans(cluster: Cluster, admin: Any, partitions: Iterable[Partition]) -> dict[Partition, Span]:
    """Those that exist; a committed offset may outlive its topic, and to ask for it by name could create it again."""
    topics = cluster.metadata(admin).topics
    wanted = [(topic, partition) for topic, partition in partitions if topic in topics and partition in topics[topic].partitions]
    starts = offsets_by(cluster, admin, wanted, OffsetSpec.earliest())
    ends = offsets_by(cluster, admin, wanted, OffsetSpec.latest())
    return {partition: Span(start, ends[partition]) for partition, start in starts.items() if partition in ends}


def offsets_by(cluster: Cluster, admin: Any, partitions: Sequence[Partition], spec: Any) -> dict[Partition, int]:
    """ListOffsets; -1 where no record answers the question."""
    if not partitions:
        return {}
    with cluster.errors():
        futures = admin.list_offsets(
            {Place(topic, partition): spec for topic, partition in partitions}, request_timeout=REQUEST_SECONDS_MAX
        )
    found = {}
    for place, future in futures.items():
        try:
            found[place.topic, place.partition] = int(future.result().offset)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                raise CommandFailed(cluster.reason(error.args[0])) from error
    return found


def retention_ms(cluster: Cluster, admin: Any, topics: Iterable[str]) -> dict[str, float]:
    """By topic; infinite where nothing is deleted by age."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))]
    found = {}
    with cluster.errors():
        for resource in resources:
            entries = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX)[resource].result()
            value = int(entries["retention.ms"].value)
            is_deleting = "delete" in entries["cleanup.policy"].value
            found[resource.name] = float(value) if is_deleting and value >= 0 else math.inf
    return found
