"""How a decision about one id becomes a record, and what follows once that is committed."""

from functools import partial
from typing import Any

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.records.header import NO_PRODUCER_EPOCH
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.markers import TransactionMarkers
from tidelog.transactions.records import TransactionRecord, TransactionValue
from tidelog.transactions.state import PREPARED_STATES
from tidelog.transactions.table import TransactionTable


class Decisions:
    """What every operation is given."""

    __slots__ = ("environment", "markers", "table")

    def __init__(self, environment: TransactionEnvironment, table: TransactionTable, markers: TransactionMarkers) -> None:
        self.environment = environment
        self.table = table
        self.markers = markers

    def now_ms(self) -> int:
        return self.environment.clock.now_ms()

    def decide(
        self, transactional_id: str, value: TransactionValue, response: Any, last_producer_epoch: int = NO_PRODUCER_EPOCH
    ) -> CoordinatorResult:
        """Write ``value``; the markers of an end that is decided go out when it is committed, and not before."""
        version = min(1, self.environment.transaction_version())
        record = TransactionRecord(transactional_id, value, version, last_producer_epoch)

        committed = partial(self._committed, transactional_id, value.state in PREPARED_STATES)
        return CoordinatorResult([record], response, committed)

    def _committed(self, transactional_id: str, is_prepared: bool, error: Exception | None) -> None:
        if error is None:
            self.table.settle(transactional_id)
            if is_prepared:
                self.markers.begin(transactional_id)


def answer(response: Any) -> CoordinatorResult:
    """Nothing is written; the answer still waits for what it depends on."""
    return CoordinatorResult(response=response)
