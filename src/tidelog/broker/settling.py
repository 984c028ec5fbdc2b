"""CONCURRENT_TRANSACTIONS, waited for instead of answered.

A producer that begins its next transaction right after the last one meets it while the last one's markers are still on their way,
a matter of milliseconds. Clients that hear of it come again after 20 ms or more, so the broker asks again by itself once the
transaction has ended, for a short while. One that is known to be ending is not asked about before.
"""

from collections.abc import Callable
from typing import Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.errors import CoordinatorError
from tidelog.coordinator.machine import Cancellable, CoordinatorResult, OnDone, Scheduler
from tidelog.transactions.machine import TransactionMachine
from tidelog.wire.errors import ErrorCode

# Longer than markers take, and far below what clients wait for an answer.
SETTLE_MS_MAX = 500
# A transaction that ends may be followed by another one of the same id; who loses that race every time is told. Whoever cannot go
# on before the end is committed needs one attempt for that.
ATTEMPTS_MAX = 4

Decide = Callable[[TransactionMachine], CoordinatorResult]
_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class Settling:
    __slots__ = ("scheduler", "transactions")

    def __init__(self, transactions: CoordinatorService[TransactionMachine], scheduler: Scheduler) -> None:
        self.transactions = transactions
        self.scheduler = scheduler

    def write(self, transactional_id: str, decide: Decide, error_of: Callable[[Any], ErrorCode], on_done: OnDone) -> None:
        """As CoordinatorService.write. ``error_of`` finds the code in a response."""
        asked = _Asked(self, transactional_id, decide, error_of, on_done)
        machine = self.machine(transactional_id)
        if machine is None or not machine.is_ending(transactional_id) or not asked.wait(machine):
            asked.ask()

    def machine(self, transactional_id: str) -> TransactionMachine | None:
        try:
            return self.transactions.shard_of(transactional_id).machine
        except CoordinatorError:
            return None


class _Asked:
    """One decision, until it can be made. An object and no closures: those that know each other are left to the collector."""

    __slots__ = ("_attempts", "_decide", "_error_of", "_on_done", "_settling", "_timer", "_transactional_id", "_waits_at")

    def __init__(
        self,
        settling: Settling,
        transactional_id: str,
        decide: Decide,
        error_of: Callable[[Any], ErrorCode],
        on_done: OnDone,
    ) -> None:
        self._settling = settling
        self._transactional_id = transactional_id
        self._decide = decide
        self._error_of = error_of
        self._on_done = on_done
        self._attempts = 0
        self._timer: Cancellable | None = None
        self._waits_at: TransactionMachine | None = None

    def ask(self) -> None:
        self._attempts += 1
        self._settling.transactions.write(self._transactional_id, self._decide, self._answered)

    def _answered(self, response: Any, error: Exception | None) -> None:
        if error is not None or self._error_of(response) is not _CONCURRENT or not self._again():
            self._on_done(response, error)

    def _again(self) -> bool:
        if self._attempts >= ATTEMPTS_MAX:
            return False
        machine = self._settling.machine(self._transactional_id)
        if machine is None:
            return False
        if not machine.is_ending(self._transactional_id):
            # The answer waited for the log, as answers do, and the end was committed in front of it.
            self.ask()
            return True
        return self.wait(machine)

    def wait(self, machine: TransactionMachine) -> bool:
        """For the end of the transaction. False: there is no place to wait."""
        self._waits_at = machine
        if not machine.when_settled(self._transactional_id, self._settled):
            self._waits_at = None
            return False
        if self._waits_at is not None:
            self._timer = self._settling.scheduler.schedule(SETTLE_MS_MAX, self._expired)
        return True

    def _settled(self, _: Exception | None) -> None:
        self._waits_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.ask()

    def _expired(self) -> None:
        """What is decided now is the answer."""
        machine, self._waits_at, self._timer = self._waits_at, None, None
        if machine is not None:
            machine.stop_waiting(self._transactional_id, self._settled)
        self._attempts = ATTEMPTS_MAX
        self.ask()
