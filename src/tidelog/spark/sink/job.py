"""The commit protocol of the sink: what the ledger says about a job, what a run may do to it, and the steps that do it.

**The entry.** The ledger has one entry per job, JSON under the job's name:

    {"version": 1, "run": "...", "generation": 3, "batch": 41, "is_ended": false, "past_runs": ["..."],
     "name": "<common prefix of the ids>", "transactions": [["0-0-0", <producer id>, <epoch>], ...]}

- ``run`` owns the job: only it may add a batch. A run takes the job over before its tasks open transactions, and a run that has
  lost the job never gets it back.
- ``batch`` is the last committed batch. Being in the entry is what commits it: its transactions must be committed, whatever
  happens. ``is_ended`` says that all of them are, and then they are no longer listed.
- Batch numbers only grow, and the next batch is added only when the last one has ended.

**The steps**, and what a crash leaves at each:

| step | after a crash there |
|---|---|
| ``start``: the run takes the job over | the next run does the same |
| tasks write, and leave their transactions open | the next run aborts them, and writes the batch again |
| ``commit`` 1: all are open, with id and epoch of the tasks | the same |
| ``commit`` 2: one ledger record, the commit point | the next run commits the transactions, and drops the rows |
| ``commit`` 3: each transaction is committed | the next run commits the rest |
| ``commit`` 4: the ledger says that all are | the next run finds them committed |

An earlier run cannot add to the ledger once a later one has taken the job over, because every change is compare-and-set. So a
task may take over a transactional id only after ``start``, when no earlier run can commit what was open under it.

Within a run, Spark may run a stage again while tasks of its first attempt have finished or are still running, and the answer of
either one may reach the commit. PySpark does not tell a task the attempt of its stage, so two of them have the same numbers: a
task that finds its id open leaves it alone and takes another (``name_for``). Transactions that nobody commits are aborted when
the batch is committed, so that an open id always belongs to this batch.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import TidelogError
from tidelog.client.transactions.admin import TransactionDescription, TransactionHandle, TransactionListing
from tidelog.client.wire.errors import BrokerError, ClientError
from tidelog.spark.sink.names import ATTEMPTS_PER_STAGE, shown, slot_in, slot_of, transactional_id

# -- what stops a write -------------------------------------------------------------------------------------------------------


class Superseded(TidelogError):
    """Another run of the same query, or of a write with the same id, has begun after this one."""


class BehindLedger(TidelogError):
    """The checkpoint is older than what was already committed."""


class TransactionLost(TidelogError):
    """A task's transaction is no longer open, and was not committed: the batch must be repeated."""


class BatchIncomplete(TidelogError):
    """The ledger has the batch, but one of its transactions was not committed: rows are missing, so no run may continue."""


class LedgerUnusable(TidelogError):
    """The ledger's topic, or its content, is not what it should be."""


# -- the entry of a job in the ledger -----------------------------------------------------------------------------------------


VERSION = 1
NO_BATCH = -1
# A run that was forgotten would be taken for a new one, and would stop the current one: a nuisance, not a loss.
PAST_RUNS_MAX = 16
# Topics accept records of a megabyte by default. This is the entry of some 20,000 tasks.
ENTRY_BYTES_MAX = 900_000

OPEN = "Ongoing"
COMMITTED = ("PrepareCommit", "CompleteCommit")


class LedgerEntry(NamedTuple):
    run: str
    generation: int = 0
    batch: int = NO_BATCH
    is_ended: bool = True
    transactions: tuple[TransactionHandle, ...] = ()
    past_runs: tuple[str, ...] = ()


