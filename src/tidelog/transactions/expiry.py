"""Transactional ids that were not used for ``transactional.id.expiration.ms`` are forgotten: a tombstone each.

An id with a transaction never expires. All ids are looked at, a part at a time, every
``transaction.remove.expired.transaction.cleanup.interval.ms``.
"""

from tidelog.coordinator.machine import CoordinatorResult
from tidelog.transactions.decisions import Decisions
from tidelog.transactions.records import TransactionRecord
from tidelog.transactions.state import EXPIRABLE_STATES
from tidelog.transactions.transaction import encoded_bytes_max

# About a millisecond.
IDS_PER_SLICE = 2_000

_NAME = "expiry"


class TransactionalIdExpiry:
    __slots__ = ("_decisions",)

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def start(self) -> None:
        environment = self._decisions.environment
        interval_ms = environment.settings["transaction.remove.expired.transaction.cleanup.interval.ms"]
        environment.timers.schedule(_NAME, interval_ms, lambda: self._look_on(list(self._decisions.table)))

    def _look_on(self, ids: list[str]) -> CoordinatorResult:
        """``ids`` are those not looked at yet."""
        environment = self._decisions.environment
        bytes_left = environment.record_bytes_max()
        version = min(1, environment.transaction_version())
        tombstones: list[TransactionRecord] = []
        looked_at = 0
        for transactional_id in ids[:IDS_PER_SLICE]:
            if self._is_expired(transactional_id):
                size = encoded_bytes_max(transactional_id, ())
                if size > bytes_left and tombstones:
                    break  # The rest of the batch's size is for the next one.
                bytes_left -= size
                tombstones.append(TransactionRecord(transactional_id, None, version))
            looked_at += 1
        if looked_at < len(ids):
            environment.timers.schedule(_NAME, 0, lambda: self._look_on(ids[looked_at:]))
        else:
            self.start()
        return CoordinatorResult(tombstones)

    def _is_expired(self, transactional_id: str) -> bool:
        metadata = self._decisions.table.find(transactional_id)
        if metadata is None or metadata.pending or metadata.value.state not in EXPIRABLE_STATES:
            return False
        age_ms = self._decisions.now_ms() - metadata.value.last_update_timestamp_ms
        return bool(age_ms >= self._decisions.environment.settings["transactional.id.expiration.ms"])
