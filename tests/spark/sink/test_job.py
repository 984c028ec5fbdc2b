"""What may become of a ledger entry.

Every crash point of a job, on a cluster in memory: in the end each row is there once, and nothing is left open.
"""

from collections.abc import Iterator, Sequence

import pytest

from tests.spark.sink.fake_cluster import Crash, FakeCluster
from tidelog.client.transactions.admin import TransactionDescription, TransactionHandle, TransactionListing
from tidelog.spark.sink.job import (
    ENTRY_BYTES_MAX,
    PAST_RUNS_MAX,
    BatchIncomplete,
    BehindLedger,
    LedgerEntry,
    LedgerUnusable,
    SinkJob,
    Superseded,
    TransactionLost,
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
from tidelog.spark.sink.names import GENERATION_SLOTS, slot_in, transactional_id, write_job

# -- the entry ----------------------------------------------------------------------------------------------------------------


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


# -- the steps ----------------------------------------------------------------------------------------------------------------


TASKS = 3
BATCHES = 3


class Query:
    """Spark as the sink sees it: batches in order, the last one again after a crash. ``done`` is its commit log."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.done = -1
        self.runs = 0

    def run(self, batches: int = BATCHES) -> None:
        """One run, until all batches are done or somebody crashes."""
        self.runs += 1
        run = f"run-{self.runs}"
        driver = self.job()
        workers = [self.job() for _ in range(TASKS)]
        for batch in range(self.done + 1, batches):
            driver.commit(run, batch, list(self.write(workers, run, batch)))
            self.done = batch

    def write(self, workers: list[SinkJob], run: str, batch: int) -> Iterator[TransactionHandle]:
        for task, worker in enumerate(workers):
            start = worker.start(run, batch)
            if not start.is_replay:
                name = transactional_id("p", "job", start.generation, task, 0)
                yield self.cluster.write(name, [f"{batch}.{task}"])

    def job(self) -> SinkJob:
        return SinkJob("p", "job", self.cluster, self.cluster, lambda seconds: None)


EXPECTED = sorted(f"{batch}.{task}" for batch in range(BATCHES) for task in range(TASKS))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def query(cluster: FakeCluster) -> Query:
    return Query(cluster)


def effects_of_a_run() -> int:
    cluster = FakeCluster()
    Query(cluster).run()
    return len(cluster.effects)


def test_without_crashes(query: Query, cluster: FakeCluster) -> None:
    query.run()
    assert sorted(cluster.visible) == EXPECTED
    assert cluster.open_ids == []
    # A claim; then for each batch a record, its transactions, and that they have ended.
    assert cluster.effects == ["ledger"] + ["ledger", *["commit"] * TASKS, "ledger"] * BATCHES


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("first", range(effects_of_a_run()))
def test_a_crash_at_every_point_and_another_at_every_point_of_the_recovery(first: int, is_after: bool) -> None:
    second = 0
    while True:
        cluster = FakeCluster()
        query = Query(cluster)
        cluster.crash_at, cluster.is_after = first, is_after
        with pytest.raises(Crash):
            query.run()
        cluster.restart()
        cluster.crash_at = second
        try:
            query.run()
        except Crash:
            cluster.restart()
            query.run()
            second += 1
        else:
            assert second > 0
            return
        assert sorted(cluster.visible) == EXPECTED
        assert cluster.open_ids == []


def test_a_crash_while_tasks_write_leaves_nothing_open(query: Query, cluster: FakeCluster) -> None:
    workers = [query.job() for _ in range(TASKS)]
    query.runs = 1
    list(query.write(workers, "run-1", 0))
    assert len(cluster.open_ids) == TASKS
    query.run()
    assert sorted(cluster.visible) == EXPECTED
    assert cluster.open_ids == []
    assert cluster.effects.count("abort") == TASKS


def test_an_earlier_run_cannot_commit_once_a_later_one_has_begun(query: Query, cluster: FakeCluster) -> None:
    zombie = query.job()
    handles = list(query.write([zombie], "zombie", 0))
    zombie.check(handles)
    query.run()
    with pytest.raises(Superseded):
        zombie.record("zombie", 0, handles)
    with pytest.raises(Superseded):
        query.job().start("zombie", 0)
    zombie.abort("zombie")
    assert sorted(cluster.visible) == EXPECTED


def test_a_task_of_an_earlier_run_that_wakes_late_disturbs_nothing(query: Query, cluster: FakeCluster) -> None:
    generation = query.job().start("zombie", 0).generation
    driver, workers = query.job(), [query.job() for _ in range(TASKS)]
    handles = list(query.write(workers, "run", 0))
    driver.check(handles)
    entry = driver.record("run", 0, handles)
    late = cluster.write(transactional_id("p", "job", generation, 0, 0), ["late"])
    driver.finish(entry)
    assert sorted(cluster.visible) == ["0.0", "0.1", "0.2"]
    assert cluster.open_ids == [late.transactional_id]
    query.done = 0
    query.run()
    assert sorted(cluster.visible) == EXPECTED
    assert cluster.open_ids == []


def test_a_transaction_that_timed_out_before_the_commit_point_is_no_loss(query: Query, cluster: FakeCluster) -> None:
    job = query.job()
    handles = list(query.write([query.job(), query.job()], "run-0", 0))
    cluster.time_out(handles[1])
    with pytest.raises(TransactionLost, match=handles[1].transactional_id):
        job.commit("run-0", 0, handles)
    job.abort("run-0")
    assert cluster.visible == []
    assert cluster.open_ids == []
    query.run()
    assert sorted(cluster.visible) == EXPECTED


def test_a_transaction_that_timed_out_after_the_commit_point_stops_the_query(query: Query, cluster: FakeCluster) -> None:
    job = query.job()
    handles = list(query.write([query.job(), query.job()], "run-0", 0))
    job.record("run-0", 0, handles)
    cluster.time_out(handles[1])
    for _ in range(2):  # And it does not go on the next time either.
        with pytest.raises(BatchIncomplete, match=rf"batch 0 is in the ledger.*{handles[1].transactional_id}.*CompleteAbort"):
            query.run()
    assert cluster.visible == ["0.0"]


def test_a_commit_that_somebody_did_before_is_fine(query: Query, cluster: FakeCluster) -> None:
    job = query.job()
    handles = list(query.write([query.job(), query.job()], "run-0", 0))
    entry = job.record("run-0", 0, handles)
    cluster.end_transactions(handles, is_commit=True)
    job.finish(entry)
    assert cluster.visible == ["0.0", "0.1"]


def test_an_abort_after_the_commit_point_keeps_what_the_ledger_has(query: Query, cluster: FakeCluster) -> None:
    job = query.job()
    handles = list(query.write([query.job(), query.job()], "run-0", 0))
    job.record("run-0", 0, handles)
    job.abort("run-0")
    assert sorted(cluster.open_ids) == sorted(each.transactional_id for each in handles)
    query.run()
    assert sorted(cluster.visible) == [*sorted(["0.0", "0.1"]), *EXPECTED[TASKS:]]
    job.abort("run-0")
    assert cluster.effects.count("abort") == 0


def test_an_abort_before_the_commit_point_aborts(query: Query, cluster: FakeCluster) -> None:
    list(query.write([query.job(), query.job()], "run-0", 0))
    query.job().abort("run-0")
    assert cluster.open_ids == []


def test_an_abort_also_finds_what_a_task_opens_late(query: Query, cluster: FakeCluster) -> None:
    generation = query.job().start("run", 0).generation

    def pause(seconds: float) -> None:
        if seconds:
            cluster.write(transactional_id("p", "job", generation, 0, 0), [f"late {seconds}"])

    SinkJob("p", "job", cluster, cluster, pause).abort("run")
    assert cluster.effects.count("abort") == 2
    assert cluster.open_ids == []


def test_an_abort_of_an_earlier_run_leaves_the_later_one_alone(query: Query, cluster: FakeCluster) -> None:
    query.job().start("early", 0)
    handles = list(query.write([query.job()], "late", 0))
    query.job().abort("early")
    assert cluster.open_ids == [handles[0].transactional_id]
    query.job().commit("late", 0, handles)
    assert cluster.visible == ["0.0"]


def test_a_stage_that_is_run_again_leaves_the_tasks_of_its_first_attempt_alone(
    query: Query, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same numbers, and either one's answer may come to the commit; here a third comes in the middle of it."""
    job, first, second = query.job(), query.job(), query.job()
    generation = job.start("run", 0).generation
    committed = cluster.write(first.name_for(generation, 0, 0), ["0.0"])
    cluster.write(second.name_for(generation, 0, 0), ["0.0 again"])
    finish = job.finish

    def finish_late(entry: LedgerEntry) -> None:
        cluster.write(second.name_for(generation, 0, 0), ["0.0 late"])
        finish(entry)

    monkeypatch.setattr(job, "finish", finish_late)
    job.commit("run", 0, [committed])
    assert cluster.visible == ["0.0"]
    assert cluster.open_ids == []
    assert second.name_for(generation, 0, 0) == committed.transactional_id


def test_the_numbers_of_stage_attempts_are_those_of_the_job(query: Query, cluster: FakeCluster) -> None:
    """What a second attempt of the stage left is found by the next run, too."""
    generation = query.job().start("run-0", 0).generation
    for _ in range(2):
        cluster.write(query.job().name_for(generation, 0, 0), ["lost"])
    query.run()
    assert cluster.open_ids == []
    assert sorted(cluster.visible) == EXPECTED


def test_a_batch_without_rows_leaves_no_record(query: Query, cluster: FakeCluster) -> None:
    job = query.job()
    job.start("run", 0)
    job.commit("run", 0, [])
    assert cluster.effects == ["ledger"]


def test_a_checkpoint_that_is_older_than_the_ledger_is_refused(query: Query) -> None:
    query.run()
    query.done = 0
    with pytest.raises(BehindLedger, match="batch 1 comes after batch 2"):
        query.run()


def test_within_a_run_the_ledger_is_read_once(query: Query, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job = query.job()
    job.start("run", 0)
    monkeypatch.setattr(cluster, "read", None)
    assert not job.start("run", 1).is_replay


def test_a_run_that_cleans_up_leaves_its_own_tasks_alone(
    query: Query, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task of the run finds the job taken over, and writes before the first one has looked for leftovers."""
    listed = cluster.list_transactions
    handles: list[TransactionHandle] = []

    def list_transactions(*, states: Sequence[str]) -> list[TransactionListing]:
        if not handles:
            handles.extend(query.write([query.job()], "run", 0))
        return listed(states=states)

    monkeypatch.setattr(cluster, "list_transactions", list_transactions)
    query.job().start("run", 0)
    assert cluster.open_ids == [handles[0].transactional_id]
