"""Moves bundles of messages between the thread that polls and the slots that handle them: dispatch, run, return, report.

A slot (a thread or an asyncio task) takes a bundle of messages, runs one after the other and reports the results. Bundles are as
large as the handler is fast (about ``BUNDLE_NS`` of work), so that handing over costs little and a slow handler still gets one
message at a time. Messages of a bundle that are not begun after ``SLICE_NS`` go back, for others to take: by the slot itself
between two messages, or by the polling thread (``rescue``) while the slot is in a slow one.

A lane holds what must be handled one after the other: the messages of one key, or of one partition. It stays busy until every
message of it that was begun has ended. A lane whose message failed is held where order demands it, until the polling thread has
decided what becomes of the message.

One lock guards the dispatch and all bundles. Reports go through a deque, which needs no lock. Reports are values: the execution
does not know the stages after it.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.metrics.histogram import Histogram
from tidelog.worker.breaker import Breaker, BreakerState
from tidelog.worker.dispatch import Dispatch, Lane
from tidelog.worker.handler import DUPLICATE, AttemptOutcome, HandlerFailure
from tidelog.worker.partitions import AssignedPartition, WorkItem

BUNDLE_NS = 1_000_000
SLICE_NS = 20_000_000
BUNDLE_ITEMS_MAX = 500
# Handlers that are faster than a switch of threads gain nothing from more threads, which would only disturb each other.
FAST_NS = 50_000
FAST_SLOTS = 2
BUNDLE_ITEMS_AT_FIRST = 8
# The weight of the newest bundle in the average time per message.
AVERAGE_WEIGHT = 0.2


@dataclass(slots=True, eq=False)
class BundleReport:
    """The results of one bundle."""

    execution: "HandlerExecution"
    handled: list[WorkItem] = field(default_factory=list)
    duplicates: int = 0
    """The number of messages in ``handled`` that had been handled before."""
    failures: list[HandlerFailure] = field(default_factory=list)
    fatal: BaseException | None = None
    """The exception with which a handler ends the whole program."""


class Bundle:
    __slots__ = ("begun_ns", "count", "current", "held", "items", "lanes", "report", "taken_ns", "unrun")

    def __init__(self, items: list[WorkItem], report: BundleReport, now_ns: int) -> None:
        self.items = deque(items)
        self.report = report
        self.lanes: dict[Lane, None] = {}
        """The lanes of messages that were begun, in order."""
        self.held: set[Lane] = set()
        self.unrun: list[WorkItem] = []
        self.current: WorkItem | None = None
        self.count = 0
        """The number of messages that have ended."""
        self.taken_ns = self.begun_ns = now_ns

    def crash(self, error: BaseException) -> None:
        """Note that a handler ends the whole program."""
        self.report.fatal = error

    def contains(self, assigned: AssignedPartition) -> bool:
        """Whether it has a message of the partition: to run, running, or run and not reported yet."""
        return (
            (self.current is not None and self.current.assigned is assigned)
            or any(item.assigned is assigned for item in self.items)
            or any(item.assigned is assigned for item in self.report.handled)
            or any(failure.item.assigned is assigned for failure in self.report.failures)
        )


class HandlerSlots(Protocol):
    """The threads or tasks that run bundles."""

    def want(self, count: int) -> None:
        """Called with the lock held when that many more bundles could be taken."""
        ...

    def became_idle(self) -> None:
        """Called with the lock held when a slot found nothing to take."""
        ...

    def close(self) -> None: ...


class HandlerExecution:
    """Runs one handler. Handlers do not share slots or circuit breakers: one that hangs, or whose dependency is down, does not
    affect the others."""

    def __init__(
        self,
        name: str,
        dispatch: Dispatch,
        reports: deque[BundleReport],
        *,
        holds_failed_lanes: bool,
        breaker: Breaker | None = None,
    ) -> None:
        self.name = name
        self.breaker = breaker
        self._dispatch = dispatch
        self._holds_failed_lanes = holds_failed_lanes
        self._reports = reports
        self._lock = threading.Lock()
        self._bundles: dict[int, Bundle] = {}
        self._average_ns = BUNDLE_NS / BUNDLE_ITEMS_AT_FIRST
        self._is_halted = False
        self._probes_left = 0
        self._stuck = 0
        self._slots: HandlerSlots | None = None
        self.histograms: list[Histogram] = []
        """The time per message in nanoseconds. Each slot writes its own, and anyone may read them."""

    def attach(self, slots: HandlerSlots) -> None:
        self._slots = slots

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()

    # -- the polling thread --------------------------------------------------------------------------------------------------

    def lane_of(self, key: object, share: int = 0) -> Lane:
        """Return the lane. Only the polling thread adds and looks up lanes; others may free one."""
        with self._lock:
            return self._dispatch.lane_of(key, share)

    @contextmanager
    def adding(self) -> Iterator[Dispatch]:
        """Look up lanes and add items within the block."""
        with self._lock:
            yield self._dispatch
            self._offer()

    def drain(self, lane: Lane) -> list[WorkItem]:
        """Free a lane that is held, and return what waits in it."""
        with self._lock:
            return self._dispatch.drain(lane)

    def put_back(self, item: WorkItem) -> None:
        with self._lock:
            self._dispatch.put_back(item, self._holds_failed_lanes)

    def discard_stopping(self) -> int:
        """Drop the waiting messages of partitions that are being taken away."""
        with self._lock:
            return self._dispatch.discard(lambda assigned: assigned.is_stopping)

    def is_busy_with(self, assigned: AssignedPartition) -> bool:
        """Whether a message of the partition is under way, or not reported yet."""
        with self._lock:
            return any(bundle.contains(assigned) for bundle in self._bundles.values())

    def follow_breaker(self) -> None:
        """Begin nothing while the circuit breaker is open; continue when it has closed."""
        if self.breaker is None:
            return
        with self._lock:
            if self.breaker.state is BreakerState.OPEN:
                self._is_halted = True
                self._probes_left = 0
            elif self.breaker.state is BreakerState.CLOSED and self._is_halted:
                self._is_halted = False
                self._offer()

    def probe(self) -> bool:
        """Begin one message while halted. Returns False if there is none to begin."""
        with self._lock:
            if not self._dispatch.ready:
                return False
            self._probes_left = 1
            self._offer()
            return True

    @property
    def has_no_probe(self) -> bool:
        """Whether no message that could answer a probe is under way, about to be, or reported: its partition was taken away."""
        with self._lock:
            if self._bundles or self._probes_left:
                return False
            return not any(report.execution is self for report in list(self._reports))

    def rescue(self, now_ns: int) -> None:
        """Let other slots take what waits behind a slow message in its bundle."""
        with self._lock:
            self._stuck = 0
            for bundle in self._bundles.values():
                if now_ns - bundle.begun_ns > SLICE_NS:
                    self._stuck += 1
                    if bundle.items:
                        self._give_back(bundle)
                    if not bundle.held and bundle.report.handled:
                        # What was handled before the slow message need not wait for it.
                        self._reports.append(bundle.report)
                        bundle.report = BundleReport(self)
            self._offer()

    @property
    def queued(self) -> int:
        return self._dispatch.queued

    @property
    def running(self) -> int:
        return len(self._bundles)

    def oldest_ns(self, now_ns: int) -> int:
        """How long the slowest message has been running."""
        with self._lock:
            begun = [bundle.begun_ns for bundle in self._bundles.values() if bundle.current is not None]
        return max((now_ns - each for each in begun), default=0)

    # -- slots ---------------------------------------------------------------------------------------------------------------

    def turn(self, ended: Bundle | None, now_ns: int) -> Bundle | None:
        """End one bundle and take the next, with its first message begun. Returns None if there is no bundle: the slot is idle
        then."""
        with self._lock:
            if ended is not None:
                self._end(ended, now_ns)
                # Report with the lock held: whoever finds nothing under way must find the report.
                self._reports.append(ended.report)
            bundle = None
            while bundle is None and (items := self._take()):
                bundle = Bundle(items, BundleReport(self), now_ns)
                self._bundles[id(bundle)] = bundle
                if self._begin_next(bundle, now_ns) is None:
                    # All of it belongs to partitions that are being taken away.
                    self._end(bundle, now_ns)
                    bundle = None
            if bundle is None and self._slots is not None:
                self._slots.became_idle()
        return bundle

    def next(self, bundle: Bundle, item: WorkItem, outcome: AttemptOutcome, now_ns: int) -> WorkItem | None:
        """Note the outcome of ``item``, and return the next message of the bundle to run; None when the bundle is over."""
        with self._lock:
            report = bundle.report
            if outcome is None:
                report.handled.append(item)
            elif isinstance(outcome, HandlerFailure):
                report.failures.append(outcome)
                if self._holds_failed_lanes:
                    bundle.held.add(item.lane)
            elif outcome is DUPLICATE:
                report.handled.append(item)
                report.duplicates += 1
            bundle.count += 1
            if bundle.items:
                if now_ns - bundle.taken_ns > SLICE_NS or self._is_halted:
                    self._give_back(bundle)
                    self._offer()
                return self._begin_next(bundle, now_ns)
            bundle.current = None
            return None

    # -- both, with the lock held --------------------------------------------------------------------------------------------

    def _items_max(self) -> int:
        return max(1, min(BUNDLE_ITEMS_MAX, int(BUNDLE_NS / max(self._average_ns, 1.0))))

    def _offer(self) -> None:
        ready = self._dispatch.ready
        if not ready or self._slots is None:
            return
        if self._is_halted:
            if self._probes_left:
                self._slots.want(1)
            return
        wanted = -(-ready // self._items_max())
        if self._average_ns < FAST_NS:
            wanted = min(wanted, FAST_SLOTS + self._stuck - len(self._bundles))
        if wanted > 0:
            self._slots.want(wanted)

    def _take(self) -> list[WorkItem]:
        if not self._is_halted:
            return self._dispatch.take(self._items_max())
        if not self._probes_left:
            return []
        self._probes_left = 0
        return self._dispatch.take(1)

    def _begin_next(self, bundle: Bundle, now_ns: int) -> WorkItem | None:
        items = bundle.items
        while items:
            item = items.popleft()
            if item.assigned.is_stopping:
                self._free_if_unused(bundle, item.lane)
                continue
            if item.lane in bundle.held:
                bundle.unrun.append(item)
                continue
            bundle.lanes[item.lane] = None
            bundle.current = item
            bundle.begun_ns = now_ns
            return item
        bundle.current = None
        return None

    def _end(self, bundle: Bundle, now_ns: int) -> None:
        """Free the lanes of a bundle."""
        if bundle.unrun:
            self._dispatch.give_back(bundle.unrun)
        held = bundle.held
        self._dispatch.release([lane for lane in bundle.lanes if lane not in held] if held else bundle.lanes)
        del self._bundles[id(bundle)]
        if bundle.count:
            self._average_ns += ((now_ns - bundle.taken_ns) / bundle.count - self._average_ns) * AVERAGE_WEIGHT
        self._offer()

    def _give_back(self, bundle: Bundle) -> None:
        items = list(bundle.items)
        bundle.items.clear()
        # Items of a lane that was held in the meantime come before these.
        self._dispatch.give_back([*bundle.unrun, *items])
        bundle.unrun.clear()
        unused = dict.fromkeys(item.lane for item in items)
        self._dispatch.release([lane for lane in unused if lane not in bundle.lanes])

    def _free_if_unused(self, bundle: Bundle, lane: Lane) -> None:
        """Free the lane of a message that was dropped, if nothing else of the bundle is in it."""
        if lane not in bundle.lanes and all(item.lane is not lane for item in bundle.items):
            self._dispatch.release([lane])