def encode_entry(entry: LedgerEntry) -> bytes:
    names = [each.transactional_id for each in entry.transactions]
    name = _common_beginning(names)
    document = {
        "version": VERSION,
        "run": entry.run,
        "generation": entry.generation,
        "batch": entry.batch,
        "is_ended": entry.is_ended,
        "past_runs": entry.past_runs,
        "name": name,
        "transactions": [[each[0][len(name) :], each[1], each[2]] for each in entry.transactions],
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    if len(data) > ENTRY_BYTES_MAX:
        raise LedgerUnusable(f"{len(names)} tasks in one batch are too many for the ledger: use coalesce() before the write")
    return data


def decode_entry(data: bytes) -> LedgerEntry:
    try:
        document = json.loads(data)
        version = document["version"]
        if version != VERSION:
            raise LedgerUnusable(f"the ledger has an entry of version {version}: a newer Tidelog wrote it")
        return LedgerEntry(
            str(document["run"]),
            int(document["generation"]),
            int(document["batch"]),
            bool(document["is_ended"]),
            tuple(TransactionHandle(document["name"] + each[0], int(each[1]), int(each[2])) for each in document["transactions"]),
            tuple(str(each) for each in document["past_runs"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LedgerUnusable(f"the ledger has an entry that Tidelog did not write: {data[:200]!r}") from error


def _common_beginning(names: Sequence[str]) -> str:
    if not names:
        return ""
    first, last = min(names), max(names)
    size = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:size]


# -- what a run may do -----------------------------------------------------------------------------------------------------------


def claimed(job: str, entry: LedgerEntry | None, run: str) -> LedgerEntry | None:
    """The entry with which the run takes the job over; None when it owns the job already."""
    if entry is None:
        return LedgerEntry(run)
    if entry.run == run:
        return None
    if run in entry.past_runs:
        raise superseded(job)
    past_runs = (*entry.past_runs, entry.run)[-PAST_RUNS_MAX:]
    return entry._replace(run=run, generation=entry.generation + 1, past_runs=past_runs)


def is_replay(job: str, entry: LedgerEntry, batch: int) -> bool:
    """Whether the batch is committed already, so that its rows must be dropped."""
    if batch < entry.batch:
        raise BehindLedger(
            f"{shown(job)}: batch {batch} comes after batch {entry.batch} was committed: the checkpoint is older than the ledger "
            "(was it restored from a copy?). Begin with a new checkpoint, at offsets that you know to be right"
        )
    return batch == entry.batch


def recorded(
    job: str, entry: LedgerEntry | None, run: str, batch: int, transactions: Sequence[TransactionHandle]
) -> LedgerEntry | None:
    """The entry that commits the batch; None when the batch is committed already, by these transactions or by earlier ones."""
    if entry is None or entry.run != run:
        raise superseded(job)
    if is_replay(job, entry, batch):
        return None
    if not entry.is_ended:
        raise LedgerUnusable(f"{shown(job)}: batch {batch} cannot follow batch {entry.batch}, which has not ended")
    return entry._replace(batch=batch, is_ended=False, transactions=tuple(transactions))


def ended(entry: LedgerEntry | None, batch: int) -> LedgerEntry | None:
    """The entry that marks the batch as ended; None when it is marked already, or the ledger is further."""
    if entry is None or entry.batch != batch or entry.is_ended:
        return None
    return entry._replace(is_ended=True, transactions=())


def superseded(job: str) -> Superseded:
    return Superseded(f"another run of {shown(job)} has begun after this one, and goes on in its place; this one ends")


# -- what is to become of transactions -------------------------------------------------------------------------------------------


def check_open(handles: Sequence[TransactionHandle], found: dict[str, TransactionDescription]) -> None:
    """Check before the commit that each transaction is as its task left it."""
    for handle in handles:
        description = found.get(handle.transactional_id)
        if description is None or description.handle != handle or description.state != OPEN:
            raise TransactionLost(
                f"the transaction of {handle.transactional_id} (producer {handle.producer_id}, epoch {handle.producer_epoch}) is "
                f"{state_of(description)} before its batch was committed: it timed out, or another task took it over. Nothing of "
                "the batch was committed"
            )


def is_committed(handle: TransactionHandle, description: TransactionDescription | None) -> bool:
    """Whether the transaction was committed. A refused commit is harmless if this very transaction is committed already, by
    whomever."""
    return description is not None and description.handle == handle and description.state in COMMITTED


def leftovers(entry: LedgerEntry, found: dict[str, TransactionDescription]) -> list[TransactionHandle]:
    """The open transactions that the ledger does not have; they must be aborted."""
    kept = set(entry.transactions)
    return [each.handle for each in found.values() if each.state == OPEN and each.handle not in kept]


def state_of(description: TransactionDescription | None) -> str:
    if description is None:
        return "unknown to its coordinator"
    return f"{description.state} (producer {description.producer_id}, epoch {description.producer_epoch})"


# -- the steps ----------------------------------------------------------------------------------------------------------------


# Spark abandons a stage after four attempts in a row (spark.stage.maxConsecutiveAttempts).
STAGE_ATTEMPTS_MAX = 32
ABORT_PAUSES_SECONDS = (0.0, 0.3, 1.0)

Decision = Callable[[LedgerEntry | None], LedgerEntry | None]


class JobLedger(Protocol):
    def read(self) -> LedgerEntry | None:
        """The entry of the job, as it is committed now; it may change at any moment."""

    def update(self, decide: Decision) -> tuple[LedgerEntry | None, bool]:
        """Compare and set. Returns the entry afterwards, and whether it was changed. ``decide`` returns None to leave it as it
        is."""


class TransactionCoordinators(Protocol):
    def list_transactions(self, *, states: Sequence[str]) -> list[TransactionListing]: ...

    def describe_transactions(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]: ...

    def end_transactions(
        self, transactions: Sequence[TransactionHandle], *, is_commit: bool
    ) -> dict[TransactionHandle, ClientError]: ...


class JobStart(NamedTuple):
    generation: int
    is_replay: bool
    """Whether the batch is committed already, so that its rows must be dropped."""


class SinkJob:
    def __init__(
        self,
        prefix: str,
        name: str,
        ledger: JobLedger,
        coordinators: TransactionCoordinators,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._prefix = prefix
        self._ledger = ledger
        self._coordinators = coordinators
        self._pause = pause
        self._cleaned_run = ""
        self._started: LedgerEntry | None = None

    def start(self, run: str, batch: int) -> JobStart:
        """Called before anything of the batch is written, in every process that writes. The first process of a run takes the job
        over."""
        entry = self._started if self._started is not None and self._started.run == run else self._ledger.read()
        if entry is None or entry.run != run:
            entry, is_first = self._ledger.update(lambda current: claimed(self.name, current, run))
            if entry is None:
                raise superseded(self.name)
            if is_first:
                self.finish(entry)
                self._clean_up(entry)
        # Within a run batches only grow, and nobody but this run adds to the ledger, so reading it once is enough.
        self._started = entry
        return JobStart(entry.generation, is_replay(self.name, entry, batch))

    def name_for(self, generation: int, partition: int, attempt: int) -> str:
        """Return a transactional id for a task that no other task of its batch holds."""
        for stage_attempt in range(STAGE_ATTEMPTS_MAX):
            number = stage_attempt * ATTEMPTS_PER_STAGE + attempt
            name = transactional_id(self._prefix, self.name, generation, partition, number)
            found = self._coordinators.describe_transactions([name]).get(name)
            if found is None or found.state != OPEN:
                return name
        raise TidelogError(f"{shown(self.name)}: task {partition} has {STAGE_ATTEMPTS_MAX} transactions open in one batch")

    def commit(self, run: str, batch: int, transactions: Sequence[TransactionHandle]) -> None:
        """``transactions`` are those of all tasks that wrote rows; empty when the batch was a replay, or had no rows."""
        if not transactions:
            self._finish_replay(run, batch)
            return
        self.check(transactions)
        entry = self.record(run, batch, transactions)
        self.finish(entry)
        self._clean_up(entry, is_batch_done=True)

    def abort(self, run: str) -> None:
        """Abort whatever a failed run has open, but not what the ledger has: its commit may have failed after the point of no
        return. This uses compare-and-set, so that a record that is still under way is there now or will never be.

        Tasks that Spark is stopping may still open transactions, so this looks for them more than once. (Whatever comes later
        times out.)"""
        entry, _ = self._ledger.update(lambda _: None)
        if entry is None or entry.run != run:
            return  # Another run continues, and has cleaned up after this one.
        for seconds in ABORT_PAUSES_SECONDS:
            self._pause(seconds)
            self._abort_open(entry, lambda _: True)

    # -- the steps of a commit ------------------------------------------------------------------------------------------------

    def check(self, transactions: Sequence[TransactionHandle]) -> None:
        names = [each.transactional_id for each in transactions]
        check_open(transactions, self._coordinators.describe_transactions(names))

    def record(self, run: str, batch: int, transactions: Sequence[TransactionHandle]) -> LedgerEntry:
        entry, _ = self._ledger.update(lambda current: recorded(self.name, current, run, batch, transactions))
        if entry is None:
            raise superseded(self.name)
        return entry

    def finish(self, entry: LedgerEntry) -> None:
        """Roll forward from the commit point to the end, as often as it takes."""
        if not entry.is_ended:
            self.end_all(entry)
            self.mark_ended(entry)

    def end_all(self, entry: LedgerEntry) -> None:
        failures = self._coordinators.end_transactions(entry.transactions, is_commit=True)
        refused = {handle: error for handle, error in failures.items() if _is_refusal(error)}
        found = self._coordinators.describe_transactions([handle.transactional_id for handle in refused]) if refused else {}
        for handle, error in refused.items():
            description = found.get(handle.transactional_id)
            if not is_committed(handle, description):
                raise BatchIncomplete(
                    f"{shown(self.name)}: batch {entry.batch} is in the ledger, but the transaction of {handle.transactional_id} "
                    f"(producer {handle.producer_id}, epoch {handle.producer_epoch}) cannot be committed: {error}. It is "
                    f"{state_of(description)}: the rows of this task are missing. Find out why (was nobody there for "
                    "longer than transactionTimeoutMs?) before you go on with a new checkpoint"
                )
        for handle, error in failures.items():
            if handle not in refused:
                raise error

    def mark_ended(self, entry: LedgerEntry) -> None:
        self._ledger.update(lambda current: ended(current, entry.batch))

    # -- what others left -----------------------------------------------------------------------------------------------------

    def _clean_up(self, entry: LedgerEntry, *, is_batch_done: bool = False) -> None:
        """Aborts transactions of other runs, once for each run in each process, since the first process to do so may have died in
        the middle; and those of this run when a batch is done, because before that its tasks may be writing."""
        own = slot_of(entry.generation)
        is_cleaned = self._cleaned_run == entry.run
        self._abort_open(entry, lambda slot: is_batch_done if slot == own else not is_cleaned)
        self._cleaned_run = entry.run

    def _abort_open(self, entry: LedgerEntry, is_wanted: Callable[[int], bool]) -> None:
        """Aborts open transactions that the ledger lacks, in the wanted slots."""
        slots = {
            each.transactional_id: slot_in(self._prefix, self.name, each.transactional_id)
            for each in self._coordinators.list_transactions(states=[OPEN])
        }
        names = [name for name, slot in slots.items() if slot is not None and is_wanted(slot)]
        if names:
            strays = leftovers(entry, self._coordinators.describe_transactions(names))
            self._coordinators.end_transactions(strays, is_commit=False)

    def _finish_replay(self, run: str, batch: int) -> None:
        entry = self._ledger.read()
        if entry is not None and entry.batch == batch:
            if entry.run != run:
                raise superseded(self.name)
            self.finish(entry)


def _is_refusal(error: ClientError) -> bool:
    """Whether the refusal is final and not temporary."""
    return isinstance(error, BrokerError) and not error.code.is_retriable
