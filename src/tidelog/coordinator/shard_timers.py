"""Time-outs of one shard, by name: each runs a decision on the shard, and all end with it."""

from collections.abc import Callable, Hashable

from tidelog.coordinator.machine import Cancellable, CoordinatorResult, Scheduler

TimedDecision = Callable[[], CoordinatorResult]


class ShardTimers:
    """``schedule`` under a name that is scheduled already replaces it."""

    __slots__ = ("_by_name", "_scheduler", "run")

    def __init__(self, scheduler: Scheduler, run: Callable[[TimedDecision], None]) -> None:
        self._scheduler = scheduler
        self.run = run
        """At once."""
        self._by_name: dict[Hashable, Cancellable] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._by_name

    def schedule(self, name: Hashable, delay_ms: int, decide: TimedDecision) -> None:
        self.cancel(name)

        def due() -> None:
            del self._by_name[name]
            self.run(decide)

        self._by_name[name] = self._scheduler.schedule(max(0, delay_ms), due)

    def cancel(self, name: Hashable) -> None:
        timer = self._by_name.pop(name, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        by_name, self._by_name = self._by_name, {}
        for timer in by_name.values():
            timer.cancel()
