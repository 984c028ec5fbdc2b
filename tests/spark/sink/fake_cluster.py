"""A cluster in memory: transactions, a ledger, and what a read_committed reader sees. It can crash its caller."""

from collections.abc import Sequence

from tidelog.client.transactions.admin import TransactionDescription, TransactionHandle, TransactionListing
from tidelog.client.wire.errors import BrokerError, ClientError
from tidelog.spark.sink.job import Decision, LedgerEntry
from tidelog.wire.errors import ErrorCode


class Crash(BaseException):
    """The process is gone: nothing catches it."""


class FakeCluster:
    """``crash_at`` counts the effects (a ledger record, the end of one transaction): the caller is gone before that one, or right
    after it when ``is_after``: done, but nobody heard of it."""

    def __init__(self) -> None:
        self.entry: LedgerEntry | None = None
        self.visible: list[str] = []
        self.effects: list[str] = []
        self.crash_at: int | None = None
        self.is_after = False
        self._states: dict[str, tuple[TransactionHandle, str, list[str]]] = {}

    def restart(self) -> None:
        self.effects, self.crash_at = [], None

    def _effect(self, name: str) -> bool:
        """True when the caller is to be gone afterwards."""
        is_last = len(self.effects) == self.crash_at
        if is_last and not self.is_after:
            raise Crash(name)
        self.effects.append(name)
        return is_last

    # -- tasks ----------------------------------------------------------------------------------------------------------------

    def write(self, transactional_id: str, rows: Sequence[str]) -> TransactionHandle:
        """What a task does: takes the id over, which aborts what was open, and leaves its own transaction open."""
        previous = self._states.get(transactional_id)
        epoch = 0 if previous is None else previous[0].producer_epoch + 1
        handle = TransactionHandle(transactional_id, 1000 + len(self._states) if previous is None else previous[0][1], epoch)
        self._states[transactional_id] = (handle, "Ongoing", list(rows))
        return handle

    def time_out(self, handle: TransactionHandle) -> None:
        fenced = handle._replace(producer_epoch=handle.producer_epoch + 1)
        self._states[handle.transactional_id] = (fenced, "CompleteAbort", [])

    @property
    def open_ids(self) -> list[str]:
        return [name for name, (_, state, _) in self._states.items() if state == "Ongoing"]

    # -- Ledger ---------------------------------------------------------------------------------------------------------------

    def read(self) -> LedgerEntry | None:
        return self.entry

    def update(self, decide: Decision) -> tuple[LedgerEntry | None, bool]:
        wanted = decide(self.entry)
        if wanted is None:
            return self.entry, False
        is_last = self._effect("ledger")
        self.entry = wanted
        if is_last:
            raise Crash("ledger")
        return wanted, True

    # -- Coordinators ---------------------------------------------------------------------------------------------------------

    def list_transactions(self, *, states: Sequence[str]) -> list[TransactionListing]:
        return [
            TransactionListing(name, 1, handle[1], state) for name, (handle, state, _) in self._states.items() if state in states
        ]

    def describe_transactions(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        return {
            name: TransactionDescription(name, 1, handle[1], handle[2], state, 1, 1, ())
            for name, (handle, state, _) in self._states.items()
            if name in transactional_ids
        }

    def end_transactions(
        self, transactions: Sequence[TransactionHandle], *, is_commit: bool
    ) -> dict[TransactionHandle, ClientError]:
        failures: dict[TransactionHandle, ClientError] = {}
        wanted = "CompleteCommit" if is_commit else "CompleteAbort"
        for transaction in transactions:
            handle, state, rows = self._states[transaction.transactional_id]
            if handle != transaction:
                failures[transaction] = BrokerError(ErrorCode.PRODUCER_FENCED, "it was not ended")
            elif state == "Ongoing":
                is_last = self._effect("commit" if is_commit else "abort")
                self._states[transaction.transactional_id] = (handle, wanted, [])
                self.visible += rows if is_commit else []
                if is_last:
                    raise Crash("end")
            elif state != wanted:
                failures[transaction] = BrokerError(ErrorCode.INVALID_TXN_STATE, "it was not ended")
        return failures
