"""The stages that a message passes: intake -> execution -> settlement -> outbox.

Each stage knows only the stages after it. The execution reports results as values, the settlement returns what the execution has
to do next, and the outbox returns what was acknowledged. This module passes them on. It runs in the polling thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidelog.ports.clock import Clock
from tidelog.worker.execution import BundleReport, HandlerExecution
from tidelog.worker.outbox import Outbox
from tidelog.worker.partitions import AssignedPartition
from tidelog.worker.settlement import SettledFailure, Settlement

log = logging.getLogger("tidelog.worker")

LOOK_AGAIN_SECONDS = 0.005


class MessagePipeline:
    def __init__(
        self,
        executions: Iterable[HandlerExecution],
        reports: deque[BundleReport],
        settlement: Settlement,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self.executions = list(dict.fromkeys(executions))
        self._reports = reports
        self._settlement = settlement
        self._outbox = outbox
        self._clock = clock

    def settle(self) -> None:
        """Settle all that was reported until now. Raises what a handler raised to end the program."""
        reports = self._reports
        while reports:
            report = reports.popleft()
            settled = self._settlement.settle(report)
            report.execution.follow_breaker()
            for failed in settled:
                self._free_lane(report.execution, failed)
            if report.fatal is not None:
                raise report.fatal

    def settle_letters(self) -> None:
        """Finish the messages whose letters were acknowledged."""
        self._settlement.settle_letters()

    def drain(self, partitions: Sequence[AssignedPartition], timeout: float, is_hurried: Callable[[], bool]) -> bool:
        """Begin nothing more of the partitions, and wait for what is under way. Returns False if it was not finished in time."""
        deadline_ms = self._clock.monotonic_ms() + timeout * 1000
        for assigned in partitions:
            assigned.stop()
        while True:
            self.discard_stopping()
            for execution in self.executions:
                # What was handled before a slow message of another partition is reported without it.
                execution.rescue(self._clock.monotonic_ns())
            self.settle()
            self.settle_letters()
            is_drained = not any(self._is_busy_with(assigned) for assigned in partitions)
            if is_drained or is_hurried() or self._clock.monotonic_ms() >= deadline_ms:
                break
            self._outbox.wait(LOOK_AGAIN_SECONDS)
        self.settle()
        if not is_drained:
            log.warning("stopped waiting for messages under way in %d partitions: they will be handled again", len(partitions))
        return is_drained

    def discard_stopping(self) -> None:
        """Drop the waiting messages of partitions that are being taken away."""
        for execution in self.executions:
            execution.discard_stopping()

    def _is_busy_with(self, assigned: AssignedPartition) -> bool:
        return self._outbox.has_letters(assigned) or assigned.execution.is_busy_with(assigned)

    def _free_lane(self, execution: HandlerExecution, failed: SettledFailure) -> None:
        """The lane was held for this failure. What waits in it continues, or is held behind the letter."""
        if failed.is_put_back:
            execution.put_back(failed.item)
            return
        lane = failed.item.lane
        continuing = self._settlement.hold_behind(failed, execution.drain(lane))
        if continuing:
            with execution.adding() as dispatch:
                for item in continuing:
                    if lane.key is not None:
                        item.move_to(dispatch.lane_of(lane.key, lane.share))
                dispatch.add(continuing)
