"""The plan of a replay on disk: written once, whole, and of one thing only."""

import json
import time
from pathlib import Path

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.pipelines.replay_chunks import Chunk
from tidelog.spark.pipelines.replay_outcome import outcome_of, retention_note
from tidelog.spark.pipelines.replay_plan import Plan, PlanFile, checked_id
from tidelog.spark.pipelines.topic_facts import TopicFacts

ARGUMENTS = {"topic": "again", "offsets": [[0, 0, 10]], "key": []}
CHUNKS = (Chunk(0, 5, (OffsetRange(0, 0, 5),)), Chunk(1, 5, (OffsetRange(0, 5, 10), OffsetRange(1, 0, 3))))
PLAN = Plan("night", ARGUMENTS, 7, True, CHUNKS)
DAY_SECONDS = 86_400


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    file = PlanFile(tmp_path, "night")
    assert file.read(ARGUMENTS) is None
    assert file.create(PLAN) == PLAN
    assert file.read(ARGUMENTS) == PLAN
    assert file.chunks_done(PLAN) == 0
    file.note(1)
    assert file.chunks_done(PLAN) == 1
    assert sorted(path.name for path in (tmp_path / "_tidelog" / "replays").iterdir()) == ["night.json", "night.progress"]


def test_the_first_one_stays(tmp_path: Path) -> None:
    PlanFile(tmp_path, "night").create(PLAN)
    later = PLAN._replace(chunks=CHUNKS[:1], table_version=8)
    assert PlanFile(tmp_path, "night").create(later) == PLAN


def test_another_one_under_the_same_name_is_refused(tmp_path: Path) -> None:
    file = PlanFile(tmp_path, "night")
    file.create(PLAN)
    with pytest.raises(PipelineFailed, match="replay night was begun with another topic, key: give another --id"):
        file.read({**ARGUMENTS, "topic": "other", "key": ["k"]})


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    file = PlanFile(tmp_path, "night")
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
        PlanFile(tmp_path / "file", "night").create(PLAN)


def test_a_plan_that_the_ledger_has_forgotten(tmp_path: Path) -> None:
    file = PlanFile(tmp_path, "night")
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
    assert outcome_of(PLAN, "again", 0, 2, is_dry=False, note="").summary == "10 rows sent to again"
    stopped = outcome_of(PLAN, "again", 0, 1, is_dry=False, note="")
    assert stopped.summary == "5 rows sent to again; stopped, 5 are left: the same command goes on from here"
    assert stopped.figures["offsets"] == "0: 0 to 9, 1: 0 to 2"
    resumed = outcome_of(PLAN, "again", 1, 2, is_dry=False, note="", is_resumed=True)
    assert resumed.summary == "5 rows of the plan sent to again", "nobody has counted what the table has of them by now"
    assert str(resumed.figures["counted"]).startswith("by the plan: rows deleted from the table since")
    assert "counted" not in stopped.figures
    assert "was done before" in outcome_of(PLAN, "again", 2, 2, is_dry=False, note="").summary
    dry = outcome_of(PLAN, "again", 1, 1, is_dry=True, note="old")
    assert dry.summary == "5 rows would be sent to again, in 1 chunks; nothing was sent"
    assert dry.figures["note"] == "old"
    assert "nothing to replay" in outcome_of(PLAN._replace(chunks=()), "again", 0, 0, is_dry=False, note="").summary


def test_messages_that_the_topic_would_not_keep() -> None:
    facts = TopicFacts("again", bytes(16), {}, {}, {"retention.ms": str(7 * DAY_SECONDS * 1000), "cleanup.policy": "delete"})
    now_ms = 100 * DAY_SECONDS * 1000
    assert "10 days old, and again keeps 7 (retention.ms)" in retention_note(facts, now_ms - 10 * DAY_SECONDS * 1000, now_ms)
    assert retention_note(facts, now_ms - 6 * DAY_SECONDS * 1000, now_ms) == ""
    assert retention_note(facts, None, now_ms) == ""
    for kept in ({"retention.ms": "-1"}, {"cleanup.policy": "compact"}):
        assert retention_note(facts._replace(settings={**facts.settings, **kept}), 0, now_ms) == ""
