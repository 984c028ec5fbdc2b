"""A request that would be answered with CONCURRENT_TRANSACTIONS waits instead.

A producer that begins its next transaction right after the last one finds the last one's markers still on their way, which takes
milliseconds. Clients that get the error come back after 20 ms or more. So the broker itself decides again once the transaction
has ended, within a short time. While a transaction is known to be ending, it does not even try before that.
"""

from collections.abc import Callable
from typing import Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.errors import CoordinatorError
from tidelog.coordinator.machine import Cancellable, CoordinatorResult, OnDone, Scheduler
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.wire.errors import ErrorCode

# Longer than markers take, and far below the time that clients wait for an answer.
WAIT_MS_MAX = 500
# Another transaction of the same id may follow the one that ends. A request that loses that race every time is answered. A
# request that cannot continue before the end is committed needs one attempt for that.
ATTEMPTS_MAX = 4

TransactionDecision = Callable[[TransactionCoordinator], CoordinatorResult]
_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class ConcurrentTransactions:
    __slots__ = ("scheduler", "transactions")

    def __init__(self, transactions: CoordinatorService[TransactionCoordinator], scheduler: Scheduler) -> None:
        self.transactions = transactions
        self.scheduler = scheduler

    def write(
        self, transactional_id: str, decide: TransactionDecision, error_of: Callable[[Any], ErrorCode], on_done: OnDone
    ) -> None:
        """Like CoordinatorService.write. ``error_of`` finds the code in a response."""
        waiting = _WaitingDecision(self, transactional_id, decide, error_of, on_done)
        coordinator = self.coordinator(transactional_id)
        if coordinator is None or not coordinator.ends.is_ending(transactional_id) or not waiting.wait(coordinator):
            waiting.decide()

    def coordinator(self, transactional_id: str) -> TransactionCoordinator | None:
        try:
            return self.transactions.shard_of(transactional_id).machine
        except CoordinatorError:
            return None


class _WaitingDecision:
    """One decision that waits until it can be made. It is an object because closures that refer to each other would be left to
    the cycle collector."""

    __slots__ = ("_attempts", "_concurrent", "_decide", "_error_of", "_on_done", "_timer", "_transactional_id", "_waits_at")

    def __init__(
        self,
        concurrent: ConcurrentTransactions,
        transactional_id: str,
        decide: TransactionDecision,
        error_of: Callable[[Any], ErrorCode],
        on_done: OnDone,
    ) -> None:
        self._concurrent = concurrent
        self._transactional_id = transactional_id
        self._decide = decide
        self._error_of = error_of
        self._on_done = on_done
        self._attempts = 0
        self._timer: Cancellable | None = None
        self._waits_at: TransactionCoordinator | None = None

    def decide(self) -> None:
        self._attempts += 1
        self._concurrent.transactions.write(self._transactional_id, self._decide, self._answered)

    def _answered(self, response: Any, error: Exception | None) -> None:
        if error is not None or self._error_of(response) is not _CONCURRENT or not self._try_again():
            self._on_done(response, error)

    def _try_again(self) -> bool:
        if self._attempts >= ATTEMPTS_MAX:
            return False
        coordinator = self._concurrent.coordinator(self._transactional_id)
        if coordinator is None:
            return False
        if not coordinator.ends.is_ending(self._transactional_id):
            # The answer had to wait for the log, and the end was committed in the meantime.
            self.decide()
            return True
        return self.wait(coordinator)

    def wait(self, coordinator: TransactionCoordinator) -> bool:
        """Wait for the end of the transaction. Returns False if too many are waiting already."""
        self._waits_at = coordinator
        if not coordinator.ends.when_ended(self._transactional_id, self._ended):
            self._waits_at = None
            return False
        if self._waits_at is not None:
            self._timer = self._concurrent.scheduler.schedule(WAIT_MS_MAX, self._expired)
        return True

    def _ended(self, _: Exception | None) -> None:
        self._waits_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.decide()

    def _expired(self) -> None:
        """Make the decision one last time: its result is the answer."""
        coordinator, self._waits_at, self._timer = self._waits_at, None, None
        if coordinator is not None:
            coordinator.ends.stop_waiting(self._transactional_id, self._ended)
        self._attempts = ATTEMPTS_MAX
        self.decide()
