"""A cluster that answers what plans ask, and is changed by the test."""

import re
from collections.abc import Sequence

from tidelog.client.errors import UnknownTopic
from tidelog.client.fetch.types import OffsetAt, TopicInfo
from tidelog.client.topic_partition import TopicPartition


class FakeCluster:
    def __init__(self) -> None:
        self.ids: dict[str, bytes] = {}
        self.logs: dict[TopicPartition, tuple[int, int]] = {}
        """Log start and end."""
        self.times: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Milliseconds and offset, in order."""
        self.asked: list[str] = []

    def add(self, topic: str, *ends: int, topic_id: int | None = None) -> None:
        self.ids[topic] = bytes([topic_id or len(self.ids) + 1]) * 16
        for number, end in enumerate(ends):
            self.logs[TopicPartition(topic, number)] = (0, end)

    def remove(self, topic: str) -> None:
        del self.ids[topic]
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}

    def grow(self, topic: str, number: int, end: int, start: int = 0) -> None:
        self.logs[TopicPartition(topic, number)] = (start, end)

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        self.asked.append("topics")
        if isinstance(wanted, re.Pattern):
            names = [name for name in self.ids if wanted.fullmatch(name)]
        else:
            names = list(wanted)
        for name in names:
            if name not in self.ids:
                raise UnknownTopic(f"topics: there is no {name}")
        return {name: TopicInfo(self.ids[name], len([p for p in self.logs if p.topic == name])) for name in sorted(names)}

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]:
        self.asked.append(f"offsets {at}")
        if at == "earliest":
            return {partition: self.logs[partition][0] for partition in partitions}
        if at == "latest":
            return {partition: self.logs[partition][1] for partition in partitions}
        found = {}
        for partition in partitions:
            offsets = [offset for time_ms, offset in self.times.get(partition, []) if time_ms >= int(at)]
            if offsets:
                found[partition] = offsets[0]
        return found
