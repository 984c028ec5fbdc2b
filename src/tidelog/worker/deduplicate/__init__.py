"""Idempotent handling: a message that was handled before is recognised by its id and not handled again.

Kafka repeats messages after crashes and rebalances, producers may send one twice, and somebody may replay history. A deduplicator
remembers the ids of what was handled, for at least twice as long as a message may be on its way through retries.

    claim(id)    before the handler: OURS (go on), DONE (handled before), BUSY (somebody is at it, or died at it)
    finish(id)   after it succeeded         release(id)   after it failed, so that the next try may claim it

**What it does not promise.** The handler's effect and the mark are two things: a crash between them repeats the effect. Exactly
once needs the effect and the mark in one database transaction.
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
    """Called from several threads at once."""

    def open(self, group: str, remember_seconds: float) -> None:
        """Before anything else; ``remember_seconds`` is the least that it must remember. InvalidArgument when it will not."""
        ...

    def claim(self, message_id: str) -> Claim: ...

    def finish(self, message_id: str) -> None: ...

    def release(self, message_id: str) -> None: ...

    def close(self) -> None: ...


def default_message_id(message: Message) -> str:
    """The header ``message-id`` where there is one; else the place of the message in its topic, which finds the repeats of Kafka
    and of retries, not those of a producer that sent it twice. The time of the message is part of it: a topic that is deleted
    and made anew has the same places again."""
    headers = message[2].headers()
    if headers:
        for name, value in reversed(headers):
            if name == MESSAGE_ID_HEADER and value:
                text: str = value.decode("utf-8", "replace")
                return text
    return f"{message.topic}/{message.partition}/{message.offset}/{message.timestamp}"


def remember_seconds_of(retry_window_seconds: float) -> float:
    """The least that must be remembered: twice the longest way through the retries."""
    return max(2 * retry_window_seconds, REMEMBER_SECONDS_MIN)
