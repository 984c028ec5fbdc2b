"""The pipeline on a real broker: the table is what a fold of the topic is, whatever comes again; and what is refused.

When a table can have missed a delete, without a broker: a table on disk, and what a topic would say of itself.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.pipelines.materialize.customers import PARTITIONS, Customers
from tests.toolkit_broker import ToolkitBroker
from tidelog import Admin
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark.checkpoint_offsets import last_batch_done, planned_batch
from tidelog.spark.pipelines.materialize import batches as batches_module
from tidelog.spark.pipelines.materialize.batches import CAUGHT_UP, MaterializeBatches
from tidelog.spark.pipelines.materialize.pipeline import (
    DeletesMissed,
    MaterializeOptions,
    check_deletes,
    first_time,
    table_columns,
)
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.pipelines.topics import TopicSnapshot
from tidelog.spark.tables.errors import WrongSchema, WrongTable
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import position_name

DRIVER_SECONDS_MAX = 240.0


@pytest.fixture
def customers(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path) -> Customers:
    return Customers(spark, kafka, tmp_path)


def test_the_newest_rows_over_runs_and_old_checkpoints(customers: Customers, tmp_path: Path) -> None:
    customers.change(250)
    customers.send_keyless(3)
    first = customers.run()
    customers.check()
    customers.check_as_a_client_has_it()
    assert (first.figures["messages"], first.figures["without_key"]) == (253, 3)
    checkpoint = customers.place / "_tidelog" / "checkpoint"
    shutil.copytree(checkpoint, tmp_path / "old")
    customers.change(100)
    assert customers.run().figures["messages"] == 100
    customers.check()
    customers.change(30)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "old", checkpoint)
    assert customers.run().figures["messages"] == 30, "of a batch that begins before the table's positions only the rest is left"
    customers.check()
    version = LakeTable.open(customers.place).version
    shutil.rmtree(checkpoint)
    assert customers.run().figures["messages"] == 0, "without a checkpoint it begins where the table is"
    customers.check()
    assert LakeTable.open(customers.place).version == version
    assert [path.name for path in (customers.place / "_tidelog").iterdir()] == ["checkpoint"], "no staged rows are left"


def test_batches_without_a_row_move_the_table_on(customers: Customers) -> None:
    """Aborted transactions are offsets without messages: at the beginning of a topic, and at its end."""
    customers.abort(4)
    outcome = customers.run()
    assert (outcome.figures["messages"], outcome.figures["keys"], customers.behind()) == (0, 0, 0)
    customers.change(40)
    assert customers.run().figures["messages"] == 40
    customers.check()
    customers.abort(4)
    assert customers.behind() == 5 * PARTITIONS, "a marker in each"
    outcome = customers.run()
    assert (outcome.figures["messages"], outcome.figures["keys"], customers.behind()) == (0, len(customers.fold), 0)
    customers.check()


def test_a_batch_that_fails_changes_nothing_and_comes_again(customers: Customers, monkeypatch: pytest.MonkeyPatch) -> None:
    customers.change(60)
    customers.send_keyless(2)
    with pytest.raises(PipelineFailed, match="2 messages of this batch have no key, and --strict was given"):
        customers.run(strict=True)
    assert customers.rows() == []

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(batches_module, "merge", fail)
        with pytest.raises(PipelineFailed, match="the disk is gone"):
            customers.run()
    assert customers.rows() == []
    customers.run()
    customers.check()


def test_what_is_refused(spark: SparkSession, kafka: ToolkitBroker, tmp_path: Path, customers: Customers) -> None:
    customers.change(20)
    customers.run()
    rows = customers.rows()
    other = Customers(spark, kafka, tmp_path)
    with pytest.raises(WrongTable, match=f"is of topic {customers.topic}, not of topic {other.topic}"):
        other.run()
    with pytest.raises(WrongTable, match="is of buckets 4, not of buckets 8"):
        customers.run(buckets=8)
    with pytest.raises(WrongSchema, match="has column name as string, the pipeline writes int64"):
        customers.run(schema="name BIGINT")
    with pytest.raises(InvalidArgument, match="has a field bucket"):
        customers.run(schema="bucket STRING")
    other.topic = "no-such-topic"
    with pytest.raises(UnknownTopic):
        other.run()
    assert customers.rows() == rows
    moved = tmp_path / "checkpoint"
    shutil.move(customers.place / "_tidelog" / "checkpoint", moved)
    shutil.rmtree(customers.place)
    with pytest.raises(WrongTable, match=r"has done .* up to offset \d+, and the table .* has it up to 0"):
        customers.run(checkpoint=str(moved))
    assert customers.rows() == []
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topic(customers.topic)
        admin.create_topic(customers.topic, partitions=3)
    with pytest.raises(WrongTable, match="is of topic_id"):
        customers.run()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": ""}, "--topic is missing"),
        ({"table": ""}, "--table is missing"),
        ({"buckets": 0}, "--buckets is 1 to 4096: not 0"),
        ({"batch_rows": 0}, "--batch-rows"),
        ({"trigger_seconds": 0.0}, "--trigger-seconds"),
        ({"retention_hours": 23}, "--retention-hours must be at least 24"),
        ({"kafka": ("nonsense",)}, "--kafka nonsense"),
        ({"schema": "a STRING", "schema_file": "a.ddl"}, "--schema and --schema-file"),
    ],
)
def test_options(given: dict[str, Any], reason: str) -> None:
    options: dict[str, Any] = {"topic": "customers", "table": "lake/customers", **given}
    with pytest.raises(InvalidArgument, match=reason):
        MaterializeOptions(**options)


@pytest.mark.parametrize("point", ["after", pytest.param("before", marks=pytest.mark.soak)])
def test_the_driver_is_killed_at_a_merge(customers: Customers, tmp_path: Path, point: str) -> None:
    """Committed to the table and not known to Spark, or not even that: the next run ends with what a fold has."""
    customers.compact()
    customers.change(250)
    arguments = [customers.bootstrap, customers.topic, str(customers.place), str(tmp_path / "local"), point]
    command = [sys.executable, "-m", "tests.spark.pipelines.materialize.driver", *arguments]
    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        assert driver.wait(DRIVER_SECONDS_MAX) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    checkpoint = customers.place / "_tidelog" / "checkpoint"
    assert last_batch_done(checkpoint) == 0
    planned = planned_batch(checkpoint, 1).offset.positions
    table = LakeTable.open(customers.place)
    is_committed = all(table.position(position_name(*partition)) == end for partition, end in planned.items())
    assert is_committed == (point == "after")
    customers.change(50)
    customers.run()
    customers.check()
    customers.compact(**{"delete.retention.ms": "0"})
    customers.change(5)
    with pytest.raises(DeletesMissed, match=r"the topic keeps deletes for 0\.0 h.*go on with --skip-lost"):
        customers.run()
    customers.run(skip_lost=True)
    customers.check()


# -- deletes ------------------------------------------------------------------------------------------------------------------


HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def table_at(place: Path, offset: int, caught_up_ms: int) -> LakeTable:
    table = LakeTable.ensure(place, table_columns(None), partition_by=("bucket",), identity={"kind": "materialize"})
    table.append([], {"customers/0": offset, **({CAUGHT_UP: caught_up_ms} if caught_up_ms else {})})
    return LakeTable.open(place)


def facts(end: int, **settings: str) -> TopicSnapshot:
    given = {"cleanup.policy": "compact", "delete.retention.ms": str(24 * HOUR_MS), **settings}
    return TopicSnapshot("customers", b"", {0: 0}, {0: end}, given)


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
    for name in ("after_positions", "merge_after_commit"):
        monkeypatch.setattr(batches_module, name, lambda *_, **__: None)
    monkeypatch.setattr(MaterializeBatches, "_stage", lambda *_: None)

    def merge(table: LakeTable, _: Path, positions: dict[str, int]) -> Any:
        table.append([], positions)
        return batches_module.MaterializeCounts()

    monkeypatch.setattr(batches_module, "merge", merge)
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
