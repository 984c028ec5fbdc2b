"""The life of a job: a run starts, commits batches, or aborts one. What each step leaves, wherever a crash comes:

| step | after a crash there |
|---|---|
| ``start``: the run takes the job over | the next run does the same |
| tasks write, and leave their transactions open | the next run aborts them, and writes the batch again |
| ``commit`` 1: all are open, with id and epoch of the tasks | likewise |
| ``commit`` 2: one ledger record, the commit point | the next run commits the transactions, and drops the rows |
| ``commit`` 3: each transaction is committed | the next run commits the rest |
| ``commit`` 4: the ledger says that all are | the next run finds them committed |

Earlier runs cannot add to the ledger once a later one has taken the job over: every change of it is compare-and-set. So a task
may take over a transactional id only after ``start``, when no earlier run can commit what was open under it.

Within a run, Spark may run a stage again while tasks of its first attempt have finished or are still running, and either one's
answer may come to the commit. PySpark does not tell a task the attempt of its stage, so two of them have the same numbers:
whoever finds its id open leaves it alone and takes another (``name_for``). What nobody commits is aborted when the batch is
committed, so that an open id is always one of this batch.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import TidelogError
from tidelog.client.transactions.errors import BrokerError, ClientError
from tidelog.client.transactions.types import TransactionDescription, TransactionHandle, TransactionListing
from tidelog.spark.sink import entry as decisions
from tidelog.spark.sink.entry import LedgerEntry
from tidelog.spark.sink.errors import BatchIncomplete
from tidelog.spark.sink.names import ATTEMPTS_PER_STAGE, shown, slot_in, slot_of, transactional_id

# Spark gives a stage up after four attempts in a row (spark.stage.maxConsecutiveAttempts).
STAGE_ATTEMPTS_MAX = 32
ABORT_PAUSES_SECONDS = (0.0, 0.3, 1.0)

Decision = Callable[[LedgerEntry | None], LedgerEntry | None]


class Ledger(Protocol):
    def read(self) -> LedgerEntry | None:
        """The entry of the job, as it is committed now; it may change in the next moment."""

    def update(self, decide: Decision) -> tuple[LedgerEntry | None, bool]:
        """Compare and set: the entry afterwards, and whether it was changed. ``decide`` gives None to leave it as it is."""


class Coordinators(Protocol):
    def list_transactions(self, *, states: Sequence[str]) -> list[TransactionListing]: ...

    def describe_transactions(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]: ...

    def end_transactions(
        self, transactions: Sequence[TransactionHandle], *, is_commit: bool
    ) -> dict[TransactionHandle, ClientError]: ...


class Start(NamedTuple):
    generation: int
    is_replay: bool
    """The batch is committed: its rows are to be dropped."""


class Job:
    def __init__(
        self,
        prefix: str,
        name: str,
        ledger: Ledger,
        coordinators: Coordinators,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._prefix = prefix
        self._ledger = ledger
        self._coordinators = coordinators
        self._pause = pause
        self._cleaned_run = ""
        self._started: LedgerEntry | None = None

    def start(self, run: str, batch: int) -> Start:
        """Before anything of the batch is written, in every process that writes. The first of a run takes the job over."""
        entry = self._started if self._started is not None and self._started.run == run else self._ledger.read()
        if entry is None or entry.run != run:
            entry, is_first = self._ledger.update(lambda current: decisions.claimed(self.name, current, run))
            if entry is None:
                raise decisions.superseded(self.name)
            if is_first:
                self.finish(entry)
                self._clean_up(entry)
        # Within a run batches only grow, and nobody but this run adds to the ledger: what was read once says enough.
        self._started = entry
        return Start(entry.generation, decisions.is_replay(self.name, entry, batch))

    def name_for(self, generation: int, partition: int, attempt: int) -> str:
        """The transactional id for a task, that no other task of its batch holds."""
        for stage_attempt in range(STAGE_ATTEMPTS_MAX):
            number = stage_attempt * ATTEMPTS_PER_STAGE + attempt
            name = transactional_id(self._prefix, self.name, generation, partition, number)
            found = self._coordinators.describe_transactions([name]).get(name)
            if found is None or found.state != decisions.OPEN:
                return name
        raise TidelogError(f"{shown(self.name)}: task {partition} has {STAGE_ATTEMPTS_MAX} transactions open in one batch")

    def commit(self, run: str, batch: int, transactions: Sequence[TransactionHandle]) -> None:
        """``transactions`` of all tasks that wrote rows: none when the batch was a replay, or had no rows."""
        if not transactions:
            self._finish_replay(run, batch)
            return
        self.check(transactions)
        entry = self.record(run, batch, transactions)
        self.finish(entry)
        self._clean_up(entry, is_batch_done=True)

    def abort(self, run: str) -> None:
        """When the run has failed, whatever it has open, but not what the ledger has: its commit may have failed after the point
        of no return. By compare-and-set, so that a record that is still under way is there now or will never be.

        Tasks that Spark is ending may open theirs yet: they are looked for more than once. (Whatever comes later times out.)"""
        entry, _ = self._ledger.update(lambda _: None)
        if entry is None or entry.run != run:
            return  # Another run goes on, and has cleaned up after this one.
        for seconds in ABORT_PAUSES_SECONDS:
            self._pause(seconds)
            self._abort_open(entry, lambda _: True)

    # -- the steps of a commit ------------------------------------------------------------------------------------------------

    def check(self, transactions: Sequence[TransactionHandle]) -> None:
        names = [each.transactional_id for each in transactions]
        decisions.check_open(transactions, self._coordinators.describe_transactions(names))

    def record(self, run: str, batch: int, transactions: Sequence[TransactionHandle]) -> LedgerEntry:
        entry, _ = self._ledger.update(lambda current: decisions.recorded(self.name, current, run, batch, transactions))
        if entry is None:
            raise decisions.superseded(self.name)
        return entry

    def finish(self, entry: LedgerEntry) -> None:
        """Rolls forward: from the commit point to the end, as often as it takes."""
        if not entry.is_ended:
            self.end_all(entry)
            self.mark_ended(entry)

    def end_all(self, entry: LedgerEntry) -> None:
        failures = self._coordinators.end_transactions(entry.transactions, is_commit=True)
        refused = {handle: error for handle, error in failures.items() if _is_refusal(error)}
        found = self._coordinators.describe_transactions([handle.transactional_id for handle in refused]) if refused else {}
        for handle, error in refused.items():
            description = found.get(handle.transactional_id)
            if not decisions.is_committed(handle, description):
                raise BatchIncomplete(
                    f"{shown(self.name)}: batch {entry.batch} is in the ledger, but the transaction of {handle.transactional_id} "
                    f"(producer {handle.producer_id}, epoch {handle.producer_epoch}) cannot be committed: {error}. It is "
                    f"{decisions.state_of(description)}: the rows of this task are missing. Find out why (was nobody there for "
                    "longer than transactionTimeoutMs?) before you go on with a new checkpoint"
                )
        for handle, error in failures.items():
            if handle not in refused:
                raise error

    def mark_ended(self, entry: LedgerEntry) -> None:
        self._ledger.update(lambda current: decisions.ended(current, entry.batch))

    # -- what others left -----------------------------------------------------------------------------------------------------

    def _clean_up(self, entry: LedgerEntry, *, is_batch_done: bool = False) -> None:
        """Of other runs once for each run in each process: the first to do it may have ended in the middle. Of this run when a
        batch is done: before, its tasks may be writing."""
        own = slot_of(entry.generation)
        is_cleaned = self._cleaned_run == entry.run
        self._abort_open(entry, lambda slot: is_batch_done if slot == own else not is_cleaned)
        self._cleaned_run = entry.run

    def _abort_open(self, entry: LedgerEntry, is_wanted: Callable[[int], bool]) -> None:
        """Those that the ledger lacks, in the slots that are wanted."""
        slots = {
            each.transactional_id: slot_in(self._prefix, self.name, each.transactional_id)
            for each in self._coordinators.list_transactions(states=[decisions.OPEN])
        }
        names = [name for name, slot in slots.items() if slot is not None and is_wanted(slot)]
        if names:
            strays = decisions.leftovers(entry, self._coordinators.describe_transactions(names))
            self._coordinators.end_transactions(strays, is_commit=False)

    def _finish_replay(self, run: str, batch: int) -> None:
        entry = self._ledger.read()
        if entry is not None and entry.batch == batch:
            if entry.run != run:
                raise decisions.superseded(self.name)
            self.finish(entry)


def _is_refusal(error: ClientError) -> bool:
    """Not for the time being, but for good."""
    return isinstance(error, BrokerError) and not error.code.is_retriable
