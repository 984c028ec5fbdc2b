"""The partitions that this worker has now, the messages that it has read of them, and how far it may read ahead.

``ReadAhead`` decides which partitions are paused. A partition is paused while nothing should be read from it: while its blocked
keys are not known yet, or its retry partitions do not exist; while the first letter of a retry partition is not due; while the
circuit breaker of its handler is open; while too many letters of its keys wait; while too many messages are finished above one
that is not, because its handler hangs; and while more of it was read than is being handled. The last case has some patience,
because librdkafka drops what it has fetched of a partition that is paused: a fast handler catches up within ``PATIENCE_MS``, and
in the meantime the worker just reads nothing (``should_wait``).

Nothing here is locked: only the thread that polls uses it, except ``is_stopping``, which the handlers' threads read.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.message import Message, MessageRun
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.letter import Letter
from tidelog.worker.breaker import BreakerState
from tidelog.worker.key_order import BlockedKeys, ParkedMessages
from tidelog.worker.offsets import PartitionOffsets

if TYPE_CHECKING:
    from tidelog.worker.dispatch import Lane
    from tidelog.worker.execution import HandlerExecution

SOURCE_LEVEL = -1
# The memory of a message on top of its value: objects, key, headers.
MESSAGE_BYTES = 400

PATIENCE_MS = 100
# The minimum for a partition, however many partitions share the total.
PARTITION_MESSAGES_MIN = 100
PARTITION_BYTES_MIN = 1 << 20
# The maximum number of letters of one partition that wait in retry topics, with order="key": a table of about 20 MB.
BLOCKED_LETTERS_MAX = 100_000
# The maximum number of offsets of one partition that are finished above one that is not: a table of about 50 MB, scanned at every
# commit.
OFFSETS_MAX = 500_000


@dataclass(slots=True, eq=False)
class WorkItem:
    """One message on its way through the worker."""

    assigned: "AssignedPartition"
    message: Message
    """The message as it was read."""
    offset: int
    lane: "Lane"
    """The lane in which the item's order is kept."""
    letter: Letter | None = None
    """The message's story so far; None if it was read from the source."""

    @property
    def attempts(self) -> int:
        """The number of times that its handler was tried before."""
        return 0 if self.letter is None else self.letter.attempts

    @property
    def source_offset(self) -> int:
        return self.offset if self.letter is None else self.letter.offset

    @property
    def size_bytes(self) -> int:
        return len(self.message.value or b"") + MESSAGE_BYTES

    def handler_message(self) -> Message:
        """The message for the handler: for a letter, the message as it was first read, with the story among its headers."""
        letter = self.letter
        if letter is None:
            return self.message
        return Message.of(
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            key=self.message.key,
            value=self.message.value,
            headers=self.message.headers_list,
            timestamp=letter.timestamp_ms,
        )

    def move_to(self, lane: "Lane") -> None:
        self.lane = lane


class WaitingLetter(NamedTuple):
    """A message of a retry topic that is not due yet, and its story."""

    message: Message
    letter: Letter


class RetryQueue:
    """The letters of one retry partition that were read and are not due yet, in the order of the log.

    Nobody sleeps on them: while the first is not due, its partition is paused. Letters of one level wait for about the same time,
    so the first one is due first, apart from the jitter.
    """

    __slots__ = ("_letters",)

    def __init__(self) -> None:
        self._letters: deque[WaitingLetter] = deque()

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, message: Message, letter: Letter) -> None:
        self._letters.append(WaitingLetter(message, letter))

    @property
    def due_ms(self) -> int | None:
        """The time when the first letter is due; None if the queue is empty."""
        return (self._letters[0].letter.due_ms or 0) if self._letters else None

    def take_due(self, now_ms: int) -> list[WaitingLetter]:
        """The first letters, up to one that is not due."""
        due: list[WaitingLetter] = []
        letters = self._letters
        while letters and (letters[0].letter.due_ms or 0) <= now_ms:
            due.append(letters.popleft())
        return due


