"""The history of one run: what clients did and saw, in order.

Every entry carries *moments*: numbers that rise by one with each thing that happens, so that "sent after that was answered" is a
comparison. Values are unique: one value is one record that one producer wanted to write once.

A batch may be sent several times (``Attempt``). The outcome of an attempt is known (ACKED, FAILED: certainly not written) or not
(UNKNOWN: the connection was lost, the request timed out, the disk failed, or nobody asked).
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

ACKS_ALL = -1
NEVER = 1 << 62


class PartitionId(NamedTuple):
    """A partition of one life of a topic: a topic that is created again has another id."""

    topic_id: bytes
    number: int


class Outcome(Enum):
    OPEN = "open"
    ACKED = "acked"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Attempt:
    """One batch, sent once. ``connection`` is the number of the producer's connection that carried it."""

    producer: str
    connection: int
    partition: PartitionId
    values: tuple[str, ...]
    acks: int
    sent_at: int
    outcome: Outcome = Outcome.OPEN
    base_offset: int = -1
    ended_at: int = NEVER


@dataclass(slots=True)
class Poll:
    """A fetch's answer about one partition. An ``assignment`` ends when the reader starts elsewhere."""

    consumer: str
    assignment: int
    partition: PartitionId
    fetch_offset: int
    records: list[tuple[int, str]]
    high_watermark: int
    log_start_offset: int
    sent_at: int
    ended_at: int
    is_final: bool = False


@dataclass(slots=True)
class Shortage:
    """A time in which min.insync.replicas exceeded the replicas. It began between the first two moments and ended between the
    last two."""

    asked_at: int
    begun_at: int = NEVER
    ending_at: int = NEVER
    ended_at: int = NEVER


@dataclass(slots=True)
class TopicLife:
    """One life of a topic, from its creation to its deletion."""

    name: str
    topic_id: bytes
    partitions: int
    has_retention: bool = False
    deletion_sent_at: int = NEVER
    deleted_at: int = NEVER
    shortages: list[Shortage] = field(default_factory=list)

    def may_be_short_within(self, first: int, last: int) -> bool:
        """Whether the topic may have had too few replicas for a part of that time."""
        return any(shortage.asked_at < last and first < shortage.ended_at for shortage in self.shortages)

    def is_short_throughout(self, first: int, last: int) -> bool:
        """Whether the topic certainly had too few replicas for all of that time."""
        return any(shortage.begun_at < first and last < shortage.ending_at for shortage in self.shortages)


class Problem(NamedTuple):
    """A problem that a client or the node noticed by itself."""

    kind: str
    text: str


@dataclass(slots=True)
class History:
    attempts: list[Attempt] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    topics: dict[bytes, TopicLife] = field(default_factory=dict)
    losses: list[int] = field(default_factory=list)
    """The moments when unsynced data may have been lost: power cuts and failed syncs."""
    problems: list[Problem] = field(default_factory=list)
    acked: int = 0
    moment: int = 0

    def now(self) -> int:
        self.moment += 1
        return self.moment

    # -- topics --------------------------------------------------------------------------------------------------------------

    def created(self, name: str, topic_id: bytes, partitions: int, has_retention: bool = False) -> TopicLife:
        life = self.topics[topic_id] = TopicLife(name, topic_id, partitions, has_retention)
        return life

    def name_of(self, partition: PartitionId) -> str:
        life = self.topics.get(partition.topic_id)
        return f"{life.name if life is not None else partition.topic_id.hex()}-{partition.number}"

    # -- sends ---------------------------------------------------------------------------------------------------------------

    def sent(self, producer: str, connection: int, partition: PartitionId, values: tuple[str, ...], acks: int) -> Attempt:
        attempt = Attempt(producer, connection, partition, values, acks, self.now())
        self.attempts.append(attempt)
        return attempt

    def answered(self, attempt: Attempt, outcome: Outcome, base_offset: int = -1) -> None:
        attempt.outcome = outcome
        attempt.base_offset = base_offset
        attempt.ended_at = self.now()
        self.acked += outcome is Outcome.ACKED

    # -- what else happened --------------------------------------------------------------------------------------------------

    def lost_unsynced(self) -> None:
        self.losses.append(self.now())

    def problem(self, kind: str, text: str) -> None:
        self.problems.append(Problem(kind, text))
