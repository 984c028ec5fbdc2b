"""A checkpoint that is ahead of the table is not believed. Without Spark: a checkpoint is a few files."""

import json
from pathlib import Path

import pytest

from tests.spark.tables.test_lake_table import append, ensure, rows
from tidelog.client.topic_partition import Partition
from tidelog.spark.offsets import StreamOffset
from tidelog.spark.pipelines.archive_checkpoint import note_end, set_aside_if_ahead
from tidelog.spark.tables.lake_table import LakeTable


def plan(
    checkpoint: Path, number: int, end: int, *, begins: int | None = None, is_done: bool = True, topic: str = "orders"
) -> None:
    partition = Partition(topic, 0)
    offset = StreamOffset({topic: bytes(range(16))}, {partition: end}, {} if begins is None else {partition: begins})
    for directory in ("offsets", "commits")[: 2 if is_done else 1]:
        (checkpoint / directory).mkdir(parents=True, exist_ok=True)
        text = "\n".join(["v1", json.dumps({"batchTimestampMs": 1}), json.dumps(offset.to_json())])
        (checkpoint / directory / str(number)).write_text(text)


def table_with(place: Path, count: int) -> LakeTable:
    table = ensure(place)
    if count:
        append(table, rows(0, count), count)
    return LakeTable.open(place)


@pytest.mark.parametrize("rows_left", [0, 5])
def test_a_table_that_was_removed_or_restored(tmp_path: Path, rows_left: int) -> None:
    checkpoint = tmp_path / "checkpoint"
    table = table_with(tmp_path / "table", rows_left)
    for number in (1, 2):
        plan(checkpoint, 0, 10)
        assert set_aside_if_ahead(table, checkpoint, "orders") == tmp_path / f"checkpoint.ahead-{number}"
        assert not checkpoint.exists()
    assert (tmp_path / "checkpoint.ahead-1" / "offsets" / "0").exists()


def test_a_checkpoint_that_is_not_ahead_stays(tmp_path: Path) -> None:
    table = table_with(tmp_path / "table", 10)
    checkpoint = tmp_path / "checkpoint"
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    plan(checkpoint, 0, 10)
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    plan(checkpoint, 1, 20, is_done=False)
    assert set_aside_if_ahead(table, checkpoint, "orders") is None, "the batch is done again, from 10"
    plan(tmp_path / "other", 0, 99, topic="payments")
    assert set_aside_if_ahead(table, tmp_path / "other", "orders") is None, "the source refuses it"


def test_a_first_batch_that_began_where_the_table_had_been(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    plan(checkpoint, 0, 20, begins=10, is_done=False)
    assert set_aside_if_ahead(table_with(tmp_path / "same", 10), checkpoint, "orders") is None
    assert set_aside_if_ahead(table_with(tmp_path / "empty", 0), checkpoint, "orders") is not None


def test_markers_at_the_end_are_noted_for_this_table_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    table = table_with(tmp_path / "table", 10)
    plan(checkpoint, 0, 11)
    note_end(table, checkpoint, "orders")
    assert set_aside_if_ahead(table, checkpoint, "orders") is None
    assert set_aside_if_ahead(table_with(tmp_path / "other", 10), checkpoint, "orders") is not None
    plan(checkpoint, 0, 11)
    note_end(table, checkpoint, "orders")
    plan(checkpoint, 1, 12)
    assert set_aside_if_ahead(table, checkpoint, "orders") is not None, "nobody has noted that 12 is right"
