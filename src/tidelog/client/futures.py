"""``Delivery``: the future of one message. It is small, because there is one for every message in flight.

A ``Delivery`` is itself the callback of the delivery report, so that no other object is needed: in flight it takes 80 bytes,
where a ``concurrent.futures.Future`` takes more than a kilobyte. Whoever polls librdkafka completes it, once. It has no lock of
its own: if a callback is added while the delivery completes, both sides take it with ``list.pop``, and only one of them succeeds.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from tidelog.client.errors import InvalidArgument, TidelogError, TimedOut

_logger = logging.getLogger(__name__)
# Held while callbacks are added, which is rare; never held while a callback runs.
_adding = threading.Lock()


class Delivered(NamedTuple):
    """Where the message was written. ``timestamp`` is in milliseconds.

    ``offset`` is None without an acknowledgement (acks=0), and seldom with one: when the acknowledgement is lost and that of a
    later message arrives, librdkafka concludes that the message is written, once, but does not know where."""

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None


class DeliveryPoller(Protocol):
    """The part of a producer's handle that deliveries need."""

    def failed(self, error: Any, message: Any) -> TidelogError:
        """Convert librdkafka's error about ``message``; count it, and keep it until the application has seen it."""

    def hurry(self) -> None:
        """Poll for reports now, because somebody waits."""

    def is_poller(self) -> bool:
        """Whether this is the thread that polls, which must not wait for itself."""


class Delivery:
    """The future of one message, which ``send`` returns."""

    __slots__ = ("_callbacks", "_offset", "_partition", "_state", "_timestamp", "_topic")

    _partition: int
    _offset: int | None
    _timestamp: int

    def __init__(self, topic: str, poller: DeliveryPoller) -> None:
        self._topic = topic
        # The handle while the message is pending; afterwards None, or the error.
        self._state: DeliveryPoller | TidelogError | None = poller
        self._callbacks: list[Callable[[Any], object]] | None = None

    def __call__(self, error: Any, message: Any) -> None:
        """Take the delivery report from librdkafka."""
        if error is None:
            self._partition = message.partition()
            self._offset = message.offset()
            self._timestamp = message.timestamp()[1]
            self._state = None
        else:
            self._fail(error, message)
        if self._callbacks is not None:
            self._run_callbacks()

    @classmethod
    def already_failed(cls, topic: str, poller: DeliveryPoller, error: TidelogError) -> Self:
        """The delivery of a message that was never handed to librdkafka."""
        delivery = cls(topic, poller)
        delivery._state = error
        return delivery

    def done(self) -> bool:
        """Whether the message is acknowledged or has failed."""
        state = self._state
        return state is None or isinstance(state, TidelogError)

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait until the message is acknowledged as its acks demand, and return where it was written.

        Raises the TidelogError of a message that failed; TimedOut after ``timeout`` seconds, and then it is still under way.
        """
        self._wait(timeout)
        state = self._state
        if state is None:
            return self._delivered()
        raise self._seen_error()

    def exception(self, timeout: float | None = None) -> TidelogError | None:
        """Wait like ``result``, and return the error instead of raising it; None if the message is acknowledged."""
        self._wait(timeout)
        return None if self._state is None else self._seen_error()

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call ``callback(delivery)`` once: now if the delivery is done, otherwise later from the thread that polls.

        An exception of the callback is logged. It must not wait for other deliveries.
        """
        with _adding:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.done():
            self._run_callbacks()

    def _wait(self, timeout: float | None) -> None:
        state = self._state
        if state is None or isinstance(state, TidelogError):
            return
        if state.is_poller():
            raise InvalidArgument("a done callback must not wait for a delivery: it blocks the thread that reports it")
        released = threading.Lock()
        released.acquire()
        self.add_done_callback(lambda _: released.release())
        state.hurry()
        if not released.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise TimedOut(f"no acknowledgement from {self._topic} within {timeout} s: the message is still under way")

    def _fail(self, error: Any, message: Any) -> None:
        poller = self._state
        assert poller is not None
        assert not isinstance(poller, TidelogError)
        self._state = poller.failed(error, message)

    def _seen_error(self) -> TidelogError:
        error = self._state
        assert isinstance(error, TidelogError)
        error.mark_seen()
        return error

    def _delivered(self) -> Delivered:
        return Delivered(self._topic, self._partition, self._offset, self._timestamp if self._timestamp >= 0 else None)

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        if callbacks and isinstance(self._state, TidelogError):
            self._state.mark_seen()
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except Exception:
                _logger.exception("a done callback of a message to %s failed", self._topic)

    def __repr__(self) -> str:
        state = self._state
        if state is None:
            return f"<Delivery {self._delivered()}>"
        return f"<Delivery to {self._topic}: {state if isinstance(state, TidelogError) else 'pending'}>"
