"""How a replay is cut and paced, with a clock that only moves when it is told to.

The plan of a replay on disk: written once, whole, and of one thing only.
"""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.pipelines.replay import plan as plan_module
from tidelog.spark.pipelines.replay.pipeline import ReplayProgress, outcome_of, retention_note
from tidelog.spark.pipelines.replay.plan import (
    ChunkPacer,
    OffsetBucket,
    ReplayChunk,
    ReplayPlan,
    ReplayPlanFile,
    bucket_offsets,
    checked_id,
    cut,
    rows_wanted,
)
from tidelog.spark.pipelines.topics import TopicSnapshot

# -- chunks -------------------------------------------------------------------------------------------------------------------


def buckets(partition: int, count: int, rows: int = 10) -> list[OffsetBucket]:
    return [OffsetBucket(partition, 100 * number, 100 * number + 50, rows) for number in range(count)]


def test_chunks_have_a_part_of_every_partition_and_follow_each_other() -> None:
    chunks = cut([*buckets(1, 4), *buckets(0, 8)], rows_per_chunk=60)
    assert chunks == (
        ReplayChunk(0, 60, (OffsetRange(0, 0, 351), OffsetRange(1, 0, 151))),
        ReplayChunk(1, 60, (OffsetRange(0, 400, 751), OffsetRange(1, 200, 351))),
    )
    assert cut(list(reversed(buckets(0, 8))), 30) == cut(buckets(0, 8), 30)


def test_no_row_is_in_two_chunks_or_in_none() -> None:
    given = [*buckets(0, 37, 7), *buckets(1, 1, 900), *buckets(2, 11, 3)]
    chunks = cut(given, rows_per_chunk=50)
    assert sum(chunk.rows for chunk in chunks) == sum(bucket.rows for bucket in given)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    for partition in range(3):
        ranges = [each for chunk in chunks for each in chunk.ranges if each.partition == partition]
        assert all(one.end <= other.start for one, other in pairwise(ranges))
        for bucket in given:
            if bucket.partition == partition:
                assert sum(each.start <= bucket.first and bucket.last < each.end for each in ranges) == 1


def test_there_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "CHUNKS_MAX", 5)
    assert len(cut(buckets(0, 100), rows_per_chunk=10)) == 5
    assert cut([], 10) == ()


def test_a_chunk_is_a_few_seconds_of_the_rate() -> None:
    assert rows_wanted(100_000, None) == 100_000
    assert rows_wanted(100_000, 200) == 1_000
    assert rows_wanted(100_000, 10**9) == 100_000
    assert rows_wanted(100_000, 0.01) == 1
    assert bucket_offsets(1) == 1
    assert bucket_offsets(10**9) == 10_000


class Clock:
    def __init__(self) -> None:
        self.now = 50.0
        self.waits: list[float] = []
        self.is_stopped = False

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.is_stopped


def test_the_rate_is_held_and_what_was_slow_is_not_made_up_for() -> None:
    clock = Clock()
    pacer = ChunkPacer(100.0, lambda: clock.now, clock.wait)
    sent = []
    for rows, takes_seconds in ((200, 0.5), (200, 5.0), (100, 0.0), (100, 0.0), (300, 0.0)):
        assert pacer.admit(rows)
        sent.append((clock.now, rows))
        clock.now += takes_seconds
    # 200 rows are two seconds; the second chunk took five, and the third may go at once, but no two.
    assert clock.waits == [0.0, 1.5, 0.0, 1.0, 1.0]
    for (first, rows), (second, _) in pairwise(sent):
        assert rows / (second - first) <= 100


def test_without_a_rate_nothing_waits_and_a_stop_is_told() -> None:
    clock = Clock()
    pacer = ChunkPacer(None, lambda: clock.now, clock.wait)
    assert pacer.admit(10**6)
    assert pacer.admit(10**6)
    assert clock.waits == [0.0, 0.0]
    clock.is_stopped = True
    assert not pacer.admit(1)


# -- the plan -----------------------------------------------------------------------------------------------------------------


ARGUMENTS = {"topic": "again", "offsets": [[0, 0, 10]], "key": []}
CHUNKS = (ReplayChunk(0, 5, (OffsetRange(0, 0, 5),)), ReplayChunk(1, 5, (OffsetRange(0, 5, 10), OffsetRange(1, 0, 3))))
PLAN = ReplayPlan("night", ARGUMENTS, 7, True, CHUNKS)
DAY_SECONDS = 86_400


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    file = ReplayPlanFile(tmp_path, "night")
    assert file.read(ARGUMENTS) is None
    assert file.create(PLAN) == PLAN
    assert file.read(ARGUMENTS) == PLAN
    assert file.chunks_done(PLAN) == 0
    file.note(1)
    assert file.chunks_done(PLAN) == 1
    assert sorted(path.name for path in (tmp_path / "_tidelog" / "replays").iterdir()) == ["night.json", "night.progress"]


