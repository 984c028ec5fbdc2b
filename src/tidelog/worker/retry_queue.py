"""The letters of one retry partition that were read and are not due yet, in the order of the log.

Nobody sleeps on them: while the first is not due its partition is paused, and the worker does other things. Letters of one level
wait for about the same time, so that the first is due first, give or take the jitter.
"""

from collections import deque

from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter

Waiting = tuple[Message, Letter]
"""A message of the retry topic as it was read, and its story."""


class RetryQueue:
    __slots__ = ("_letters",)

    def __init__(self) -> None:
        self._letters: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, message: Message, letter: Letter) -> None:
        self._letters.append((message, letter))

    @property
    def due_ms(self) -> int | None:
        """When the first is due; None when there is none."""
        return (self._letters[0][1].due_ms or 0) if self._letters else None

    def take_due(self, now_ms: int) -> list[Waiting]:
        """The first ones, up to one that is not due."""
        due: list[Waiting] = []
        letters = self._letters
        while letters and (letters[0][1].due_ms or 0) <= now_ms:
            due.append(letters.popleft())
        return due
