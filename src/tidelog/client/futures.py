"""The future of one message: small, because there is one for every message in flight.

A ``Delivery`` is also the delivery report's callback itself, so nothing is made beside it: in flight it takes 80 bytes, a
``concurrent.futures.Future`` over a kilobyte. It is settled once, by whoever polls librdkafka. It has no lock of its own: what
comes in between a callback's being added and the settling is sorted out by ``list.pop``, which only one of the two can win.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from tidelog.client.errors import InvalidArgument, TidelogError, TimedOut

_logger = logging.getLogger(__name__)
# For adding callbacks, which is rare beside settling; never held while one runs.
_adding = threading.Lock()


class Delivered(NamedTuple):
    """Where the message is. ``offset`` is None where the broker was not asked (acks=0); ``timestamp`` in milliseconds."""

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None


class Settler(Protocol):
    """The side of a producer's handle that its deliveries need."""

    def failed(self, error: Any, topic: str) -> TidelogError:
        """``error`` of librdkafka as a typed one; counts it, and keeps it until somebody has seen it."""

    def hurry(self) -> None:
        """Somebody waits: have the reports polled now."""

    def is_poller(self) -> bool:
        """Whether this thread is the one that polls, which must not wait for itself."""


class Delivery:
    """What ``send`` returns: the future of one message."""

    __slots__ = ("_callbacks", "_offset", "_partition", "_state", "_timestamp", "_topic")

    _partition: int
    _offset: int | None
    _timestamp: int

    def __init__(self, topic: str, settler: Settler) -> None:
        self._topic = topic
        # The handle while it is pending, then None or the error.
        self._state: Settler | TidelogError | None = settler
        self._callbacks: list[Callable[[Any], object]] | None = None

    def __call__(self, error: Any, message: Any) -> None:
        """The delivery report, from librdkafka."""
        if error is None:
            self._partition = message.partition()
            self._offset = message.offset()
            self._timestamp = message.timestamp()[1]
            self._state = None
        else:
            self._fail(error)
        if self._callbacks is not None:
            self._run_callbacks()

    @classmethod
    def already_failed(cls, topic: str, settler: Settler, error: TidelogError) -> Self:
        """Of a message that never came to librdkafka."""
        delivery = cls(topic, settler)
        delivery._state = error
        return delivery

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        state = self._state
        return state is None or isinstance(state, TidelogError)

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait until the message is acknowledged as its acks demand, and return where it is.

        Raises what went wrong, a TidelogError; TimedOut after ``timeout`` seconds, and then the message is still under way.
        """
        self._wait(timeout)
        state = self._state
        if state is None:
            return self._delivered()
        raise self._seen_error()

    def exception(self, timeout: float | None = None) -> TidelogError | None:
        """Wait as ``result`` does, and return the error instead of raising it; None when it is acknowledged."""
        self._wait(timeout)
        return None if self._state is None else self._seen_error()

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call ``callback(delivery)`` once when it is done: at once if it is, else from the thread that polls.

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
            raise InvalidArgument("a done callback must not wait for a delivery: it would keep it from being reported")
        released = threading.Lock()
        released.acquire()
        self.add_done_callback(lambda _: released.release())
        state.hurry()
        if not released.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise TimedOut(f"no acknowledgement from {self._topic} within {timeout} s: the message is still under way")

    def _fail(self, error: Any) -> None:
        settler = self._state
        assert settler is not None
        assert not isinstance(settler, TidelogError)
        self._state = settler.failed(error, self._topic)

    def _seen_error(self) -> TidelogError:
        error = self._state
        assert isinstance(error, TidelogError)
        error.is_seen = True
        return error

    def _delivered(self) -> Delivered:
        return Delivered(self._topic, self._partition, self._offset, self._timestamp if self._timestamp >= 0 else None)

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        if callbacks and isinstance(self._state, TidelogError):
            self._state.is_seen = True
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