def test_the_first_one_stays(tmp_path: Path) -> None:
    ReplayPlanFile(tmp_path, "night").create(PLAN)
    later = PLAN._replace(chunks=CHUNKS[:1], table_version=8)
    assert ReplayPlanFile(tmp_path, "night").create(later) == PLAN


def test_another_one_under_the_same_name_is_refused(tmp_path: Path) -> None:
    file = ReplayPlanFile(tmp_path, "night")
    file.create(PLAN)
    with pytest.raises(PipelineFailed, match="replay night was begun with another topic, key: give another --id"):
        file.read({**ARGUMENTS, "topic": "other", "key": ["k"]})


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    file = ReplayPlanFile(tmp_path, "night")
    file.create(PLAN)
    path = tmp_path / "_tidelog" / "replays" / "night.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(PipelineFailed, match="is damaged"):
        file.read(ARGUMENTS)
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(PipelineFailed, match="a newer Tidelog wrote it"):
        file.read(ARGUMENTS)
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineFailed, match="cannot be kept"):
        ReplayPlanFile(tmp_path / "file", "night").create(PLAN)


def test_a_plan_that_the_ledger_has_forgotten(tmp_path: Path) -> None:
    file = ReplayPlanFile(tmp_path, "night")
    file.create(PLAN)
    file.note(1)
    assert file.chunks_done(PLAN, time.time() + 20 * DAY_SECONDS) == 1
    with pytest.raises(PipelineFailed, match="stopped 40 days ago, after 1 of 2 chunks"):
        file.chunks_done(PLAN, time.time() + 40 * DAY_SECONDS)
    file.note(2)
    assert file.chunks_done(PLAN, time.time() + 40 * DAY_SECONDS) == 2


def test_a_write_id_is_of_its_chunk() -> None:
    ids = {PLAN.write_id(chunk) for chunk in CHUNKS} | {PLAN._replace(arguments={}).write_id(CHUNKS[0])}
    longer = CHUNKS[0]._replace(ranges=(OffsetRange(0, 0, 6),))
    assert len(ids | {PLAN.write_id(longer), PLAN._replace(replay_id="day").write_id(CHUNKS[0])}) == 5
    assert PLAN.write_id(CHUNKS[0]) == PLAN._replace(table_version=9).write_id(CHUNKS[0])


@pytest.mark.parametrize("text", ["", "a/b", "x" * 65, ".." + "/etc"])
def test_names_that_are_no_names_of_files(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--id has up to 64"):
        checked_id("--id", text)


def test_what_is_said_of_it() -> None:
    assert outcome_of(PLAN, "again", ReplayProgress(0, 2), "").summary == "10 rows sent to again"
    stopped = outcome_of(PLAN, "again", ReplayProgress(0, 1), "")
    assert stopped.summary == "5 rows sent to again; stopped, 5 are left: the same command continues from here"
    assert stopped.figures["offsets"] == "0: 0 to 9, 1: 0 to 2"
    resumed = outcome_of(PLAN, "again", ReplayProgress(1, 2, is_resumed=True), "")
    assert resumed.summary == "5 rows of the plan sent to again", "nobody has counted what the table has of them by now"
    assert str(resumed.figures["counted"]).startswith("by the plan: rows deleted from the table since")
    assert "counted" not in stopped.figures
    assert "was done before" in outcome_of(PLAN, "again", ReplayProgress(2, 2), "").summary
    dry = outcome_of(PLAN, "again", ReplayProgress(1, 1, is_dry=True), "old")
    assert dry.summary == "5 rows would be sent to again, in 1 chunks; nothing was sent"
    assert dry.figures["note"] == "old"
    assert "nothing to replay" in outcome_of(PLAN._replace(chunks=()), "again", ReplayProgress(0, 0), "").summary


def test_messages_that_the_topic_would_not_keep() -> None:
    facts = TopicSnapshot("again", bytes(16), {}, {}, {"retention.ms": str(7 * DAY_SECONDS * 1000), "cleanup.policy": "delete"})
    now_ms = 100 * DAY_SECONDS * 1000
    assert "10 days old, and again keeps 7 (retention.ms)" in retention_note(facts, now_ms - 10 * DAY_SECONDS * 1000, now_ms)
    assert retention_note(facts, now_ms - 6 * DAY_SECONDS * 1000, now_ms) == ""
    assert retention_note(facts, None, now_ms) == ""
    for kept in ({"retention.ms": "-1"}, {"cleanup.policy": "compact"}):
        assert retention_note(facts._replace(settings={**facts.settings, **kept}), 0, now_ms) == ""
