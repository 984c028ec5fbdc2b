"""Where letters and commits go, one way or the other.

``PlainOutbox``: a letter is acknowledged by all in-sync replicas before the offset of its message counts as finished, so it is
there before that offset is committed; a crash in between makes a second copy. ``TransactionalOutbox``: letters and offsets are
committed in one transaction, so there is exactly one.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import Assigned
from tidelog.worker.job import Job


class Position(NamedTuple):
    """What to commit of one partition."""

    assigned: Assigned
    offset: int
    metadata: str


class Outbox(Protocol):
    def send(self, topic: str, partition: int, letter: Letter, job: Job) -> None:
        """Write the letter of this job; when it is safe the job counts as finished."""
        ...

    def poll(self) -> None:
        """Take in what was acknowledged. Raises what cannot be written at all: the worker must stop, nothing is lost."""
        ...

    def wait(self, seconds: float) -> None:
        """For so long at most, for something to be acknowledged."""
        ...

    @property
    def is_urgent(self) -> bool:
        """Whether letters wait for a commit."""
        ...

    def is_at(self, assigned: Assigned, /) -> bool:
        """Whether letters of this partition are on their way."""
        ...

    def commit(self, positions: Sequence[Position], is_last: bool) -> bool:
        """``is_last``: the partitions are being given up; return when it is done, or cannot be done any more. False when it is
        known to have failed."""
        ...

    def forget(self, assigned: Assigned) -> None:
        """The partition was taken away: what was not committed of it is somebody else's."""
        ...

    def partitions(self, topic: str) -> int:
        """How many the topic has. The cluster is asked, so that letters can go to those that are new."""
        ...

    def close(self, timeout: float) -> None: ...
