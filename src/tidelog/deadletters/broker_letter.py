"""Letters that a broker wrote for a share group (KIP-1191), read as letters like those of workers.

Their story is in headers of its own, and says less: where the record came from, for which group, how often it was delivered, and
why it was archived. There is no exception, so the reason takes its place. The letter has the record's key, value and headers if
the group wants copies; otherwise it only names the record.

A broker that crashes between a letter and the end of its record writes the letter again, so the record's place is its identity.
``Repetitions`` tells the second letter of a record from the first, in bounded memory: it may miss one that follows only after
very many others.
"""

from typing import TYPE_CHECKING

from tidelog.client.queue.schedule import EXPIRES_HEADER
from tidelog.deadletters.letter import WORD_BYTES_MAX, Headers, Letter, cut_end

if TYPE_CHECKING:
    from tidelog.deadletters.dead_letter import DeadLetter

PREFIX = "__dlq.errors."
REJECTED = "Rejected"
EXHAUSTED = "DeliveryLimit"
EXPIRED = "Expired"
OTHER_CAUSE = "DeadLettered"

# How our brokers begin the words of each cause.
_CAUSES = {
    "The record was rejected": REJECTED,
    "The record has reached the delivery limit": EXHAUSTED,
    "The record expired": EXPIRED,
}
REMEMBERED_MAX = 100_000


def read_broker_letter(headers: Headers | None, timestamp_ms: int | None) -> Letter | None:
    """The story among the headers of a message with this timestamp; None if there is none, or if it is not valid."""
    # A record that was replayed and died again has one story; of several headers with one name the last one counts.
    found = {
        name.removeprefix(PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in headers or ()
        if name.startswith(PREFIX)
    }
    if not found:
        return None
    message = found.get("message", "")
    written_ms = 0 if timestamp_ms is None else timestamp_ms
    try:
        return Letter(
            topic=found["topic"],
            partition=_number(found["partition"]),
            offset=_number(found["offset"]),
            timestamp_ms=None,
            group=cut_end(found["group"], WORD_BYTES_MAX),
            attempts=_number(found["delivery.count"]),
            first_failure_ms=written_ms,
            last_failure_ms=written_ms,
            exception_class=next((cause for words, cause in _CAUSES.items() if message.startswith(words)), OTHER_CAUSE),
            exception_message=message,
            is_from_broker=True,
        )
    except (KeyError, ValueError):
        return None


def without_broker_story(headers: Headers) -> Headers:
    """The headers of the record itself. Its time to live goes with the story: it is over, and whoever sends the record again
    wants it to be received."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX) and name != EXPIRES_HEADER]


class Repetitions:
    """Tells whether a broker has written another letter about the same record before. Ask once for each letter, in order."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int, int], None] = {}

    def is_repeated(self, dead: "DeadLetter") -> bool:
        letter = dead.letter
        if letter is None or not letter.is_from_broker:
            return False
        identity = letter.group, letter.topic, letter.partition, letter.offset
        if identity in self._seen:
            return True
        self._seen[identity] = None
        if len(self._seen) > REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        return False


def _number(text: str) -> int:
    # Enough for any 64-bit number; a longer text was not written by a broker.
    if len(text) > 20:
        raise ValueError(text)
    return int(text)
