"""Bundles between the thread that polls and those that handle: taken, run, given back, reported.

A slot (a thread or an asyncio task) takes a bundle of messages, runs one after the other and reports what became of them. Bundles
are as large as the handler is fast (about ``BUNDLE_NS`` of work), so that handing over costs little and a slow handler still
gets one message at a time. What of a bundle is not begun after ``SLICE_NS`` goes back, for others to take: by the slot itself
between two messages, or by the polling thread (``rescue``) while the slot is in a slow one. A lane stays busy until every message
of it that was begun has ended; one whose message failed is held for the polling thread where order demands it.

One lock guards the dispatch and all bundles. Reports go through a deque, which needs none.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tidelog.metrics.histogram import Histogram
from tidelog.worker.assigned import Assigned
from tidelog.worker.attempt import DUPLICATE, Failure, Outcome
from tidelog.worker.dispatch_lanes import LaneDispatch
from tidelog.worker.dispatch_none import UnorderedDispatch
from tidelog.worker.job import Job, Lane

BUNDLE_NS = 1_000_000
SLICE_NS = 20_000_000
BUNDLE_JOBS_MAX = 500
# Handlers that are faster than a change of threads gain nothing from more of them, and those would be in each other's way.
FAST_NS = 50_000
FAST_SLOTS = 2
BUNDLE_JOBS_AT_FIRST = 8

Dispatch = LaneDispatch | UnorderedDispatch


class Report:
    """What became of one bundle."""

    __slots__ = ("duplicates", "execution", "failures", "fatal", "handled")

    def __init__(self, execution: "Execution") -> None:
        self.execution = execution
        self.handled: list[Job] = []
        self.duplicates = 0
        """Of those handled, how many had been before."""
        self.failures: list[Failure] = []
        self.fatal: BaseException | None = None
        """What a handler raised to end the whole program."""


class Bundle:
    __slots__ = ("begun_ns", "count", "current", "held", "jobs", "lanes", "report", "taken_ns", "unrun")

    def __init__(self, jobs: list[Job], report: Report, now_ns: int) -> None:
        self.jobs = deque(jobs)
        self.report = report
        self.lanes: dict[Lane, None] = {}
        """Of what was begun, in order."""
        self.held: set[Lane] = set()
        self.unrun: list[Job] = []
        self.current: Job | None = None
        self.count = 0
        """Of messages that ended."""
        self.taken_ns = self.begun_ns = now_ns

    def is_at(self, assigned: Assigned) -> bool:
        """Whether it has something of the partition: to run, running, or run and not reported yet."""
        return (
            (self.current is not None and self.current.assigned is assigned)
            or any(job.assigned is assigned for job in self.jobs)
            or any(job.assigned is assigned for job in self.report.handled)
            or any(failure.job.assigned is assigned for failure in self.report.failures)
        )


class Slots(Protocol):
    """Who runs bundles."""

    def want(self, count: int) -> None:
        """So many more bundles could be taken. Called with the lock held."""
        ...

    def became_idle(self) -> None:
        """A slot found nothing to take. Called with the lock held."""
        ...

    def close(self) -> None: ...


class Execution:
    def __init__(self, dispatch: Dispatch, *, holds_failed_lanes: bool, reports: deque[Report]) -> None:
        self._dispatch = dispatch
        self._holds_failed_lanes = holds_failed_lanes
        self._reports = reports
        self._lock = threading.Lock()
        self._bundles: dict[int, Bundle] = {}
        self._average_ns = BUNDLE_NS / BUNDLE_JOBS_AT_FIRST
        self._is_halted = False
        self._probes_left = 0
        self._stuck = 0
        self.slots: Slots | None = None
        self.histograms: list[Histogram] = []
        """Time per message in nanoseconds; one per slot that writes it, read by anybody."""

    # -- the polling thread --------------------------------------------------------------------------------------------------

    def lane_of(self, key: object) -> Lane:
        """Only the polling thread adds and looks up lanes; others may free one."""
        with self._lock:
            return self._dispatch.lane_of(key)

    @contextmanager
    def adding(self) -> Iterator[Dispatch]:
        """Look up lanes and add jobs within it."""
        with self._lock:
            yield self._dispatch
            self._offer()

    def drain(self, lane: Lane) -> list[Job]:
        with self._lock:
            return self._dispatch.drain(lane)

    def put_back(self, job: Job) -> None:
        with self._lock:
            self._dispatch.put_back(job, self._holds_failed_lanes)

    def discard_stopping(self) -> int:
        """Forget what waits of partitions that are being taken away."""
        with self._lock:
            return self._dispatch.discard(lambda assigned: assigned.is_stopping)

    def is_at(self, assigned: Assigned) -> bool:
        """Whether something of the partition is under way, or is not reported yet."""
        with self._lock:
            return any(bundle.is_at(assigned) for bundle in self._bundles.values())

    def halt(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._is_halted = True
            self._probes_left = 0

    def resume(self) -> None:
        with self._lock:
            self._is_halted = False
            self._offer()

    def probe(self) -> bool:
        """Begin one message while halted. False when there is none to begin."""
        with self._lock:
            if not self._dispatch.ready:
                return False
            self._probes_left = 1
            self._offer()
            return True

    @property
    def has_no_probe(self) -> bool:
        """No message that could answer a probe is under way, about to be, or waits to be settled: it was taken away."""
        with self._lock:
            if self._bundles or self._probes_left:
                return False
            return not any(report.execution is self for report in list(self._reports))

    def rescue(self, now_ns: int) -> None:
        """What waits behind a slow message in its bundle is for others to take."""
        with self._lock:
            self._stuck = 0
            for bundle in self._bundles.values():
                if now_ns - bundle.begun_ns > SLICE_NS:
                    self._stuck += 1
                    if bundle.jobs:
                        self._give_back(bundle)
                    if not bundle.held and bundle.report.handled:
                        # What was handled before the slow one need not wait for it.
                        self._reports.append(bundle.report)
                        bundle.report = Report(self)
            self._offer()

    @property
    def queued(self) -> int:
        return self._dispatch.queued

    @property
    def running(self) -> int:
        return len(self._bundles)

    def oldest_ns(self, now_ns: int) -> int:
        """For how long the slowest message is being handled now."""
        with self._lock:
            begun = [bundle.begun_ns for bundle in self._bundles.values() if bundle.current is not None]
        return max((now_ns - each for each in begun), default=0)

    # -- slots ---------------------------------------------------------------------------------------------------------------

    def turn(self, ended: Bundle | None, now_ns: int) -> Bundle | None:
        """End one bundle and take the next, its first message begun. None when there is none: the slot is idle then."""
        with self._lock:
            if ended is not None:
                self._end(ended, now_ns)
                # With the lock held: whoever finds nothing under way finds the report.
                self._reports.append(ended.report)
            bundle = None
            while bundle is None and (jobs := self._take()):
                bundle = Bundle(jobs, Report(self), now_ns)
                self._bundles[id(bundle)] = bundle
                if self._begin_next(bundle, now_ns) is None:
                    # All of it was of partitions that are being taken away.
                    self._end(bundle, now_ns)
                    bundle = None
            if bundle is None and self.slots is not None:
                self.slots.became_idle()
        return bundle

    def next(self, bundle: Bundle, job: Job, outcome: Outcome, now_ns: int) -> Job | None:
        """Note what became of ``job``; the next message of the bundle to run, None when it is over."""
        with self._lock:
            report = bundle.report
            if outcome is None:
                report.handled.append(job)
            elif isinstance(outcome, Failure):
                report.failures.append(outcome)
                if self._holds_failed_lanes:
                    bundle.held.add(job.lane)
            elif outcome is DUPLICATE:
                report.handled.append(job)
                report.duplicates += 1
            bundle.count += 1
            if bundle.jobs:
                if now_ns - bundle.taken_ns > SLICE_NS or self._is_halted:
                    self._give_back(bundle)
                    self._offer()
                return self._begin_next(bundle, now_ns)
            bundle.current = None
            return None

    # -- both, with the lock held --------------------------------------------------------------------------------------------

    def _jobs_max(self) -> int:
        return max(1, min(BUNDLE_JOBS_MAX, int(BUNDLE_NS / max(self._average_ns, 1.0))))

    def _offer(self) -> None:
        ready = self._dispatch.ready
        if not ready or self.slots is None:
            return
        if self._is_halted:
            if self._probes_left:
                self.slots.want(1)
            return
        wanted = -(-ready // self._jobs_max())
        if self._average_ns < FAST_NS:
            wanted = min(wanted, FAST_SLOTS + self._stuck - len(self._bundles))
        if wanted > 0:
            self.slots.want(wanted)

    def _take(self) -> list[Job]:
        if not self._is_halted:
            return self._dispatch.take(self._jobs_max())
        if not self._probes_left:
            return []
        self._probes_left = 0
        return self._dispatch.take(1)

    def _begin_next(self, bundle: Bundle, now_ns: int) -> Job | None:
        jobs = bundle.jobs
        while jobs:
            job = jobs.popleft()
            if job.assigned.is_stopping:
                self._free_if_unused(bundle, job.lane)
                continue
            if job.lane in bundle.held:
                bundle.unrun.append(job)
                continue
            bundle.lanes[job.lane] = None
            bundle.current = job
            bundle.begun_ns = now_ns
            return job
        bundle.current = None
        return None

    def _end(self, bundle: Bundle, now_ns: int) -> None:
        """Free its lanes."""
        if bundle.unrun:
            self._dispatch.give_back(bundle.unrun)
        held = bundle.held
        self._dispatch.release([lane for lane in bundle.lanes if lane not in held] if held else bundle.lanes)
        del self._bundles[id(bundle)]
        if bundle.count:
            self._average_ns += ((now_ns - bundle.taken_ns) / bundle.count - self._average_ns) * 0.2
        self._offer()

    def _give_back(self, bundle: Bundle) -> None:
        jobs = list(bundle.jobs)
        bundle.jobs.clear()
        # Jobs of a lane that was held meanwhile stand before these.
        self._dispatch.give_back([*bundle.unrun, *jobs])
        bundle.unrun.clear()
        unused = dict.fromkeys(job.lane for job in jobs)
        self._dispatch.release([lane for lane in unused if lane not in bundle.lanes])

    def _free_if_unused(self, bundle: Bundle, lane: Lane) -> None:
        """The lane of a message that was dropped, when nothing else of the bundle is in it."""
        if lane not in bundle.lanes and all(job.lane is not lane for job in bundle.jobs):
            self._dispatch.release([lane])
