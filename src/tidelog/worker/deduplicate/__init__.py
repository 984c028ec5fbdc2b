"""Deduplication: a message that was handled before is recognised by its id and not handled again.

Kafka repeats messages after crashes and rebalances, producers may send one twice, and somebody may replay history. A deduplicator
remembers the ids of handled messages, for at least twice the longest time that all retries of a message take.

    claim(id)    before the handler: OURS (handle it), DONE (handled before), BUSY (another worker handles it, or died)
    finish(id)   after it succeeded         release(id)   after it failed, so that the next attempt may claim it

**Not promised.** The handler's effect and the mark are not atomic: a crash between them repeats the effect. Exactly once needs
the effect and the mark in one database transaction.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from tidelog.client.message import Message

MessageId = Callable[[Message], str]
MESSAGE_ID_HEADER = "message-id"
# Without retries there are still restarts and rebalances.
REMEMBER_SECONDS_MIN = 3600.0


class Claim(Enum):
    OURS = "ours"
    DONE = "done"
    BUSY = "busy"


class Deduplicator(Protocol):
    """Several threads may call it at once."""

    def open(self, group: str, remember_seconds: float) -> None:
        """Called before anything else. It must remember ids for at least ``remember_seconds``; InvalidArgument if it does not."""
        ...

    def claim(self, message_id: str) -> Claim: ...

    def finish(self, message_id: str) -> None: ...

    def release(self, message_id: str) -> None: ...

    def close(self) -> None: ...


def default_message_id(message: Message) -> str:
    """The header ``message-id`` if there is one; else topic, partition and offset, which recognise repetitions by Kafka and by
    retries, but not those of a producer that sent the message twice. The timestamp is part of it, because a topic that is deleted
    and created again uses the same offsets again."""
    for name, value in reversed(message.headers_list):
        if name == MESSAGE_ID_HEADER and value:
            return value.decode("utf-8", "replace")
    return f"{message.topic}/{message.partition}/{message.offset}/{message.timestamp}"


def remember_seconds_of(retry_window_seconds: float) -> float:
    """How long ids must be remembered at least: twice the longest time that all retries take."""
    return max(2 * retry_window_seconds, REMEMBER_SECONDS_MIN)