@dataclass(slots=True, eq=False)
class PartitionFamily:
    """One partition number of one source: the partition itself and the retry partitions of the same number."""

    source: str
    partition: int
    share: int = 0
    """The number of its share of the handler: see ``Weights``."""
    blocked: BlockedKeys = field(default_factory=BlockedKeys)
    parked: ParkedMessages = field(default_factory=ParkedMessages)
    is_scanned: bool = True
    """False while the blocked keys are not known yet: nothing of the family may be begun."""
    is_complete: bool = True
    """False while a letter would have no partition to go to: nothing of the family may be begun. See ``retry_topics``."""

    @property
    def may_begin(self) -> bool:
        return self.is_scanned and self.is_complete

    def set_scanned(self, is_scanned: bool) -> None:
        self.is_scanned = is_scanned

    def set_complete(self, is_complete: bool) -> None:
        self.is_complete = is_complete


class AssignedPartition:
    """A source or retry partition, with its state while this worker has it."""

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "committed",
        "execution",
        "family",
        "full_since_ms",
        "is_closed",
        "is_paused",
        "is_stopping",
        "lane",
        "level",
        "name",
        "offsets",
        "parked",
        "parked_bytes",
        "retries",
    )

    def __init__(
        self,
        name: TopicPartition,
        level: int,
        family: PartitionFamily,
        execution: "HandlerExecution",
        offsets: PartitionOffsets,
        lane: "Lane | None" = None,
    ) -> None:
        self.name = name
        self.level = level
        """The backoff level of a retry partition; ``SOURCE_LEVEL`` for a source."""
        self.family = family
        self.execution = execution
        self.offsets = offsets
        self.lane = lane
        """The lane of all its messages; None with order="key"."""
        self.retries = RetryQueue()
        self.committed: tuple[int | None, str] = (None, "")
        """The position and metadata of the last commit that was sent."""
        self.backlog = 0
        """Messages that were read and are not finished."""
        self.backlog_bytes = 0
        self.parked = 0
        """Messages of the backlog that wait in memory for an earlier message of their key."""
        self.parked_bytes = 0
        self.full_since_ms: int | None = None
        self.is_paused = False
        self.is_stopping = False
        """Whether the partition is being taken away: nothing more of it is begun, but what is under way still counts."""
        self.is_closed = False
        """Whether the partition was taken away: results of its messages are ignored."""

    def __str__(self) -> str:
        return str(self.name)

    @property
    def is_source(self) -> bool:
        return self.level == SOURCE_LEVEL

    # -- messages ------------------------------------------------------------------------------------------------------------

    def begin(self, run: MessageRun) -> None:
        self.backlog += len(run.offsets)
        self.backlog_bytes += run.value_bytes + MESSAGE_BYTES * len(run.offsets)
        self.offsets.begin(run.offsets)

    def finish(self, items: Sequence[WorkItem]) -> None:
        """Called when the messages were handled, skipped, or have a letter that is safe."""
        self.offsets.finish([item.offset for item in items])
        self.backlog -= len(items)
        self.backlog_bytes -= sum([len(item.message.value or b"") for item in items]) + MESSAGE_BYTES * len(items)

    def hold_letter(self, item: WorkItem) -> None:
        """The letter of a finished message is still in memory, so it counts as read ahead."""
        self.backlog += 1
        self.backlog_bytes += item.size_bytes

    def release_letter(self, item: WorkItem) -> None:
        self.backlog -= 1
        self.backlog_bytes -= item.size_bytes

    def park(self, item: WorkItem) -> None:
        self.parked += 1
        self.parked_bytes += item.size_bytes

    def unpark(self, item: WorkItem) -> None:
        self.parked -= 1
        self.parked_bytes -= item.size_bytes

    # -- commits -------------------------------------------------------------------------------------------------------------

    def note_commit(self, offset: int, metadata: str) -> None:
        self.committed = (offset, metadata)

    def forget_commit(self) -> None:
        """Called when the commit failed: the next one sends it again."""
        self.committed = (None, "")

    # -- the end of it -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.is_paused = True

    def stop(self) -> None:
        self.is_stopping = True

    def close(self) -> None:
        self.is_stopping = self.is_closed = True


