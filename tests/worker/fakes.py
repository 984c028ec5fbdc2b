"""What pure modules of the worker take, without a broker."""

from collections import deque
from typing import Any

from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import SOURCE_LEVEL, Assigned, Home
from tidelog.worker.breaker import Breaker, CircuitBreaker
from tidelog.worker.dispatch_lanes import LaneDispatch
from tidelog.worker.execution import Execution
from tidelog.worker.job import Job, Lane
from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.outbox import Position
from tidelog.worker.route import Route


def nothing(_: Message) -> None:
    pass


def route(options: CircuitBreaker | None = None) -> Route:
    execution = Execution(LaneDispatch(), holds_failed_lanes=False, reports=deque())
    return Route(nothing, execution, None if options is None else Breaker(options))


def assigned(level: int = SOURCE_LEVEL, partition: int = 0, **given: Any) -> Assigned:
    home = given.get("home") or Home("orders", partition)
    topic = "orders" if level == SOURCE_LEVEL else f"orders.email.retry.{level}"
    return Assigned(topic, partition, level, home, given.get("route") or route(), PartitionOffsets())


def job(lane: Lane, offset: int = 0, of: Assigned | None = None, letter: Letter | None = None, key: bytes | None = None) -> Job:
    return Job(of or assigned(), Message.of(b"value", offset=offset, key=key, timestamp=5), offset, lane, letter)


class FakeOutbox:
    """Keeps what it is given; nothing of it is ever acknowledged."""

    is_urgent = False

    def __init__(self) -> None:
        self.commits: list[tuple[list[Position], bool]] = []
        self.forgotten: list[Assigned] = []
        self.letters: list[Letter] = []
        self.takes_commits = True

    def send(self, _topic: str, _partition: int, letter: Letter, _job: Job) -> None:
        self.letters.append(letter)

    def poll(self) -> None:
        pass

    def wait(self, _seconds: float) -> None:
        pass

    def is_at(self, _assigned: Assigned, /) -> bool:
        return False

    def commit(self, positions: Any, is_last: bool) -> bool:
        self.commits.append((list(positions), is_last))
        return self.takes_commits

    def forget(self, assigned: Assigned) -> None:
        self.forgotten.append(assigned)

    def partitions(self, _topic: str) -> int:
        return 1

    def close(self, _timeout: float) -> None:
        pass
