"""One message of a dead-letter topic: where it lies there, what it is, and its story.

A message without a story (somebody else wrote it there), or whose story belongs to another dead-letter topic, is shown and
counted like any other, but never replayed: its headers would choose where it goes, and whoever may write to a dead-letter topic
may not thereby write anywhere.
"""

from typing import Any, NamedTuple

from tidelog.deadletters.letter import Headers, Letter, origin_headers
from tidelog.deadletters.names import DEAD_LETTER_SUFFIX

NO_STORY = "(no story)"
TIMESTAMP_NOT_AVAILABLE = 0


class DeadLetter(NamedTuple):
    """Immutable. ``letter`` is None when the message has no story."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    """All of them, the story's too; ``original_headers`` has those that the message came with."""
    letter: Letter | None

    @property
    def original_headers(self) -> Headers:
        return origin_headers(self.headers)

    @property
    def error(self) -> str:
        """The class of the exception, with its module."""
        return self.letter.exception_class if self.letter else NO_STORY

    @property
    def failed_ms(self) -> int | None:
        """When it last failed."""
        return self.letter.last_failure_ms if self.letter else self.timestamp_ms

    @property
    def is_replayable(self) -> bool:
        """Whether its story belongs to the topic that it lies in."""
        letter = self.letter
        return letter is not None and f"{letter.topic}.{letter.group}{DEAD_LETTER_SUFFIX}" == self.topic

    @property
    def size_bytes(self) -> int:
        """About what it takes in a batch."""
        return len(self.key or b"") + len(self.value or b"") + sum(len(name) + len(value or b"") for name, value in self.headers)

    @classmethod
    def of(cls, message: Any) -> "DeadLetter":
        """From a confluent_kafka.Message."""
        kind, timestamp = message.timestamp()
        headers = message.headers() or []
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            message.key(),
            message.value(),
            headers,
            Letter.from_headers(headers),
        )
