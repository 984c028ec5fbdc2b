"""Transactions that are open for longer than their producer said are aborted, and the producer fenced.

An open transaction keeps read_committed readers of all its partitions from going on, and its producer may be gone for good. One
timer looks at the ongoing ones every ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. Each is aborted by a
decision of its own, a few at a time.
"""

from functools import partial

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.transactions.decisions import Decisions
from tidelog.transactions.end_transaction import fence_and_abort
from tidelog.transactions.state import TransactionState

# Each costs a record, and its markers: about 5 ms in all.
ABORTS_PER_SLICE = 50

_NAME = "time-outs"


class TransactionTimeOuts:
    __slots__ = ("_decisions",)

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def start(self) -> None:
        environment = self._decisions.environment
        interval_ms = environment.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"]
        environment.timers.schedule(_NAME, interval_ms, self._sweep)

    def _sweep(self) -> CoordinatorResult:
        self.start()
        due = [transactional_id for transactional_id in self._decisions.table.ongoing if self._is_due(transactional_id)]
        if due:
            self._decisions.environment.report("transactions_timed_out", {"count": len(due), "first": due[0]})
        return self._abort_some(due)

    def _is_due(self, transactional_id: str) -> bool:
        metadata = self._decisions.table.find(transactional_id)
        if metadata is None or metadata.pending or metadata.value.state is not TransactionState.ONGOING:
            return False
        value = metadata.value
        return value.start_timestamp_ms + value.timeout_ms < self._decisions.now_ms()

    def _abort_some(self, due: list[str]) -> CoordinatorResult:
        timers = self._decisions.environment.timers
        for transactional_id in due[:ABORTS_PER_SLICE]:
            timers.schedule(("time out", transactional_id), 0, partial(self._abort, transactional_id))
        if len(due) > ABORTS_PER_SLICE:
            timers.schedule("more time-outs", 0, lambda: self._abort_some(due[ABORTS_PER_SLICE:]))
        return CoordinatorResult()

    def _abort(self, transactional_id: str) -> CoordinatorResult:
        metadata = self._decisions.table.find(transactional_id)
        if metadata is None or not self._is_due(transactional_id):
            return CoordinatorResult()  # It ended meanwhile.
        return fence_and_abort(self._decisions, transactional_id, metadata, None, None)
