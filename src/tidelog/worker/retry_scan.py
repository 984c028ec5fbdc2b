"""Finds the blocked keys of newly assigned partitions, by reading their retry partitions once, before anything is handled.

A separate consumer, in no group, reads each retry partition from the group's committed offset to its end, and notes the key, the
source offset, the level and the due time of every letter that is not finished. The end is that of the log, including open
transactions: the offsets of a worker that has left may be committed a moment before its letters can be read. The worker polls the
scan between other things, so heartbeats and other partitions continue; the scanned partitions themselves are paused in the
meantime. Partitions without letters, which is nearly all of them nearly always, cost one request for their end.

``BLOCKED_LETTERS_HARD_MAX`` bounds the table: beyond it the worker refuses to run rather than break the order of keys.
"""

from collections.abc import Sequence
from time import monotonic, sleep
from typing import NamedTuple

from tidelog.client.errors import TidelogError, UnknownTopic
from tidelog.client.message import Message
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.letter import Letter
from tidelog.worker.failures import ScheduledRetry
from tidelog.worker.offsets import PartitionOffsets, Run
from tidelog.worker.options import WorkerOptions
from tidelog.worker.partitions import AssignedPartition, PartitionFamily

REQUEST_SECONDS_MAX = 30.0
LOOK_AGAIN_SECONDS = 0.02
STEP_MESSAGES = 1_000
STEP_SECONDS = 0.02
# Longer than a worker or a replay keeps a transaction open. The scan does not wait longer for the transaction of somebody else.
TRANSACTION_SECONDS_MAX = 60.0
BLOCKED_LETTERS_HARD_MAX = 1_000_000


class ScannedPartition(NamedTuple):
    """A partition, its committed offset, and what is finished above that."""

    assigned: AssignedPartition
    committed: int | None
    runs: list[Run]


class _Reading(NamedTuple):
    assigned: AssignedPartition
    end: int
    finished: PartitionOffsets


class RetryScan:
    def __init__(self, options: WorkerOptions) -> None:
        config = options.connection_config()
        self._reader = RawConsumer(
            options.addresses, config, defaults={"group.id": options.group, "isolation.level": "read_committed"}
        )
        self._lookup = RawConsumer(
            options.addresses, config, defaults={"group.id": options.group, "isolation.level": "read_uncommitted"}
        )
        self._readings: dict[TopicPartition, _Reading] = {}
        self._deadlines: dict[TopicPartition, float] = {}
        """How long to wait for the open transactions in which the rest of a partition is."""
        self._families: list[PartitionFamily] = []

    @property
    def is_over(self) -> bool:
        return not self._families

    def begin(self, retries: Sequence[ScannedPartition], families: Sequence[PartitionFamily]) -> None:
        """Scan these retry partitions; the families may begin when it is over."""
        for family in families:
            family.set_scanned(False)
            self._families.append(family)
        starts: dict[TopicPartition, int] = {}
        for assigned, committed, runs in retries:
            low, end = self._bounds(assigned.name)
            start = low if committed is None else max(committed, low)
            if start < end:
                self._readings[assigned.name] = _Reading(assigned, end, PartitionOffsets(committed, runs))
                starts[assigned.name] = start
        if starts:
            self._reader.incremental_assign(starts)
        else:
            self._open_families()

    def forget(self, assigned: AssignedPartition) -> None:
        """Called when the partition was taken away."""
        if assigned.name in self._readings:
            self._end(assigned.name)
        self._families = [family for family in self._families if family is not assigned.family]

    def step(self) -> None:
        """Read for a moment."""
        if not self._families:
            return
        fetched = self._reader.fetch(STEP_MESSAGES, STEP_SECONDS)
        for problem in fetched.problems:
            if not problem.error.retriable:
                raise problem.error
        for message in fetched.messages:
            name = TopicPartition(message.topic, message.partition)
            reading = self._readings.get(name)
            if reading is None:
                continue
            offset = message.offset
            if offset < reading.end:
                self._note(reading, message)
            if offset >= reading.end - 1:
                self._end(name)
        for end in fetched.ends:
            name = TopicPartition(end.topic, end.partition)
            reading = self._readings.get(name)
            if reading is None:
                continue
            if end.offset >= reading.end:
                self._end(name)
            else:
                self._deadlines[name] = monotonic() + TRANSACTION_SECONDS_MAX
        for name, deadline in list(self._deadlines.items()):
            if monotonic() >= deadline:
                self._end(name)
        self._open_families()

    def close(self) -> None:
        self._reader.close()
        self._lookup.close()

    def _end(self, name: TopicPartition) -> None:
        del self._readings[name]
        self._deadlines.pop(name, None)
        self._reader.incremental_unassign([name])

    def _note(self, reading: _Reading, message: Message) -> None:
        key = message.key
        letter = Letter.from_headers(message.headers_list)
        if key is None or letter is None or reading.finished.was_finished(message.offset):
            return
        blocked = reading.assigned.family.blocked
        if len(blocked) >= BLOCKED_LETTERS_HARD_MAX:
            raise TidelogError(
                f"more than {BLOCKED_LETTERS_HARD_MAX:,} letters wait in the retry topics of {reading.assigned}, too many to "
                'keep the order of keys: handle them with order="none" first'
            )
        blocked.add(key, letter.offset, ScheduledRetry(reading.assigned.level, letter.due_ms or 0))

    def _bounds(self, name: TopicPartition) -> tuple[int, int]:
        deadline = monotonic() + REQUEST_SECONDS_MAX
        while True:
            try:
                return self._lookup.watermarks(name, REQUEST_SECONDS_MAX)
            except UnknownTopic:
                # The group may have seen earlier than this client that the topic has grown.
                if monotonic() >= deadline:
                    raise
            self._lookup.partitions(name.topic, REQUEST_SECONDS_MAX)
            sleep(LOOK_AGAIN_SECONDS)

    def _open_families(self) -> None:
        waiting = {id(reading.assigned.family) for reading in self._readings.values()}
        for family in self._families:
            family.set_scanned(id(family) not in waiting)
        self._families = [family for family in self._families if not family.is_scanned]
