"""Plans where the micro-batches of a stream begin and end. It asks the cluster, and does not depend on Spark.

Each trigger asks once for the topics with their ids, and for the end of each partition (the last stable offset under
read_committed). A new partition is read from its earliest offset. Differences between checkpoint and cluster are told apart:

- A topic with another id is always refused: its offsets mean something else.
- A topic that is gone is a failure, or, with failOnDataLoss=false, left as it is.
- Offsets before the log's start are lost; tasks meet them when they read (``OffsetsLost``) and name them.
- Offsets beyond the log's end may mean that a new leader does not know its end yet, so the plan waits; then it is always a
  failure, because what was read no longer exists and nobody knows where to continue.

After ``hold_end`` (trigger availableNow), what was there at that moment is the end of all batches, partitions that are added
later are not read, and ``minOffsetsPerTrigger`` is ignored.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic
from tidelog.client.fetch.errors import OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.types import TopicInfo
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import StreamOffset, begin_of_batch, id_text
from tidelog.spark.options import SourceOptions
from tidelog.spark.planning import (
    Catalogue,
    OffsetLookup,
    OffsetSpan,
    find_partitions,
    limited,
    starting_positions,
    task_limits,
    tasks_of,
    warn_of_loss,
    warn_of_missing_topic,
)

# The time in which a new leader finds out how far its log is committed.
END_SECONDS_MAX = 10.0
_PAUSE_SECONDS = 0.25
_NO_ID = bytes(16)


class _Seen(NamedTuple):
    catalogue: Catalogue
    ends: Mapping[TopicPartition, int]


class StreamPlan:
    def __init__(
        self,
        options: SourceOptions,
        client: Callable[[], OffsetLookup],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._client = client
        self._monotonic = monotonic
        self._sleep = sleep
        self._held: _Seen | None = None
        self._last_batch_seconds = monotonic()
        self._missing_topics: set[str] = set()
        self.latest: StreamOffset | None = None
        """The ends that were available when the last batch was planned."""

    def initial(self) -> StreamOffset:
        catalogue = find_partitions(self._client(), self._options.topics)
        positions = starting_positions(self._client(), self._options, catalogue.partitions)
        return StreamOffset(catalogue.ids, positions, is_initial=True)

    def hold_end(self) -> None:
        self._held = self._see()

    def next_end(self, start: StreamOffset, offsets_max: int | None) -> StreamOffset:
        """Return ``start`` itself when there is nothing new, or not enough."""
        self._check_wanted(start)
        seen = self._held or self._see()
        self._check(start, seen.catalogue)
        if any(start.positions[partition] > end for partition, end in seen.ends.items() if partition in start.positions):
            seen = self._wait_for_ends(start)
        begins = self._begins(start, seen)
        known = dict(start.positions) | begins
        available = {partition: max(known[partition], seen.ends.get(partition, 0)) for partition in known}
        ids = dict(start.ids) | seen.catalogue.ids
        self.latest = StreamOffset(ids, available)
        ends = self._admitted(known, available, offsets_max)
        if not start.is_initial and not begins and ends == start.positions:
            return start
        self._last_batch_seconds = self._monotonic()
        return StreamOffset(ids, ends, known if start.is_initial else begins)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[list[OffsetSpan]]:
        """Plan the tasks without asking the cluster: each task checks for itself that the topics are the same and the offsets
        exist."""
        self._check_wanted(end)
        begins = begin_of_batch(start, end)
        spans = [
            OffsetSpan(partition.topic, end.ids[partition.topic], partition.partition, begins[partition], position)
            for partition, position in sorted(end.positions.items())
        ]
        for span in spans:
            if span.size < 0:
                raise TidelogError(
                    f"the batch ends before it begins: {span.topic}[{span.partition}] from {span.start} to {span.end}: "
                    "the checkpoint was changed, or belongs to another query"
                )
        return tasks_of(spans, task_limits(self._options, keeps_partitions_whole=True))

    # -- looking --------------------------------------------------------------------------------------------------------------

    def _see(self) -> _Seen:
        client = self._client()
        try:
            catalogue = find_partitions(client, self._options.topics)
        except UnknownTopic:
            if self._options.fails_on_data_loss:
                raise
            catalogue = self._what_is_left()
        return _Seen(catalogue, client.offsets(catalogue.partitions, "latest") if catalogue.partitions else {})

    def _what_is_left(self) -> Catalogue:
        """The named topics that still exist."""
        left: dict[str, TopicInfo] = {}
        for topic in self._options.topics.names:
            try:
                left |= self._client().topics([topic])
            except UnknownTopic:
                continue
        wanted = self._options.topics.assigned
        every = tuple(TopicPartition(topic, number) for topic, info in left.items() for number in range(info.partitions))
        partitions = tuple(partition for partition in wanted if partition in every) if wanted else every
        return Catalogue({topic: info.topic_id for topic, info in left.items()}, partitions)

    def _wait_for_ends(self, start: StreamOffset) -> _Seen:
        deadline = self._monotonic() + END_SECONDS_MAX
        while True:
            seen = self._see()
            beyond = [(partition, end) for partition, end in seen.ends.items() if start.positions.get(partition, 0) > end]
            if not beyond:
                self._held = self._held and seen
                return seen
            if self._monotonic() > deadline:
                partition, end = beyond[0]
                raise OffsetsMissing(
                    f"{partition.topic}[{partition.partition}]: the checkpoint is at offset {start.positions[partition]}, and "
                    f"the log ends at {end}: it was truncated, or the checkpoint belongs to another cluster"
                )
            self._sleep(_PAUSE_SECONDS)

    # -- what the checkpoint has against what there is ------------------------------------------------------------------------

    def _check_wanted(self, offset: StreamOffset) -> None:
        wanted = self._options.topics
        strange = [topic for topic in offset.ids if not wanted.has(topic)]
        strange += [
            f"{topic}[{number}]"
            for topic, number in offset.positions
            if wanted.assigned and (topic, number) not in wanted.assigned
        ]
        if strange:
            raise InvalidArgument(
                f"the checkpoint has {', '.join(strange)}, and this query reads {wanted}: it belongs to another query. Use a "
                "checkpointLocation of its own for each query, and a new one when a topic is left out"
            )

    def _check(self, start: StreamOffset, catalogue: Catalogue) -> None:
        for topic, topic_id in start.ids.items():
            now = catalogue.ids.get(topic)
            if now is None:
                self._topic_is_gone(topic)
            elif topic_id != now and _NO_ID not in (topic_id, now):
                raise TopicRecreated(
                    f"{topic} was deleted and created again since the checkpoint was written (its id was {id_text(topic_id)} and "
                    f"is {id_text(now)}): its offsets mean something else. Use a new checkpointLocation"
                )

    def _topic_is_gone(self, topic: str) -> None:
        if self._options.fails_on_data_loss:
            raise UnknownTopic(
                f"{topic} is gone, and was there when the checkpoint was written (failOnDataLoss=false continues without it)"
            )
        if topic not in self._missing_topics:
            self._missing_topics.add(topic)
            warn_of_missing_topic(topic)

    def _begins(self, start: StreamOffset, seen: _Seen) -> dict[TopicPartition, int]:
        """Where partitions begin that the stream has not read before."""
        new = [partition for partition in seen.catalogue.partitions if partition not in start.positions]
        if not new:
            return {}
        begins = self._client().offsets(new, "earliest")
        for partition, log_start in begins.items():
            # A partition that was added to a topic while the stream ran is read from its first message on.
            was_added = partition.topic in start.ids and not self._options.topics.assigned
            if was_added and log_start > 0:
                if self._options.fails_on_data_loss:
                    raise OffsetsLost(*partition, 0, log_start)
                warn_of_loss(partition, 0, log_start)
        return begins

    # -- how much -------------------------------------------------------------------------------------------------------------

    def _admitted(
        self, known: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], offsets_max: int | None
    ) -> dict[TopicPartition, int]:
        waiting = sum(available.values()) - sum(known.values())
        least = self._options.min_offsets_per_trigger
        if least is not None and waiting < least and self._held is None:
            waited_ms = (self._monotonic() - self._last_batch_seconds) * 1000
            if waited_ms < self._options.max_trigger_delay_ms:
                return dict(known)
        return dict(available) if offsets_max is None else limited(known, available, offsets_max)
