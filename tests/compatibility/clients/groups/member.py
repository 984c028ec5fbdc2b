"""A member of a consumer group: a real client in a thread that joins, reads, commits what it has read, and leaves.

One class per client, with the client's own calls. What a member sees it writes down: what it was given and what was taken from
it, what it read, which commits were acknowledged. Tests look at that from outside; nothing is ever told to a running member
except that it should leave.
"""

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.compatibility.clients.client import CALL_SECONDS_MAX

POLL_SECONDS = 0.05
# So that a commit comes after every few records, as it does when work is done between them.
POLL_RECORDS_MAX = 100
HEARTBEAT_INTERVAL_MS = 100


class Partition(NamedTuple):
    topic: str
    number: int


class Read(NamedTuple):
    partition: Partition
    offset: int
    value: bytes | None


class Change(NamedTuple):
    """In what a member owns. ``kind`` is assigned, revoked or lost."""

    kind: str
    partitions: frozenset[Partition]


class Membership(NamedTuple):
    """What a member is asked to be. It goes to a child process as JSON, so it is plain values."""

    bootstrap_servers: str
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str = "range"
    """Of the classic protocol: range, roundrobin, sticky or cooperative-sticky."""
    instance_id: str | None = None
    session_timeout_ms: int = 10_000
    client_id: str = "member"
    commits: bool = True
    may_reset: bool = True
    """Start at the beginning where nothing is committed; else that is an error, as is any other position that does not hold."""


class Observer:
    """Is told what members see, in the thread of each; for tests that check it across members and at once."""

    def on_assigned(self, member: "Member", partitions: frozenset[Partition]) -> None: ...

    def on_read(self, member: "Member", read: Read) -> None: ...

    def on_committed(self, member: "Member", offsets: dict[Partition, int]) -> None: ...


class Member(threading.Thread):
    client = ""
    assignors: frozenset[str] = frozenset()

    def __init__(self, membership: Membership, observer: Observer | None = None) -> None:
        super().__init__(name=f"{self.client} {membership.client_id}", daemon=True)
        self.membership = membership
        self.changes: list[Change] = []
        self.owned: frozenset[Partition] = frozenset()
        self.reads: list[Read] = []
        self.committed: dict[Partition, int] = {}
        """By commits that were acknowledged."""
        self.refused_commits: list[str] = []
        self.error: BaseException | None = None
        self._observer = observer or Observer()
        self._uncommitted: dict[Partition, int] = {}
        self._is_leaving = threading.Event()

    # -- what a test does and asks -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Returns when the client is closed."""
        self.begin_to_leave()
        self.join(CALL_SECONDS_MAX)
        if self.is_alive():
            raise TimeoutError(f"{self.name} has not left within {CALL_SECONDS_MAX:.0f} s")
        if self.error is not None:
            raise self.error

    def begin_to_leave(self) -> None:
        self._is_leaving.set()

    @property
    def is_in(self) -> bool:
        """It was told its share at least once, be it nothing."""
        return any(change.kind == "assigned" for change in list(self.changes))

    def offsets(self, partition: Partition) -> list[int]:
        return [read.offset for read in list(self.reads) if read.partition == partition]

    # -- what the client's class does ----------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self.take_part()
        except BaseException as error:  # whatever it is, it belongs to the test
            self.error = error

    def take_part(self) -> None:
        """Join, and read until ``is_leaving``."""
        raise NotImplementedError

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving.is_set()

    def on_assigned(self, partitions: Iterable[Any]) -> None:
        found = partitions_of(partitions)
        self.owned |= found
        self._observer.on_assigned(self, found)
        self.changes.append(Change("assigned", found))

    def on_gone(self, kind: str, partitions: Iterable[Any]) -> None:
        found = partitions_of(partitions)
        self.owned -= found
        for partition in found:
            self._uncommitted.pop(partition, None)
        self.changes.append(Change(kind, found))

    def on_read(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        read = Read(Partition(topic, partition), offset, value)
        self.reads.append(read)
        self._observer.on_read(self, read)
        self._uncommitted[read.partition] = offset + 1

    def take_uncommitted(self) -> dict[Partition, int]:
        """The next offsets of partitions from which records were read and not committed yet; empty if it is not to commit."""
        taken, self._uncommitted = self._uncommitted, {}
        return taken if self.membership.commits else {}

    def on_committed(self, offsets: dict[Partition, int]) -> None:
        self.committed.update(offsets)
        self._observer.on_committed(self, offsets)

    def on_refused(self, offsets: dict[Partition, int], refusal: str) -> None:
        """What it still owns is committed again after the next poll: a commit in the middle of an incremental rebalance is
        refused, and nobody reads those records again."""
        self.refused_commits.append(refusal)
        for partition, offset in offsets.items():
            if partition in self.owned:
                self._uncommitted.setdefault(partition, offset)


def partitions_of(partitions: Iterable[Any]) -> frozenset[Partition]:
    return frozenset(Partition(each.topic, each.partition) for each in partitions)


def all_of(topic: str, count: int) -> frozenset[Partition]:
    return frozenset(Partition(topic, number) for number in range(count))