class AssignedPartitions:
    """The partitions by name, and the families that they belong to."""

    __slots__ = ("_by_name", "_families", "_share_of")

    def __init__(self, share_of: Callable[[str, int], int] = lambda _topic, _partition: 0) -> None:
        """``share_of``: the number of the share of a source topic's partition."""
        self._share_of = share_of
        self._by_name: dict[TopicPartition, AssignedPartition] = {}
        self._families: dict[TopicPartition, PartitionFamily] = {}

    def __iter__(self) -> Iterator[AssignedPartition]:
        """Iterate over a copy, because partitions may leave during the iteration."""
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: TopicPartition) -> AssignedPartition | None:
        return self._by_name.get(name)

    def family(self, source: str, partition: int) -> PartitionFamily:
        """Return the family, and create it if it does not exist."""
        name = TopicPartition(source, partition)
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = PartitionFamily(source, partition, self._share_of(source, partition))
        return found

    def families(self) -> list[PartitionFamily]:
        return list(self._families.values())

    def add(self, assigned: AssignedPartition) -> None:
        self._by_name[assigned.name] = assigned

    def remove(self, assigned: AssignedPartition) -> None:
        """Close the partition: results of its messages are ignored."""
        assigned.close()
        self._by_name.pop(assigned.name, None)
        family = assigned.family
        if all(other.family is not family for other in self._by_name.values()):
            self._families.pop(TopicPartition(family.source, family.partition), None)


class ReadAhead:
    """Bounds what is read and not finished, and decides which partitions are paused."""

    __slots__ = (
        "_bytes_max",
        "_messages_max",
        "_partition_bytes_max",
        "_partition_messages_max",
        "room_bytes",
        "room_messages",
        "should_wait",
    )

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """The limits are for all partitions together."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._partition_messages_max = PARTITION_MESSAGES_MIN
        self._partition_bytes_max = PARTITION_BYTES_MIN
        self.room_messages = messages_max
        """How many more messages may be read before all partitions together have reached the limit. From then on those below
        their own share are read one by one."""
        self.room_bytes = bytes_max
        self.should_wait = False
        """Whether to read nothing for a moment: a partition has more than its share, and may soon have less."""

    def changes(
        self, partitions: Iterable[AssignedPartition], now_ms: int
    ) -> tuple[list[AssignedPartition], list[AssignedPartition]]:
        """The partitions to pause now and those to resume; they count as paused or resumed from here on."""
        assigned_now = list(partitions)
        count = max(len(assigned_now), 1)
        self._partition_messages_max = max(self._messages_max // count, PARTITION_MESSAGES_MIN)
        self._partition_bytes_max = max(self._bytes_max // count, PARTITION_BYTES_MIN)
        self.room_messages = self._messages_max - sum([assigned.backlog for assigned in assigned_now])
        self.room_bytes = self._bytes_max - sum([assigned.backlog_bytes for assigned in assigned_now])
        self.should_wait = False
        to_pause: list[AssignedPartition] = []
        to_resume: list[AssignedPartition] = []
        for assigned in assigned_now:
            is_full = self._is_full(assigned, now_ms)
            should_pause = is_full or _is_held_up(assigned)
            if should_pause != assigned.is_paused:
                (to_pause if should_pause else to_resume).append(assigned)
                assigned.is_paused = should_pause
        return to_pause, to_resume

    def may_park(self, assigned: AssignedPartition) -> bool:
        """Whether one more message may wait in memory for its key: half of the partition's share, the rest is for other keys."""
        return assigned.parked < self._partition_messages_max // 2 and assigned.parked_bytes < self._partition_bytes_max // 2

    def _is_full(self, assigned: AssignedPartition, now_ms: int) -> bool:
        messages_max, bytes_max = self._partition_messages_max, self._partition_bytes_max
        if assigned.is_paused and assigned.full_since_ms is not None:
            # It stays paused until half of it is gone, so that it does not alternate.
            messages_max //= 2
            bytes_max //= 2
        if assigned.backlog < messages_max and assigned.backlog_bytes < bytes_max:
            assigned.full_since_ms = None
            return False
        if assigned.full_since_ms is None:
            assigned.full_since_ms = now_ms
        if assigned.is_paused or now_ms - assigned.full_since_ms >= PATIENCE_MS:
            return True
        self.should_wait = True
        return False


def _is_held_up(assigned: AssignedPartition) -> bool:
    family = assigned.family
    if not family.may_begin or len(assigned.retries):
        return True
    breaker = assigned.execution.breaker
    if breaker is not None and breaker.state is not BreakerState.CLOSED:
        return True
    return assigned.is_source and (len(family.blocked) >= BLOCKED_LETTERS_MAX or len(assigned.offsets) >= OFFSETS_MAX)
