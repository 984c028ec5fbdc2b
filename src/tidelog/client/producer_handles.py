"""One librdkafka producer, and who polls it.

librdkafka reports deliveries only to whoever polls. Python's lock makes a thread that does nothing but poll expensive beside a
thread that sends: it is taken and given back for every report. So a sender polls by itself every ``SENDS_PER_POLL`` messages,
and a thread of the handle's own polls whenever no sender has come by lately: while somebody waits, while the last messages are
under way, while an asyncio application does other things. With nothing in flight that thread sleeps.

After ``produce`` a sender does what keeps this going: ``if not next_number() % SENDS_PER_POLL: poll(0)``, and
``if is_asleep: hurry()``. It is not a method because a call costs as much as all of it.

``produce`` is the door: senders call whatever stands there. Closing the handle, a transaction that is over and a fenced producer
put a function there that raises, and so an open door costs nothing.
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

from tidelog.client.errors import BufferFull, Closed, DeliveryFailed, Fenced, InvalidArgument, TidelogError, from_kafka_error
from tidelog.client.reachability import ConnectionProblems, wait_for_broker

_logger = logging.getLogger(__name__)

SENDS_PER_POLL = 64
# While senders poll by themselves the handle's thread only looks whether they still do.
_LOOK_SECONDS = 0.005
_POLL_SECONDS = 0.1
# Waiting for room: short enough that a report which another thread's poll took is noticed soon.
_ROOM_POLL_SECONDS = 0.01
_FATAL_SECONDS_MAX = 1.0
# Of the failures that nobody has seen, as many are kept one by one; the rest are counted.
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
        self._problems = ConnectionProblems()
        try:
            self.raw: Any = confluent_kafka.Producer({**configuration, "error_cb": self._problems})
        except KafkaException as error:
            raise InvalidArgument(
                f"librdkafka refuses the settings: {error.args[0].str().strip()}", code=error.args[0].code()
            ) from error
        self._fatal: TidelogError | None = None
        self.produce: Callable[..., None] = self.raw.produce
        # Counts the sends of all threads: ``next`` of it cannot be interrupted by another thread, += can.
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
        """Have the reports that are there delivered; wait for one up to ``timeout`` seconds.

        librdkafka's end by a fatal error comes out of whichever poll is next; it is kept for the calls that it concerns.
        """
        raw = self.raw
        if raw == ():
            return
        try:
            raw.poll(timeout)
        except (KafkaException, SystemError) as error:
            self._keep_fatal(error)

    def wait_for_room(self, attempt: Callable[[], None], max_block_ms: float, topic: str) -> None:
        """The buffer was full: poll and try again until there is room. BufferFull after ``max_block_ms``."""
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
        """What ``produce`` raised, typed."""
        if isinstance(error, KafkaException):
            deadline = monotonic() + _FATAL_SECONDS_MAX
            while error.args[0].code() == KafkaError._FATAL and self._fatal is None and monotonic() < deadline:
                # Why it ended is said by a poll: this one, or another thread's that is under way.
                self.poll(_ROOM_POLL_SECONDS)
            return self.typed(error.args[0], f"send to {topic}")
        return InvalidArgument(f"send to {topic}: {error}")

    # -- what deliveries need ------------------------------------------------------------------------------------------------

    def failed(self, error: Any, topic: str) -> TidelogError:
        typed = self.typed(error, f"send to {topic}")
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
            return DeliveryFailed(f"{what}: given up before it was acknowledged (closed or aborted)", code=code)
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
        """BrokerUnavailable unless a broker answers within ``timeout`` seconds."""
        wait_for_broker(self.raw, self.addresses, self._problems, timeout)

    def flush(self, timeout: float) -> int:
        """Wait for the reports of what was sent; how many are still missing."""
        deadline = monotonic() + timeout
        while (remaining := len(self.raw)) and (left := deadline - monotonic()) > 0:
            # In slices: another thread may be polling, and an interrupt must come through.
            try:
                remaining = self.raw.flush(min(left, _POLL_SECONDS))
            except (KafkaException, SystemError) as error:
                self._keep_fatal(error)
        return remaining

    def take_unseen(self) -> tuple[TidelogError | None, int]:
        """The first failure that the application was not told of, and how many there are; they are forgotten by this."""
        with self._lock:
            unseen = [error for error in self._unseen if not error.is_seen]
            count = len(unseen) + self._overflowed
            self._unseen.clear()
            self._overflowed = 0
        return (unseen[0] if unseen else None), count

    def counts(self) -> tuple[int, int, int]:
        """How many were sent, have failed, are in the buffer."""
        following: Any = self.numbers.__reduce__()[1]
        return int(following[0]) - 1, self._failed, len(self.raw)

    def shut(self, error: Callable[[], TidelogError]) -> None:
        """From now on a send raises."""

        def refuse(*_: object, **__: object) -> NoReturn:
            raise error()

        self.produce = refuse

    def open(self) -> None:
        """Undo ``shut``."""
        self.produce = self.raw.produce

    def close(self) -> None:
        """Give up what is still in the buffer: its deliveries fail. After ``flush`` there is nothing."""
        self.shut(lambda: Closed("the producer is closed"))
        self._is_stopping = True
        self._woken.set()
        if len(self.raw):
            self.raw.purge()
            self.flush(_JOIN_SECONDS_MAX)
        if not self.is_poller():
            self._thread.join(_JOIN_SECONDS_MAX)
        # Ends librdkafka's threads now, not when the last future is forgotten: a commit that got no answer is not retried by a
        # producer that the application has closed.
        self.raw = ()

    def _keep_fatal(self, error: KafkaException | SystemError) -> None:
        # confluent-kafka calls back with the exception already set, and Python may take that for a fault of the call's own.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(cause, KafkaException):
            raise error
        if self._fatal is None:
            self._fatal = self.typed(cause.args[0], "the producer ended")
            # What was handed over while it ended would wait for its delivery timeout. What is under way is answered.
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
        # Asleep first, then the last look: a sender produces first and then looks whether to wake.
        self.is_asleep = True
        if not len(self.raw) and not self._is_stopping:
            self._woken.wait()
        self.is_asleep = False
