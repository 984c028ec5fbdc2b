"""Those who wait until this node's image has what the controller has decided: the image follows a moment later."""

from collections.abc import Callable

from tidelog.broker.timers import Timer, Timers


class ImageWaiters:
    __slots__ = ("_timers", "_waiting")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None], Timer]] = []

    def wait(self, is_there: Callable[[], bool], on_end: Callable[[], None], timeout_ms: int) -> None:
        """Call back once, when ``is_there`` or after the timeout."""
        if is_there():
            on_end()
            return
        timer = self._timers.schedule(timeout_ms, self.image_changed)
        self._waiting.append((is_there, on_end, timer))

    def image_changed(self) -> None:
        """Also called by the timer of a waiter whose time is over, which then has no action any more."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for is_there, on_end, timer in waiting:
                if timer.action is None or is_there():
                    timer.cancel()
                    on_end()
                else:
                    self._waiting.append((is_there, on_end, timer))
