"""Decides where reading begins and ends, and how it is split into tasks.

``find_partitions`` asks the cluster for the wanted topics, ``starting_positions`` and ``ending_positions`` turn the options into
offsets. ``tasks_of`` and ``limited`` are pure. They count in offsets: only a reader learns how many messages lie between two of
them (compaction and transaction markers leave gaps), so a limit may be undercut and is never exceeded.

The cost of a read follows its rows, not its partitions: a Python task costs Spark about as much as ten thousand rows, so small
spans share a task and large ones are cut.
"""

import heapq
import logging
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.client.fetch.errors import OffsetsLost
from tidelog.client.fetch.types import OffsetAt, TopicInfo
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.options import EARLIEST, LATEST, OffsetBound, SourceOptions, TopicSelection


class OffsetSpan(NamedTuple):
    """The offsets of a partition from ``start`` to before ``end``, for a batch or for one task."""

    topic: str
    topic_id: bytes
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def partition_of(span: OffsetSpan) -> TopicPartition:
    return TopicPartition(span.topic, span.partition)


# Spans share a task up to this many offsets, which take a few tenths of a second: enough to pay for the task, and few enough that
# a cluster has work for its cores, whose number a plan does not know.
OFFSETS_PER_TASK = 100_000
# A task of fewer offsets than this is not worth its start.
OFFSETS_PER_TASK_MIN = 10_000


class TaskLimits(NamedTuple):
    min_partitions: int
    """At least this many tasks, if there are enough offsets."""
    max_records: int
    """The most offsets in a task."""
    cores: int
    """So many tasks run at once, as far as the plan knows."""
    keeps_partitions_whole: bool
    """Whether to cut a partition only where ``max_records`` demands it. What a stream writes to a topic is then in the order of
    the partition that it came from."""


def task_limits(options: SourceOptions, *, keeps_partitions_whole: bool) -> TaskLimits:
    return TaskLimits(options.min_partitions, options.max_records_per_partition, os.cpu_count() or 1, keeps_partitions_whole)


