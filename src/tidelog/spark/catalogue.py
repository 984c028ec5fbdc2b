"""What the cluster has of the wanted topics, and where in it the options say to begin and to end."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.client.fetch.errors import OffsetsLost
from tidelog.client.fetch.types import OffsetAt, TopicInfo
from tidelog.client.topic_partition import Partition
from tidelog.spark.option_values import EARLIEST, LATEST
from tidelog.spark.options import Bound, SourceOptions, Topics

_logger = logging.getLogger(__name__)


class Asks(Protocol):
    """Of ``FetchClient``, what plans need."""

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, TopicInfo]: ...

    def offsets(self, partitions: Sequence[Partition], at: OffsetAt) -> dict[Partition, int]: ...


class Catalogue(NamedTuple):
    """The topics that are there, by id, and the partitions that are wanted of them."""

    ids: dict[str, bytes]
    partitions: tuple[Partition, ...]


def look(client: Asks, wanted: Topics) -> Catalogue:
    found = client.topics(wanted.pattern or wanted.names)
    ids = {topic: info.topic_id for topic, info in found.items()}
    for topic, partition in wanted.assigned:
        if partition >= found[topic].partitions:
            raise UnknownTopic(
                f"option assign: {topic} has {found[topic].partitions} partitions, there is no {topic}[{partition}]"
            )
    every = [Partition(topic, number) for topic, info in found.items() for number in range(info.partitions)]
    return Catalogue(ids, wanted.assigned or tuple(every))


def starting_positions(client: Asks, options: SourceOptions, partitions: Sequence[Partition]) -> dict[Partition, int]:
    return _positions(client, options, options.starting, partitions, "latest" if options.uses_latest_without_match else None)


def ending_positions(client: Asks, options: SourceOptions, partitions: Sequence[Partition]) -> dict[Partition, int]:
    return _positions(client, options, options.ending, partitions, "latest")


def _positions(
    client: Asks, options: SourceOptions, bound: Bound, partitions: Sequence[Partition], otherwise: Literal["latest"] | None
) -> dict[Partition, int]:
    """``otherwise`` is what stands for a time that no message has reached; None: it is refused."""
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


def _check_named(bound: Bound, partitions: Sequence[Partition]) -> None:
    """All of them, and no other: who forgets a partition does not mean that it begins just anywhere."""
    missing = [partition for partition in partitions if partition not in bound.by_partition]
    strange = [partition for partition in bound.by_partition if partition not in partitions]
    if missing:
        raise InvalidArgument(f"option {bound.option} names every partition that is read: {_names(missing)} is missing")
    if strange:
        raise InvalidArgument(f"option {bound.option} has {_names(strange)}, which is not read")


def _by_time(
    client: Asks, bound: Bound, times: Mapping[Partition, int], otherwise: Literal["latest"] | None
) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for time_ms in sorted(set(times.values())):
        found |= client.offsets([partition for partition, wanted_ms in times.items() if wanted_ms == time_ms], time_ms)
    late = [partition for partition in times if partition not in found]
    if late and otherwise is None:
        raise InvalidArgument(
            f"option {bound.option}: {_names(late)} has no message at {times[late[0]]} ms or later "
            "(startingOffsetsByTimestampStrategy=latest begins at the end then)"
        )
    return found | client.offsets(late, "latest") if late else found


def _by_offset(client: Asks, bound: Bound, partitions: Sequence[Partition], fails_on_data_loss: bool) -> dict[Partition, int]:
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


def warn_of_loss(partition: Partition, wanted: int, log_start: int) -> None:
    """What failOnDataLoss=false lets pass is told all the same."""
    _logger.warning("%s: offsets %d to %d are lost, and left out", _names([partition]), wanted, log_start - 1)


def warn_of_missing_topic(topic: str) -> None:
    _logger.warning("%s is gone: what it had since the last batch is lost", topic)


def _names(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}[{number}]" for topic, number in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
