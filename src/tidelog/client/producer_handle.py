"""``ProducerHandle``: one librdkafka producer, and the thread that polls it.

librdkafka reports deliveries only to a thread that polls. A thread that does nothing but poll is expensive next to a thread that
sends, because Python's global lock changes hands for every report. So a sender itself polls every ``SENDS_PER_POLL`` messages,
and the handle's own thread polls whenever no sender has done so lately: while somebody waits, while the last messages are under
way, while an asyncio application does other things. With nothing in flight that thread sleeps.

After ``produce`` a sender must keep this going: ``if not next_number() % SENDS_PER_POLL: poll(0)``, and ``if is_asleep:
hurry()``. That is not a method because the call would cost as much as all of it.

``produce`` is an attribute that senders call. Closing the handle, the end of a transaction, and fencing replace it with a
function that raises, so that checking for these costs nothing.
"""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from tidelog.client.errors import (
    BufferFull,
    Closed,
    DeliveryFailed,
    Fenced,
    InvalidArgument,
    TidelogError,
    from_delivery_error,
    from_kafka_error,
    from_produce_error,
)
from tidelog.client.librdkafka import ConnectionProblems, message_bytes_max, refused_settings, wait_for_broker

_logger = logging.getLogger(__name__)

SENDS_PER_POLL = 64
# While senders poll by themselves, the handle's thread only checks whether they still do.
_LOOK_SECONDS = 0.005
_POLL_SECONDS = 0.1
# The wait for room is short, because another thread's poll may take the report.
_ROOM_POLL_SECONDS = 0.01
_FATAL_SECONDS_MAX = 1.0
# This many failures that nobody has seen are kept one by one; the rest are counted.
_UNSEEN_KEPT_MAX = 1_000
_JOIN_SECONDS_MAX = 5.0

_FENCED_CODES = frozenset((KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED))
_PURGED_CODES = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))


