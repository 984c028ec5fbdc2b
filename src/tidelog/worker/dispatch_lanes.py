"""Dispatch in lanes, for ``order="key"`` and ``order="partition"``: each lane's messages one after the other, lanes side by side.

Keeps a queue per lane and, in turn, the lanes that have something to do and nobody at it. ``take`` hands out a bundle: the
waiting messages of one or more lanes, so that handing over costs little per message. A lane stays busy until its bundle comes
back; what of it was not begun goes back to its front. A lane of a key whose message failed is held: nothing of it is begun until
``drain`` takes what waits in it.

Pure, and not locked: whoever shares it between threads locks around each call.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidelog.worker.assigned import Assigned
from tidelog.worker.job import Job, Lane


class LaneDispatch:
    __slots__ = ("_lanes", "_ready", "queued")

    def __init__(self) -> None:
        self._lanes: dict[object, Lane] = {}
        self._ready: deque[Lane] = deque()
        self.queued = 0

    @property
    def ready(self) -> int:
        """How many lanes could be begun."""
        return len(self._ready)

    def lane_of(self, key: object) -> Lane:
        """The lane of that key; made when it has none."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        return lane

    def add(self, jobs: Sequence[Job]) -> None:
        """In the order in which each lane is to see them."""
        ready = self._ready
        for job in jobs:
            lane = job.lane
            queue = lane.jobs
            if not queue and not lane.is_busy:
                ready.append(lane)
            queue.append(job)
        self.queued += len(jobs)

    def take(self, jobs_max: int) -> list[Job]:
        """Up to so many; none when nothing may be begun now."""
        jobs: list[Job] = []
        ready = self._ready
        while ready and len(jobs) < jobs_max:
            lane = ready.popleft()
            queue = lane.jobs
            if not queue:
                continue
            lane.is_busy = True
            room = jobs_max - len(jobs)
            if len(queue) <= room:
                jobs.extend(queue)
                queue.clear()
            else:
                jobs.extend([queue.popleft() for _ in range(room)])
        self.queued -= len(jobs)
        return jobs

    def give_back(self, unrun: Sequence[Job]) -> None:
        """Part of a bundle, in its order, that was not begun: it waits again, before what waits already."""
        for job in reversed(unrun):
            job.lane.jobs.appendleft(job)
        self.queued += len(unrun)

    def release(self, lanes: Iterable[Lane]) -> None:
        """Nothing of them is under way any more."""
        for lane in lanes:
            self._release(lane)

    def drain(self, lane: Lane) -> list[Job]:
        """All that waits in a lane that is held; the lane is free afterwards."""
        jobs = list(lane.jobs)
        lane.jobs.clear()
        self.queued -= len(jobs)
        self._release(lane)
        return jobs

    def put_back(self, job: Job, is_held: bool) -> None:
        """A job that was under way waits again, before all others of its lane, which is free afterwards if it was held."""
        lane = job.lane
        is_waiting_already = bool(lane.jobs)
        lane.jobs.appendleft(job)
        self.queued += 1
        if is_held:
            self._release(lane)
        elif not lane.is_busy and not is_waiting_already:
            self._ready.append(lane)

    def discard(self, is_gone: Callable[[Assigned], bool]) -> int:
        """Forget what waits of partitions that were taken away. How many that were."""
        before = self.queued
        seen: dict[int, Lane] = {id(lane): lane for lane in (*self._lanes.values(), *self._ready)}
        for lane in seen.values():
            kept = [job for job in lane.jobs if not is_gone(job.assigned)]
            if len(kept) < len(lane.jobs):
                self.queued -= len(lane.jobs) - len(kept)
                lane.jobs.clear()
                lane.jobs.extend(kept)
                if not kept and not lane.is_busy and lane.key is not None:
                    self._lanes.pop(lane.key, None)
        self._ready = deque(lane for lane in self._ready if lane.jobs)
        return before - self.queued

    def _release(self, lane: Lane) -> None:
        lane.is_busy = False
        if lane.jobs:
            self._ready.append(lane)
        elif lane.key is not None and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
