"""What a replay sends: the letter as its group's retry topic wants it, or the message as its origin had it.

To the retry topic it goes at level 0, due now, under its own partition number, with its story: who looks at it later still sees
why it failed, and that it was replayed. Its attempts begin again at 0, or it would be dead after the first. To the origin it
goes as it first came, without a story: other groups read it there, and to them it is a message like any other.
"""

from typing import NamedTuple

from tidelog.deadletters.dead_letter import DeadLetter
from tidelog.deadletters.letter import Headers
from tidelog.deadletters.names import retry_topic


class Outgoing(NamedTuple):
    """One message to send. ``partition`` None leaves the choice to the key."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def to_retry_topic(dead: DeadLetter, now_ms: int) -> Outgoing:
    """For the group that the letter failed for."""
    assert dead.letter is not None, "only letters with a story are replayed"
    letter = dead.letter._replace(attempts=0, level=0, due_ms=now_ms, replays=dead.letter.replays + 1)
    topic = retry_topic(letter.topic, letter.group, 0)
    return Outgoing(topic, dead.partition, dead.key, dead.value, letter.to_headers(dead.headers))


def to_origin(dead: DeadLetter, partitions: int) -> Outgoing:
    """For every group that reads the topic. Its old partition, where there still is one."""
    assert dead.letter is not None, "only letters with a story are replayed"
    partition = dead.letter.partition if dead.letter.partition < partitions else None
    return Outgoing(dead.letter.topic, partition, dead.key, dead.value, dead.original_headers)
