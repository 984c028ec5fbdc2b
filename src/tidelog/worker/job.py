"""One message on its way through the worker, and the lane that it keeps its order in.

A lane is what must be handled one after the other: the messages of one key, or of one partition.
"""

from collections import deque
from typing import TYPE_CHECKING

from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter

if TYPE_CHECKING:
    from tidelog.worker.assigned import Assigned


class Lane:
    """Its waiting jobs in order; at most one bundle of it is under way (``is_busy``)."""

    __slots__ = ("is_busy", "jobs", "key")

    def __init__(self, key: object = None) -> None:
        self.key = key
        """None: nobody looks it up by a key."""
        self.jobs: deque[Job] = deque()
        self.is_busy = False


class Job:
    __slots__ = ("assigned", "lane", "letter", "offset", "view")

    def __init__(self, assigned: "Assigned", view: Message, offset: int, lane: Lane, letter: Letter | None = None) -> None:
        self.assigned = assigned
        self.view = view
        """As it was read."""
        self.offset = offset
        self.lane = lane
        self.letter = letter
        """Its story so far; None when it comes from the source."""

    @property
    def attempts(self) -> int:
        """How often its handler was tried before."""
        return 0 if self.letter is None else self.letter.attempts

    @property
    def origin(self) -> int:
        """Its offset in the source."""
        return self.offset if self.letter is None else self.letter.offset

    def message(self) -> Message:
        """What the handler sees: of a letter the message as it was first read, with the story among its headers."""
        letter = self.letter
        if letter is None:
            return self.view
        return Message.of(
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            key=self.view.key,
            value=self.view.value,
            headers=self.view.headers_list,
            timestamp=letter.timestamp_ms,
        )