def tasks_of(spans: Sequence[OffsetSpan], limits: TaskLimits) -> list[list[OffsetSpan]]:
    """Share the spans among tasks. The spans of a task are in the given order, and so are the parts of a partition."""
    total = sum(max(0, span.size) for span in spans)
    wanted = max(limits.min_partitions, min(limits.cores, total // OFFSETS_PER_TASK_MIN), 1)
    share = min(limits.max_records, OFFSETS_PER_TASK, -(-total // wanted))
    parts = split(spans, limits.min_partitions if limits.keeps_partitions_whole else wanted, limits.max_records)
    tasks: list[list[OffsetSpan]] = []
    size = 0
    for number, part in enumerate(parts):
        # The parts that are left would be too few for the wanted tasks if another one shared its task.
        is_one_too_few = len(tasks) + len(parts) - number <= limits.min_partitions
        # A part goes where most of it fits.
        is_full = size + part.size / 2 > share or size + part.size > limits.max_records
        if not tasks or is_full or is_one_too_few:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.size
    return tasks


def split(spans: Sequence[OffsetSpan], min_partitions: int, max_records: int) -> list[OffsetSpan]:
    """Return parts that are not empty: at most ``max_records`` in each, and at least ``min_partitions`` if there are enough
    offsets.

    The longest parts are cut next, so that the parts are about equal.
    """
    spans = [span for span in spans if span.size > 0]
    parts = [-(-span.size // max_records) for span in spans]
    missing = min_partitions - sum(parts)
    longest = [(-span.size / count, index) for index, (span, count) in enumerate(zip(spans, parts, strict=True))]
    heapq.heapify(longest)
    while missing > 0 and longest:
        _, index = heapq.heappop(longest)
        if parts[index] < spans[index].size:
            parts[index] += 1
            missing -= 1
            heapq.heappush(longest, (-spans[index].size / parts[index], index))
    return [part for span, count in zip(spans, parts, strict=True) for part in _cut(span, count)]


def _cut(span: OffsetSpan, count: int) -> list[OffsetSpan]:
    cuts = [span.start + span.size * number // count for number in range(count + 1)]
    return [span._replace(start=start, end=end) for start, end in pairwise(cuts)]


def limited(
    start: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
    """Where a batch of at most ``offsets_max`` ends: each partition gets its share by what waits in it.

    Shares are rounded down. What that leaves goes to the partitions that were rounded most, one by one: a partition with little
    in it is never passed over forever, and there is always progress.
    """
    waiting = {partition: max(0, end - start[partition]) for partition, end in available.items()}
    total = sum(waiting.values())
    if total <= offsets_max:
        return {partition: start[partition] + count for partition, count in waiting.items()}
    shares = {partition: count * offsets_max // total for partition, count in waiting.items()}
    left = offsets_max - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda partition: (-(waiting[partition] * offsets_max % total), partition))
    for partition in by_remainder[:left]:
        shares[partition] += 1
    return {partition: start[partition] + share for partition, share in shares.items()}


_logger = logging.getLogger(__name__)


class OffsetLookup(Protocol):
    """The part of ``FetchClient`` that plans need."""

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]: ...

    def offsets(self, partitions: Sequence[TopicPartition], at: OffsetAt) -> dict[TopicPartition, int]: ...


class Catalogue(NamedTuple):
    """The topics that exist, by id, and the wanted partitions of each."""

    ids: dict[str, bytes]
    partitions: tuple[TopicPartition, ...]


def find_partitions(client: OffsetLookup, wanted: TopicSelection) -> Catalogue:
    found = client.topics(wanted.pattern or wanted.names)
    ids = {topic: info.topic_id for topic, info in found.items()}
    for topic, partition in wanted.assigned:
        if partition >= found[topic].partitions:
            raise UnknownTopic(
                f"option assign: {topic} has {found[topic].partitions} partitions, there is no {topic}[{partition}]"
            )
    every = [TopicPartition(topic, number) for topic, info in found.items() for number in range(info.partitions)]
    return Catalogue(ids, wanted.assigned or tuple(every))


def starting_positions(
    client: OffsetLookup, options: SourceOptions, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    return _positions(client, options, options.starting, partitions, "latest" if options.uses_latest_without_match else None)


def ending_positions(
    client: OffsetLookup, options: SourceOptions, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    return _positions(client, options, options.ending, partitions, "latest")


def _positions(
    client: OffsetLookup,
    options: SourceOptions,
    bound: OffsetBound,
    partitions: Sequence[TopicPartition],
    otherwise: Literal["latest"] | None,
) -> dict[TopicPartition, int]:
    """``otherwise`` stands for a time that no message has reached; if it is None, such a time is refused."""
    if not partitions:
        return {}
    if bound.kind == "earliest" or bound.kind == "latest":
        return client.offsets(partitions, bound.kind)
    if bound.kind == "timestamp":
        return _by_time(client, bound, dict.fromkeys(partitions, bound.timestamp_ms), otherwise)
    _check_named(bound, partitions)
    if bound.kind == "timestamps":
        return _by_time(client, bound, bound.by_partition, otherwise)
    return _by_offset(client, bound, partitions, options.fails_on_data_loss)


def _check_named(bound: OffsetBound, partitions: Sequence[TopicPartition]) -> None:
    """Check that exactly the wanted partitions are named: a user who forgets one does not want it to begin just anywhere."""
    missing = [partition for partition in partitions if partition not in bound.by_partition]
    strange = [partition for partition in bound.by_partition if partition not in partitions]
    if missing:
        raise InvalidArgument(f"option {bound.option} names every partition that is read: {_names(missing)} is missing")
    if strange:
        raise InvalidArgument(f"option {bound.option} has {_names(strange)}, which is not read")


def _by_time(
    client: OffsetLookup, bound: OffsetBound, times: Mapping[TopicPartition, int], otherwise: Literal["latest"] | None
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for time_ms in sorted(set(times.values())):
        found |= client.offsets([partition for partition, wanted_ms in times.items() if wanted_ms == time_ms], time_ms)
    late = [partition for partition in times if partition not in found]
    if late and otherwise is None:
        raise InvalidArgument(
            f"option {bound.option}: {_names(late)} has no message at {times[late[0]]} ms or later "
            "(startingOffsetsByTimestampStrategy=latest begins at the end then)"
        )
    return found | client.offsets(late, "latest") if late else found


def _by_offset(
    client: OffsetLookup, bound: OffsetBound, partitions: Sequence[TopicPartition], fails_on_data_loss: bool
) -> dict[TopicPartition, int]:
    earliest, latest = client.offsets(partitions, "earliest"), client.offsets(partitions, "latest")
    found = {}
    for partition in partitions:
        wanted = bound.by_partition[partition]
        first, last = earliest[partition], latest[partition]
        found[partition] = {EARLIEST: first, LATEST: last}.get(wanted, wanted)
        if found[partition] > last:
            raise InvalidArgument(
                f"option {bound.option}: {_names([partition])} has offsets {first} to {last}: {wanted} is beyond"
            )
        if found[partition] < first:
            if fails_on_data_loss:
                raise OffsetsLost(*partition, wanted, first)
            warn_of_loss(partition, wanted, first)
            found[partition] = first
    return found


def warn_of_loss(partition: TopicPartition, wanted: int, log_start: int) -> None:
    """A loss that failOnDataLoss=false permits is still logged."""
    _logger.warning("%s: offsets %d to %d are lost, and left out", _names([partition]), wanted, log_start - 1)


def warn_of_missing_topic(topic: str) -> None:
    _logger.warning("%s is gone: what it had since the last batch is lost", topic)


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{topic}[{number}]" for topic, number in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
