"""Dispatch for ``order="none"``: whatever came first is begun first, and nothing waits for anything.

The same calls as ``LaneDispatch``. Jobs share one lane that nobody looks at. Pure, and not locked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidelog.worker.assigned import Assigned
from tidelog.worker.job import Job, Lane


class UnorderedDispatch:
    __slots__ = ("_jobs", "_lane")

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._lane = Lane()

    @property
    def queued(self) -> int:
        return len(self._jobs)

    @property
    def ready(self) -> int:
        return len(self._jobs)

    def lane_of(self, _: object) -> Lane:
        return self._lane

    def add(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)

    def take(self, jobs_max: int) -> list[Job]:
        queue = self._jobs
        if len(queue) <= jobs_max:
            jobs = list(queue)
            queue.clear()
            return jobs
        return [queue.popleft() for _ in range(jobs_max)]

    def give_back(self, unrun: Sequence[Job]) -> None:
        self._jobs.extendleft(reversed(unrun))

    def release(self, _: Iterable[Lane]) -> None:
        """Lanes are never busy here."""

    def drain(self, _: Lane) -> list[Job]:
        """No lane is ever held here."""
        return []

    def put_back(self, job: Job, _is_held: bool) -> None:
        self._jobs.appendleft(job)

    def discard(self, is_gone: Callable[[Assigned], bool]) -> int:
        before = len(self._jobs)
        self._jobs = deque(job for job in self._jobs if not is_gone(job.assigned))
        return before - len(self._jobs)
