"""``Job``: one message that this worker holds, until it is acknowledged, released or rejected, or until its lock is lost."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.client.errors import AlreadySettled, LockLost, SerializationError
from tidelog.client.tracing import ProcessedPlace, extract, with_traceparent
from tidelog.records.record import Record

if TYPE_CHECKING:
    from tidelog.client.queue.leader_session import LeaderSession
    from tidelog.client.queue.queue import Queue

_EXCERPT_BYTES = 80
_HELD = "held"
_LOST = "lost"


class JobOrigin(NamedTuple):
    """Where some jobs come from: the queue, the session that holds their locks, and their partition."""

    queue: "Queue"
    session: "LeaderSession"
    topic: str
    topic_id: bytes
    partition: int


class Job:
    """One message and its lock. ``deliveries`` is how often it has been handed out, this time included."""

    __slots__ = ("__weakref__", "_origin", "_reason", "_record", "_state", "deliveries", "hold_until", "locked_until")

    def __init__(self, origin: JobOrigin, record: Record, deliveries: int, locked_until: float) -> None:
        self._origin = origin
        self._record = record
        self._state = _HELD
        self._reason = ""
        self.deliveries = deliveries
        self.locked_until = locked_until
        """When the lock ends unless it is renewed, by the monotonic clock."""
        self.hold_until = 0.0
        """Up to here the lock is renewed, whatever the queue does by default."""

    # -- the message ---------------------------------------------------------------------------------------------------------

    @property
    def value(self) -> bytes | None:
        return self._record.value

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of several with one name the last one counts."""
        return dict(self._record.headers)

    @property
    def headers_list(self) -> Sequence[tuple[str, bytes | None]]:
        """All headers in order; a name may occur more than once."""
        return self._record.headers

    @property
    def topic(self) -> str:
        return self._origin.topic

    @property
    def partition(self) -> int:
        return self._origin.partition

    @property
    def offset(self) -> int:
        return self._record.offset

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970 (UTC); None if the message has none."""
        return self._record.timestamp if self._record.timestamp >= 0 else None

    def text(self) -> str | None:
        """The value decoded as UTF-8. SerializationError if it is not UTF-8."""
        value = self._record.value
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise SerializationError(f"{self}: the value is not UTF-8: {(value or b'')[:_EXCERPT_BYTES]!r}") from error

    def json(self) -> Any:
        """The value decoded as JSON. SerializationError if it is not JSON."""
        value = self._record.value
        try:
            return None if value is None else json.loads(value)
        except ValueError as error:
            raise SerializationError(f"{self}: the value is not JSON: {(value or b'')[:_EXCERPT_BYTES]!r}") from error

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Work on the job within the block as part of its trace: what the block sends is in the same trace, and where the program
        uses OpenTelemetry the block is a span, which fails if an exception leaves it. Nothing is settled."""
        traceparent = extract(self.headers_list)
        queue = self._origin.queue
        if queue.spans is not None:
            place = ProcessedPlace(self.topic, self.partition, self.offset, queue.group, self.deliveries)
            with queue.spans.processing(place, traceparent) as span:
                try:
                    yield
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise
        elif traceparent is not None:
            with with_traceparent(traceparent):
                yield
        else:
            yield

    # -- settling ------------------------------------------------------------------------------------------------------------

    def ack(self) -> None:
        """The work is done: the message is never delivered again. Returns when that is durable. LockLost if the job is no longer
        this worker's."""
        self._origin.queue.ack((self,))

    def nack(self, delay: float = 0.0) -> None:
        """Give the message back, to be delivered again at once or after ``delay`` seconds; see ``Queue.nack``."""
        self._origin.queue.nack((self,), delay)

    def reject(self) -> None:
        """Give up on the message: it is never delivered again, and goes to the dead letters where the group has them."""
        self._origin.queue.reject((self,))

    def extend(self, seconds: float) -> None:
        """Keep the lock for at least ``seconds`` from now on; see ``Queue.extend``."""
        self._origin.queue.extend((self,), seconds)

    # -- for the queue -------------------------------------------------------------------------------------------------------

    @property
    def origin(self) -> JobOrigin:
        return self._origin

    @property
    def place(self) -> tuple[tuple[bytes, int], int]:
        """The partition and the offset, as requests name them."""
        return (self._origin.topic_id, self._origin.partition), self._record.offset

    @property
    def is_held(self) -> bool:
        """Whether the job is neither settled nor known to be lost."""
        return self._state == _HELD

    @property
    def is_lost(self) -> bool:
        """Whether the job is known to be somebody else's, or nobody's."""
        return self._state == _LOST

    def check_held(self, verb: str) -> None:
        """AlreadySettled or LockLost if it is too late for ``verb``."""
        if self._state == _LOST:
            raise self.lock_lost()
        if self._state != _HELD:
            raise AlreadySettled(f"{self} cannot be {verb}: it was {self._state} before, which is final for this delivery")

    def settle(self, verb: str) -> None:
        self._state = verb

    def lose(self, reason: str) -> None:
        self._state = _LOST
        self._reason = reason

    def lock_until(self, moment: float) -> None:
        self.locked_until = moment

    def keep_until(self, moment: float) -> None:
        self.hold_until = max(self.hold_until, moment)

    def lock_lost(self) -> LockLost:
        message = f"{self} is no longer this worker's (delivery {self.deliveries}): {self._reason}"
        return LockLost(message, self.deliveries)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __repr__(self) -> str:
        return f"<Job {self} delivery {self.deliveries}, {self._state}>"
