"""What may become of a ledger entry."""

import pytest

from tidelog.client.transactions.types import TransactionDescription, TransactionHandle
from tidelog.spark.sink.entry import (
    ENTRY_BYTES_MAX,
    PAST_RUNS_MAX,
    LedgerEntry,
    check_open,
    claimed,
    decode_entry,
    encode_entry,
    ended,
    is_committed,
    is_replay,
    leftovers,
    recorded,
)
from tidelog.spark.sink.errors import BehindLedger, LedgerUnusable, Superseded, TransactionLost
from tidelog.spark.sink.names import GENERATION_SLOTS, slot_in, transactional_id, write_job

A, B = TransactionHandle("p-job-0-0-0", 5, 1), TransactionHandle("p-job-0-1-0", 6, 0)


def described(handle: TransactionHandle, state: str = "Ongoing") -> TransactionDescription:
    return TransactionDescription(handle[0], 1, handle[1], handle[2], state, 1, 1, ())


def test_an_entry_comes_back_as_it_was() -> None:
    for entry in (LedgerEntry("r"), LedgerEntry("r", 3, 7, False, (A, B), ("x", "y")), LedgerEntry("r", 3, 7, False, (A,), ())):
        assert decode_entry(encode_entry(entry)) == entry


def test_an_entry_of_many_tasks_is_small_and_one_of_too_many_is_refused() -> None:
    def entry(count: int) -> LedgerEntry:
        handles = [TransactionHandle(f"tidelog-spark-{'q' * 36}-0-{n}-0", n, 0) for n in range(count)]
        return LedgerEntry("r" * 36, 0, 1, False, tuple(handles))

    assert len(encode_entry(entry(10_000))) < ENTRY_BYTES_MAX / 2
    with pytest.raises(LedgerUnusable, match="60000 tasks"):
        encode_entry(entry(60_000))


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "run": "x"}', b"\xff"])
def test_what_is_no_entry_of_ours_is_not_guessed_at(data: bytes) -> None:
    with pytest.raises(LedgerUnusable):
        decode_entry(data)


def test_a_run_takes_a_job_over_once_and_for_all() -> None:
    first = claimed("job", None, "one")
    assert first == LedgerEntry("one")
    assert claimed("job", first, "one") is None
    busy = LedgerEntry("one", 0, 4, False, (A,))
    second = claimed("job", busy, "two")
    assert second == LedgerEntry("two", 1, 4, False, (A,), ("one",))
    with pytest.raises(Superseded, match="another run of query job"):
        claimed("job", second, "one")


def test_runs_of_long_ago_are_forgotten() -> None:
    entry: LedgerEntry | None = None
    for number in range(3 * PAST_RUNS_MAX):
        entry = claimed("job", entry, str(number))
    assert entry is not None
    assert len(entry.past_runs) == PAST_RUNS_MAX
    assert entry.generation == 3 * PAST_RUNS_MAX - 1


def test_a_batch_that_is_committed_is_a_replay_and_an_older_one_an_error() -> None:
    entry = LedgerEntry("r", batch=5)
    assert is_replay("job", entry, 5)
    assert not is_replay("job", entry, 6)
    with pytest.raises(BehindLedger, match="batch 4 comes after batch 5"):
        is_replay("job", entry, 4)


def test_only_the_owner_adds_a_batch_and_only_after_the_last_has_ended() -> None:
    entry = LedgerEntry("r", batch=5)
    assert recorded("job", entry, "r", 6, [A, B]) == LedgerEntry("r", 0, 6, False, (A, B))
    assert recorded("job", entry, "r", 5, [A]) is None
    with pytest.raises(Superseded):
        recorded("job", entry, "other", 6, [A])
    with pytest.raises(Superseded):
        recorded("job", None, "r", 6, [A])
    with pytest.raises(LedgerUnusable, match="batch 7 cannot follow batch 6"):
        recorded("job", LedgerEntry("r", 0, 6, False, (A,)), "r", 7, [B])


def test_an_end_is_said_once() -> None:
    entry = LedgerEntry("r", 0, 6, False, (A,))
    assert ended(entry, 6) == LedgerEntry("r", 0, 6)
    assert ended(LedgerEntry("r", 0, 6), 6) is None
    assert ended(entry, 5) is None
    assert ended(None, 5) is None


def test_before_the_commit_every_transaction_is_as_its_task_left_it() -> None:
    check_open([A, B], {A[0]: described(A), B[0]: described(B)})
    for other in (
        described(B, "CompleteAbort"),
        described(B, "Empty"),
        described(B._replace(producer_epoch=1)),
        described(B._replace(producer_id=99)),
    ):
        with pytest.raises(TransactionLost, match=f"the transaction of {B[0]}"):
            check_open([A, B], {A[0]: described(A), B[0]: other})
    with pytest.raises(TransactionLost, match="unknown to its coordinator"):
        check_open([A, B], {A[0]: described(A)})


def test_a_refused_commit_is_no_trouble_only_for_this_very_transaction() -> None:
    assert is_committed(A, described(A, "CompleteCommit"))
    assert is_committed(A, described(A, "PrepareCommit"))
    assert not is_committed(A, described(A, "CompleteAbort"))
    assert not is_committed(A, described(A, "Ongoing"))
    assert not is_committed(A, described(A._replace(producer_epoch=2), "CompleteCommit"))
    assert not is_committed(A, described(A._replace(producer_id=2), "CompleteCommit"))
    assert not is_committed(A, None)


def test_what_is_left_open_and_not_in_the_ledger_is_aborted() -> None:
    entry = LedgerEntry("r", 1, 6, False, (A,))
    done = TransactionHandle("p-job-0-2-0", 9, 0)
    found = {A[0]: described(A), B[0]: described(B), done[0]: described(done, "CompleteCommit")}
    assert leftovers(entry, found) == [B]
    # The same id, but another transaction than the ledger's.
    found[A[0]] = described(A._replace(producer_epoch=9))
    assert leftovers(entry, found) == [A._replace(producer_epoch=9), B]


def test_names_are_of_one_job() -> None:
    for job in ("x", "x-1", "x-1-2", "a.b*", write_job("x")):
        name = transactional_id("p", job, GENERATION_SLOTS + 3, 4, 0)
        assert slot_in("p", job, name) == 3
        for other in ("x", "x-1", "x-1-2", "a.b*", "aXb*", write_job("x")):
            assert (slot_in("p", other, name) is None) == (other != job)
    assert slot_in("p", "x", "p-x-ledger") is None
