"""Throttles for partitions that are about to move, set as Kafka's own tool sets them.

The leader's side of a move is every replica that there is, because any of them may come to lead; the follower's side are the
brokers that are added. The rate is a setting of each broker that runs. A Tidelog cluster removes all of it by itself when the
moves end; on Apache Kafka, ``remove_throttles`` does, once nothing moves.
"""

from collections.abc import Collection, Mapping, Sequence

from tidelog.client.admin import Admin
from tidelog.records.topic_partition import TopicPartition

LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

Moves = Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]]
"""For each partition, its present replicas and those that a move adds."""


def throttle(admin: Admin, brokers: Collection[int], moves: Moves, bytes_per_second: int) -> None:
    """Limit these moves. Entries that the topics have already are kept."""
    by_topic: dict[str, tuple[list[str], list[str]]] = {}
    for (topic, partition), (present, added) in moves.items():
        entries = by_topic.setdefault(topic, ([], []))
        for listed, replicas in zip(entries, (present, added), strict=True):
            listed += [f"{partition}:{replica}" for replica in replicas]
    for topic, entries in by_topic.items():
        current = admin.describe_configs("topic", topic)
        texts: dict[str, str | None] = {}
        for name, listed in zip(LISTS, entries, strict=True):
            before = _entries(current[name].value)
            if before != ["*"]:
                texts[name] = ",".join(dict.fromkeys([*before, *listed]))
        if texts:
            admin.alter_configs("topic", topic, texts)
    for broker in sorted(brokers):
        admin.alter_configs("broker", str(broker), dict.fromkeys(RATES, str(bytes_per_second)))


def remove_throttles(admin: Admin, brokers: Collection[int], topics: Collection[str], moving: Collection[TopicPartition]) -> int:
    """Remove the entries of partitions that do not move, and the rates if no entry is left. Returns how many settings that
    were."""
    count = 0
    is_any_left = False
    for topic in topics:
        current = admin.describe_configs("topic", topic)
        texts: dict[str, str | None] = {}
        for name in LISTS:
            before = _entries(current[name].value) if name in current else []
            kept = [entry for entry in before if entry == "*" or (topic, int(entry.partition(":")[0])) in moving]
            is_any_left = is_any_left or bool(kept)
            if kept != before:
                texts[name] = ",".join(kept) or None
        if texts:
            admin.alter_configs("topic", topic, texts)
            count += len(texts)
    if count and not is_any_left:
        for broker in sorted(brokers):
            admin.alter_configs("broker", str(broker), dict.fromkeys(RATES))
            count += len(RATES)
    return count


def _entries(text: str | None) -> list[str]:
    return [entry.strip() for entry in (text or "").split(",") if entry.strip()]
