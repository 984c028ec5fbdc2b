"""When a table can have missed a delete, without a broker: a table on disk, and what a topic would say of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.pipelines import materialize_batches
from tidelog.spark.pipelines.materialize import table_columns
from tidelog.spark.pipelines.materialize_batches import MaterializeBatches
from tidelog.spark.pipelines.materialize_deletes import CAUGHT_UP, DeletesMissed, check_deletes, first_time
from tidelog.spark.pipelines.topic_facts import TopicFacts
from tidelog.spark.tables.lake_table import LakeTable

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def table_at(place: Path, offset: int, caught_up_ms: int) -> LakeTable:
    table = LakeTable.ensure(place, table_columns(None), partition_by=("bucket",), identity={"kind": "materialize"})
    table.append([], {"customers/0": offset, **({CAUGHT_UP: caught_up_ms} if caught_up_ms else {})})
    return LakeTable.open(place)


def facts(end: int, **settings: str) -> TopicFacts:
    given = {"cleanup.policy": "compact", "delete.retention.ms": str(24 * HOUR_MS), **settings}
    return TopicFacts("customers", b"", {0: 0}, {0: end}, given)


def test_a_table_that_was_away_for_too_long(tmp_path: Path) -> None:
    table = table_at(tmp_path, 10, NOW_MS - 13 * HOUR_MS)
    with pytest.raises(
        DeletesMissed, match=r"was last at the end of customers 13\.0 h ago, and the topic keeps deletes for 24\.0 h"
    ):
        check_deletes(table, facts(end=11), NOW_MS)
    check_deletes(table, facts(end=11), NOW_MS - HOUR_MS)
    check_deletes(table, facts(end=10), NOW_MS)  # nothing has come since, no delete either
    check_deletes(table, facts(end=11, **{"cleanup.policy": "delete"}), NOW_MS)
    with pytest.raises(DeletesMissed):
        check_deletes(table, facts(end=11, **{"cleanup.policy": "compact,delete"}), NOW_MS)


def test_the_time_counts_from_the_first_run(tmp_path: Path) -> None:
    table = table_at(tmp_path, 0, 0)
    assert first_time(table, facts(end=5), NOW_MS) == {CAUGHT_UP: NOW_MS}
    assert first_time(table, facts(end=5, **{"cleanup.policy": "delete"}), NOW_MS) == {}
    assert first_time(table_at(tmp_path, 0, NOW_MS - 1), facts(end=5), NOW_MS) == {}


def plan(checkpoint: Path, number: int, end: int) -> None:
    topics = {"customers": {"id": "vfHhHglJpXuYvX42IsJ8rA", "offsets": {"0": end}}}
    lines = ["v1", json.dumps({"batchTimestampMs": NOW_MS + number}), json.dumps({"tidelog": 1, "topics": topics})]
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))


def test_a_full_batch_is_no_end_however_little_the_table_lacks_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under an old checkpoint."""
    for name in ("unsettled", "merge_after_commit"):
        monkeypatch.setattr(materialize_batches, name, lambda *_, **__: None)
    monkeypatch.setattr(MaterializeBatches, "_stage", lambda *_: None)

    def merge(table: LakeTable, _: Path, positions: dict[str, int]) -> Any:
        table.append([], positions)
        return materialize_batches.Counts()

    monkeypatch.setattr(materialize_batches, "merge", merge)
    place, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    table_at(place, 140, NOW_MS - HOUR_MS)
    for number, end in enumerate((50, 150, 160)):
        plan(checkpoint, number, end)
    batches: Any = MaterializeBatches(place, checkpoint, strict=False, at_end_rows=100)
    found = []
    for number in (1, 2):
        batches(None, number)
        table = LakeTable.open(place)
        found.append((table.position("customers/0"), table.position(CAUGHT_UP)))
    assert found == [(150, NOW_MS - HOUR_MS), (160, NOW_MS + 2)]
