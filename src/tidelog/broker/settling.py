"""CONCURRENT_TRANSACTIONS, waited for instead of answered.

A producer that begins its next transaction right after the last one meets it while the last one's markers are still on their way,
a matter of milliseconds. Clients that hear of it come again after 20 ms or more, so the broker asks again by itself once the
transaction has ended, for a short while.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.coordinator.errors import CoordinatorError
from tidelog.coordinator.machine import CoordinatorResult, OnDone, Scheduler
from tidelog.transactions.machine import TransactionMachine
from tidelog.wire.errors import ErrorCode

# Longer than markers take, and far below what clients wait for an answer.
SETTLE_MS_MAX = 500
# A transaction that ends may be followed by another one of the same id; who loses that race every time is told. Whoever cannot go
# on before the end is committed needs one attempt for that.
ATTEMPTS_MAX = 4

Decide = Callable[[TransactionMachine], CoordinatorResult]


class Settling:
    __slots__ = ("_scheduler", "_transactions")

    def __init__(self, transactions: CoordinatorService[TransactionMachine], scheduler: Scheduler) -> None:
        self._transactions = transactions
        self._scheduler = scheduler

    def write(self, transactional_id: str, decide: Decide, error_of: Callable[[Any], ErrorCode], on_done: OnDone) -> None:
        """As CoordinatorService.write. ``error_of`` finds the code in a response."""
        attempts = 0

        def ask() -> None:
            nonlocal attempts
            attempts += 1
            self._transactions.write(transactional_id, decide, answered)

        def answered(response: Any, error: Exception | None) -> None:
            is_concurrent = error is None and error_of(response) is ErrorCode.CONCURRENT_TRANSACTIONS
            if (
                not is_concurrent
                or attempts >= ATTEMPTS_MAX
                or not self._wait(transactional_id, ask, partial(on_done, response, None))
            ):
                on_done(response, error)

        ask()

    def _wait(self, transactional_id: str, again: Callable[[], None], give_up: Callable[[], None]) -> bool:
        is_over = False

        def settled(_: Exception | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                again()

        def expired() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                if machine is not None:
                    machine.stop_waiting(transactional_id, settled)
                give_up()

        try:
            machine = self._transactions.shard_of(transactional_id).machine
        except CoordinatorError:
            return False
        if machine is None:
            return False
        if not machine.is_ending(transactional_id):
            # The answer waited for the log, as answers do, and the end was committed in front of it.
            again()
            return True
        timer = self._scheduler.schedule(SETTLE_MS_MAX, expired)
        if not machine.when_settled(transactional_id, settled):
            timer.cancel()
            return False
        return True
