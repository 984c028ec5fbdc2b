"""What members have already, as sticky assignors begin with it."""

from collections.abc import Mapping

from tidelog.groups.assignors.specification import Members

TopicIdPartition = tuple[bytes, int]


def keep_current(
    members: Members, member_ids: list[str], partition_counts: Mapping[bytes, int]
) -> tuple[set[TopicIdPartition], dict[str, list[TopicIdPartition]]]:
    """What of the current assignment may stay: partitions that exist and that their member still subscribes to. Of two who hold
    the same one (it cannot be, but it must not be passed on) the first keeps it."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id in member_ids:
        member = members[member_id]
        mine = kept[member_id] = []
        for topic_id in sorted(member.assigned):
            if topic_id not in member.topic_ids:
                continue
            count = partition_counts[topic_id]
            for partition in member.assigned[topic_id]:
                topic_partition = (topic_id, partition)
                if partition < count and topic_partition not in taken:
                    taken.add(topic_partition)
                    mine.append(topic_partition)
    return taken, kept


def grouped(topic_partitions: list[TopicIdPartition]) -> dict[bytes, tuple[int, ...]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(topic_partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in by_topic.items()}
