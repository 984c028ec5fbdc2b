"""What the ledger has of a job, and what may become of it. No input and no output: decisions only.

One entry per job, JSON under the job's name:

    {"version": 1, "run": "...", "generation": 3, "batch": 41, "is_ended": false, "past_runs": ["..."],
     "name": "<what the ids begin with>", "transactions": [["0-0-0", <producer id>, <epoch>], ...]}

- ``run`` owns the job: only it may add a batch. A run takes the job over before its tasks open transactions, and a run that lost
  it never gets it back.
- ``batch`` is the last one that is committed, which is what the entry's being there means: its transactions are to be committed,
  whatever happens. ``is_ended`` says that all of them are, and then they are not listed any more.
- Batches only grow, and the next one is added only when the last has ended.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.client.transactions.types import TransactionDescription, TransactionHandle
from tidelog.spark.sink.errors import BehindLedger, LedgerUnusable, Superseded, TransactionLost
from tidelog.spark.sink.names import shown

VERSION = 1
NO_BATCH = -1
# A run that was forgotten would be taken for a new one, and would stop the one that is under way: a nuisance, not a loss.
PAST_RUNS_MAX = 16
# Topics take records of a megabyte by default. This is the entry of some 20,000 tasks.
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
        raise LedgerUnusable(f"the ledger has an entry that is none of ours: {data[:200]!r}") from error


def _common_beginning(names: Sequence[str]) -> str:
    if not names:
        return ""
    first, last = min(names), max(names)
    size = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:size]


# -- what a run may do -----------------------------------------------------------------------------------------------------------


def claimed(job: str, entry: LedgerEntry | None, run: str) -> LedgerEntry | None:
    """The entry with which the run takes the job over; None when it has it."""
    if entry is None:
        return LedgerEntry(run)
    if entry.run == run:
        return None
    if run in entry.past_runs:
        raise superseded(job)
    past_runs = (*entry.past_runs, entry.run)[-PAST_RUNS_MAX:]
    return entry._replace(run=run, generation=entry.generation + 1, past_runs=past_runs)


def is_replay(job: str, entry: LedgerEntry, batch: int) -> bool:
    """Whether the batch is committed already: its rows are to be dropped."""
    if batch < entry.batch:
        raise BehindLedger(
            f"{shown(job)}: batch {batch} comes after batch {entry.batch} was committed: the checkpoint is older than the ledger "
            "(was it restored from a copy?). Begin with a new checkpoint, at offsets that you know to be right"
        )
    return batch == entry.batch


def recorded(
    job: str, entry: LedgerEntry | None, run: str, batch: int, transactions: Sequence[TransactionHandle]
) -> LedgerEntry | None:
    """The entry that commits the batch; None when the batch is committed: by these transactions, or by others before them."""
    if entry is None or entry.run != run:
        raise superseded(job)
    if is_replay(job, entry, batch):
        return None
    if not entry.is_ended:
        raise LedgerUnusable(f"{shown(job)}: batch {batch} cannot follow batch {entry.batch}, which has not ended")
    return entry._replace(batch=batch, is_ended=False, transactions=tuple(transactions))


def ended(entry: LedgerEntry | None, batch: int) -> LedgerEntry | None:
    """None when that is said already, or the ledger is further."""
    if entry is None or entry.batch != batch or entry.is_ended:
        return None
    return entry._replace(is_ended=True, transactions=())


def superseded(job: str) -> Superseded:
    return Superseded(f"another run of {shown(job)} has begun after this one, and goes on in its place; this one ends")


# -- what is to become of transactions -------------------------------------------------------------------------------------------


def check_open(handles: Sequence[TransactionHandle], found: dict[str, TransactionDescription]) -> None:
    """Before the commit: each must be as its task left it."""
    for handle in handles:
        description = found.get(handle.transactional_id)
        if description is None or description.handle != handle or description.state != OPEN:
            raise TransactionLost(
                f"the transaction of {handle.transactional_id} (producer {handle.producer_id}, epoch {handle.producer_epoch}) is "
                f"{state_of(description)} before its batch was committed: it timed out, or another task took it over. Nothing of "
                "the batch was committed"
            )


def is_committed(handle: TransactionHandle, description: TransactionDescription | None) -> bool:
    """A refusal to commit is no trouble when it is committed: by whom does not matter, but this very transaction it must be."""
    return description is not None and description.handle == handle and description.state in COMMITTED


def leftovers(entry: LedgerEntry, found: dict[str, TransactionDescription]) -> list[TransactionHandle]:
    """Open transactions that the ledger does not have: they are to be aborted."""
    kept = set(entry.transactions)
    return [each.handle for each in found.values() if each.state == OPEN and each.handle not in kept]


def state_of(description: TransactionDescription | None) -> str:
    if description is None:
        return "unknown to its coordinator"
    return f"{description.state} (producer {description.producer_id}, epoch {description.producer_epoch})"
