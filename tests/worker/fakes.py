"""What pure modules of the worker take, without a broker."""

from collections import deque
from typing import Any

from tidelog.client.message import Message, MessageRun
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters.letter import Letter
from tidelog.worker.breaker import Breaker, CircuitBreaker
from tidelog.worker.dispatch import Lane, LaneDispatch
from tidelog.worker.execution import HandlerExecution
from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.outbox import OutgoingLetter, PartitionCommit
from tidelog.worker.partitions import SOURCE_LEVEL, AssignedPartition, PartitionFamily, WorkItem


def execution(options: CircuitBreaker | None = None) -> HandlerExecution:
    breaker = None if options is None else Breaker(options)
    return HandlerExecution("handler", LaneDispatch(), deque(), holds_failed_lanes=False, breaker=breaker)


def assigned(level: int = SOURCE_LEVEL, partition: int = 0, source: str = "orders", **given: Any) -> AssignedPartition:
    family = given.get("family") or PartitionFamily(source, partition)
    name = TopicPartition(source if level == SOURCE_LEVEL else f"{source}.email.retry.{level}", partition)
    return AssignedPartition(name, level, family, given.get("execution") or execution(), PartitionOffsets())


def work_item(
    lane: Lane, offset: int = 0, of: AssignedPartition | None = None, letter: Letter | None = None, key: bytes | None = None
) -> WorkItem:
    return WorkItem(of or assigned(), Message.of(b"value", offset=offset, key=key, timestamp=5), offset, lane, letter)


def message_run(partition: AssignedPartition, messages: list[Message]) -> MessageRun:
    return MessageRun(
        partition.name, messages, [each.offset for each in messages], sum(len(each.value or b"") for each in messages)
    )


def begin(partition: AssignedPartition, first: int, count: int) -> list[WorkItem]:
    """That many messages of the partition were read."""
    messages = [Message.of(b"value", offset=offset, timestamp=5) for offset in range(first, first + count)]
    partition.begin(message_run(partition, messages))
    return [WorkItem(partition, message, message.offset, Lane()) for message in messages]


def plain_letter(offset: int = 0, source: str = "orders", group: str = "email", **fields: Any) -> Letter:
    """A letter that is due."""
    story = Letter(source, 0, offset, None, group, 0, 0, 0, "", level=0, due_ms=0)
    return story._replace(**fields)


class FakeOutbox:
    """Keeps what it is given; none of it is ever acknowledged."""

    is_urgent = False

    def __init__(self) -> None:
        self.commits: list[tuple[list[PartitionCommit], bool]] = []
        self.forgotten: list[AssignedPartition] = []
        self.letters: list[Letter] = []
        self.takes_commits = True

    def send(self, outgoing: OutgoingLetter) -> bool:
        self.letters.append(outgoing.letter)
        return False

    def poll(self) -> list[WorkItem]:
        return []

    def wait(self, _seconds: float) -> None:
        pass

    def has_letters(self, _assigned: AssignedPartition, /) -> bool:
        return False

    def commit(self, commits: Any, is_last: bool) -> bool:
        self.commits.append((list(commits), is_last))
        return self.takes_commits

    def forget(self, assigned: AssignedPartition) -> None:
        self.forgotten.append(assigned)

    def partitions(self, _topic: str) -> int:
        return 1

    def close(self, _timeout: float) -> None:
        pass