class ProducerHandle:
    """A librdkafka producer with its polling thread, counters and unseen failures. Safe to use from many threads."""

    __slots__ = (
        "_failed",
        "_fatal",
        "_is_stopping",
        "_lock",
        "_message_bytes_max",
        "_overflowed",
        "_problems",
        "_thread",
        "_unseen",
        "_woken",
        "addresses",
        "is_asleep",
        "next_number",
        "numbers",
        "produce",
        "raw",
    )

    def __init__(self, configuration: dict[str, object]) -> None:
        self.addresses = str(configuration["bootstrap.servers"])
        self._message_bytes_max = message_bytes_max(configuration)
        self._problems = ConnectionProblems()
        with refused_settings():
            self.raw: Any = confluent_kafka.Producer({**configuration, "error_cb": self._problems})
        self._fatal: TidelogError | None = None
        self.produce: Callable[..., None] = self.raw.produce
        # Counts the sends of all threads. Another thread can interrupt ``+=``, but not ``next``.
        self.numbers = itertools.count(1)
        self.next_number = self.numbers.__next__
        self._lock = threading.Lock()
        self._failed = 0
        self._unseen: deque[TidelogError] = deque()
        self._overflowed = 0
        self._is_stopping = False
        self.is_asleep = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._keep_polling, name="tidelog-producer", daemon=True)
        self._thread.start()

    # -- sending -------------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> None:
        """Deliver the reports that have arrived; wait for one up to ``timeout`` seconds.

        A fatal error of librdkafka is raised by whichever poll is next. It is kept for the calls that it concerns.
        """
        raw = self.raw
        if raw == ():
            return
        try:
            raw.poll(timeout)
        except (KafkaException, SystemError) as error:
            self._keep_fatal(error)

    def wait_for_room(self, attempt: Callable[[], None], max_block_ms: float, topic: str) -> None:
        """Called when the buffer was full: poll and try again until there is room. BufferFull after ``max_block_ms``."""
        deadline = monotonic() + max_block_ms / 1000
        while True:
            self.poll(max(0.0, min(deadline - monotonic(), _ROOM_POLL_SECONDS)))
            try:
                attempt()
            except KafkaException as error:
                raise self.refusal(error, topic) from error
            except BufferError:
                pass
            else:
                return
            if monotonic() >= deadline:
                raise BufferFull(
                    f"send to {topic}: the producer's buffer was full for {max_block_ms:g} ms ({len(self.raw):,} messages wait "
                    f"for {self.addresses}): send more slowly, or allow more buffer_bytes or max_block_ms",
                    code=KafkaError._QUEUE_FULL,
                )

    def refusal(self, error: Exception, topic: str) -> TidelogError:
        """Convert an exception of ``produce`` to an error of the toolkit."""
        if isinstance(error, KafkaException):
            deadline = monotonic() + _FATAL_SECONDS_MAX
            while error.args[0].code() == KafkaError._FATAL and self._fatal is None and monotonic() < deadline:
                # A poll delivers the reason: this one, or that of another thread.
                self.poll(_ROOM_POLL_SECONDS)
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                return from_produce_error(error, topic, self.addresses, self._message_bytes_max)
            return self.typed(error.args[0], f"send to {topic}")
        return InvalidArgument(f"send to {topic}: {error}")

    # -- what deliveries need ------------------------------------------------------------------------------------------------

    def failed(self, error: Any, message: Any) -> TidelogError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            typed = from_delivery_error(error, message, self.addresses, self._message_bytes_max)
        else:
            typed = self.typed(error, f"send to {message.topic()}")
        with self._lock:
            self._failed += 1
            if len(self._unseen) < _UNSEEN_KEPT_MAX:
                self._unseen.append(typed)
            else:
                self._overflowed += 1
        return typed

    def hurry(self) -> None:
        self._woken.set()

    def is_poller(self) -> bool:
        return threading.current_thread() is self._thread

    def typed(self, error: Any, what: str) -> TidelogError:
        code = error.code()
        if self._fatal is not None and (code == KafkaError._FATAL or code in _PURGED_CODES):
            return type(self._fatal)(f"{what}: {self._fatal}", code=self._fatal.code)
        if code in _FENCED_CODES:
            return Fenced(f"{what}: another instance with the same transactional id took over: stop this one", code=code)
        if code in _PURGED_CODES:
            return DeliveryFailed(f"{what}: abandoned before it was acknowledged (closed or aborted)", code=code)
        if code == KafkaError._MSG_TIMED_OUT:
            reason = f"; last problem: {self._problems.last}" if self._problems.last else ""
            return DeliveryFailed(
                f"{what}: not acknowledged by {self.addresses} within delivery.timeout.ms: it may or may not have been "
                f"written{reason}",
                code=code,
                retriable=True,
            )
        return from_kafka_error(error, what, self.addresses, otherwise=DeliveryFailed)

    # -- the whole -----------------------------------------------------------------------------------------------------------

    def connect(self, timeout: float) -> None:
        """Raise BrokerUnavailable unless a broker answers within ``timeout`` seconds."""
        wait_for_broker(self.raw, self.addresses, self._problems, timeout)

    def flush(self, timeout: float) -> int:
        """Wait for the reports of all messages; returns how many are still missing."""
        deadline = monotonic() + timeout
        while (remaining := len(self.raw)) and (left := deadline - monotonic()) > 0:
            # Wait in slices, because another thread may be polling, and an interrupt must get through.
            try:
                remaining = self.raw.flush(min(left, _POLL_SECONDS))
            except (KafkaException, SystemError) as error:
                self._keep_fatal(error)
        return remaining

    def take_unseen(self) -> tuple[TidelogError | None, int]:
        """The first failure that the application has not seen, and how many there are. They are then forgotten."""
        with self._lock:
            unseen = [error for error in self._unseen if not error.is_seen]
            count = len(unseen) + self._overflowed
            self._unseen.clear()
            self._overflowed = 0
        return (unseen[0] if unseen else None), count

    def counts(self) -> tuple[int, int, int]:
        """How many messages were sent, have failed, and are in the buffer."""
        following: Any = self.numbers.__reduce__()[1]
        return int(following[0]) - 1, self._failed, len(self.raw)

    def shut(self, error: Callable[[], TidelogError]) -> None:
        """Make every later send raise ``error()``."""

        def refuse(*_: object, **__: object) -> NoReturn:
            raise error()

        self.produce = refuse

    def open(self) -> None:
        """Undo ``shut``."""
        self.produce = self.raw.produce

    def close(self) -> None:
        """Abandon what is still in the buffer: its deliveries fail. After ``flush`` the buffer is empty."""
        self.shut(lambda: Closed("the producer is closed"))
        self._is_stopping = True
        self._woken.set()
        if len(self.raw):
            self.raw.purge()
            self.flush(_JOIN_SECONDS_MAX)
        if not self.is_poller():
            self._thread.join(_JOIN_SECONDS_MAX)
        # End librdkafka's threads now, not when the last future is garbage: a closed producer must not retry a commit that
        # got no answer.
        self.raw = ()

    def _keep_fatal(self, error: KafkaException | SystemError) -> None:
        # confluent-kafka calls back with the exception already set, which Python may report as a SystemError of the call.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(cause, KafkaException):
            raise error
        if self._fatal is None:
            self._fatal = self.typed(cause.args[0], "the producer ended")
            # Messages in the queue would wait for their delivery timeout. Those that are under way are answered.
            self.raw.purge(in_flight=False, blocking=False)

    def _keep_polling(self) -> None:
        sent_before = 0
        while not self._is_stopping:
            self._woken.clear()
            sent = self.counts()[0]
            if sent - sent_before >= SENDS_PER_POLL:
                self._woken.wait(_LOOK_SECONDS)
            elif len(self.raw):
                self.poll(_POLL_SECONDS)
            else:
                self._sleep()
            sent_before = sent

    def _sleep(self) -> None:
        # Set the flag before the last check: a sender produces first and checks the flag afterwards.
        self.is_asleep = True
        if not len(self.raw) and not self._is_stopping:
            self._woken.wait()
        self.is_asleep = False
