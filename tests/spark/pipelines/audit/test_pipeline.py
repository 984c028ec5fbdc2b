"""An audit of a table against its topic on a real broker: whatever is planted is named, and nothing else is.

Which offsets are compared: portions of a grid, all or a sample that a seed chooses.
"""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.compatibility.apache_kafka import wait_until
from tests.spark.pipelines.archived import archive, plant, remove, rows_of, send, send_in_transactions, with_column
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.admin import Admin
from tidelog.client.errors import InvalidArgument, TidelogError, UnknownTopic
from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.errors import TopicRecreated
from tidelog.client.topic_partition import TopicPartition as ReadPartition
from tidelog.spark.pipelines.audit import pipeline as audit_pipeline
from tidelog.spark.pipelines.audit.pipeline import (
    PORTION_OFFSETS,
    PORTION_OFFSETS_MAX,
    WHOLE_OFFSETS_MAX,
    Audit,
    AuditOptions,
    fraction_of,
    portion_size,
    portions,
    run,
    sampled,
)
from tidelog.spark.pipelines.audit.report import AuditFinding
from tidelog.spark.pipelines.offset_ranges import OffsetRange, total_size
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Silent
from tidelog.spark.tables.errors import WrongTable

ROWS = 120
KEPT = {"retention.ms": "-1"}


@pytest.fixture
def topic(kafka: ToolkitBroker) -> str:
    """Partition 0 has transactions, of which every second one was aborted."""
    name = create_topic(kafka.bootstrap, f"audit-{secrets.token_hex(4)}", partitions=2, config=KEPT)
    send(kafka.bootstrap, name, range(ROWS), partitions=2)
    send_in_transactions(kafka.bootstrap, name, range(ROWS, ROWS + 40))
    return name


def audit(spark: SparkSession, kafka: ToolkitBroker, table: Path, **given: object) -> PipelineOutcome:
    return run(spark, AuditOptions(table=str(table), bootstrap=kafka.bootstrap, **given), Silent())  # type: ignore[arg-type]  # fields by name


def named(found: PipelineOutcome, topic: str) -> dict[str, str]:
    return {place.removeprefix(topic): str(what) for place, what in found.figures.items() if place.startswith(f"{topic}[")}


def test_a_clean_table_and_one_that_is_behind(spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    found = audit(spark, kafka, table, topic=topic)
    assert found.exit_code == 0
    assert "holds exactly what" in found.summary
    assert named(found, topic) == {}
    assert [found.figures[name] for name in ("rows of the topic", "rows of the table")] == [ROWS + 20] * 2
    assert found.figures["portions that differ"] == "0 of 2"
    assert found.figures["not archived yet"] == 0, "markers and aborted messages at the end are nothing to archive"
    behind = archive(tmp_path / "behind", kafka.bootstrap, topic, until={0: 10, 1: 0})
    found = audit(spark, kafka, behind)
    assert (found.exit_code, found.figures["rows of the topic"]) == (0, 10)
    assert found.figures["not archived yet"] == ROWS + 20 - 10


def test_each_planted_fault_is_named(spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    for offset in (7, 8):
        remove(table, 0, offset)
    plant(table, rows_of(table, 1, [20]))
    changed = rows_of(table, 1, [30, 31, 32])
    for offset in (30, 31, 32):
        remove(table, 1, offset)
    values = changed.column("value").to_pylist()
    changed = with_column(changed, "value", [b"Value" + (values[0] or b"")[5:], *values[1:]])
    headers = changed.column("headers").to_pylist()
    changed = with_column(changed, "headers", [headers[0], None if headers[1] else [{"key": "x", "value": b""}], headers[2]])
    keys = changed.column("key").to_pylist()
    plant(table, with_column(changed, "key", [keys[0], keys[1], b"" if keys[2] is None else None]))
    strange = rows_of(table, 0, [1, 2, 3, 4])
    strange = with_column(strange, "topic", ["payments", topic, topic, topic])
    # Of another topic; at the offset of a marker; past the end; of a partition that there is not.
    strange = with_column(strange, "offset", [1, ROWS // 2 + 10, 5000, 4])
    plant(table, with_column(strange, "partition", [0, 0, 0, 9]))
    report = tmp_path / "report.json"
    found = audit(spark, kafka, table, report=str(report))
    assert found.exit_code == 3
    assert named(found, topic) == {
        "[0] offset 1": "foreign: of topic payments",
        "[0] offsets 7 to 8": "gap",
        f"[0] offset {ROWS // 2 + 10}": "foreign: the topic has no such message",
        "[0] offset 5000": "foreign: the archive has not come to this offset, or the topic does not go so far",
        "[1] offset 20": "duplicate: 2 copies",
        "[1] offset 30": "changed: value",
        "[1] offset 31": "changed: headers",
        "[1] offset 32": "changed: key",
        "[9] offset 4": "foreign: the topic has no such partition",
    }
    assert "2 gaps, 1 duplicate, 3 changed rows, 4 foreign rows" in found.summary
    written = json.loads(report.read_text())
    assert written["counts"] == {"gap": 2, "duplicate": 1, "changed": 3, "foreign": 4, "expired": 0, "compacted": 0}
    assert not written["is_clean"]
    assert {"kind": "gap", "partition": 0, "first": 7, "last": 8, "detail": ""} in written["findings"]


def test_what_retention_and_compaction_took_is_counted(
    spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path
) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_records([TopicPartition(topic, 1, 25)])[TopicPartition(topic, 1, 25)].result(30)
    found = audit(spark, kafka, table)
    assert (found.exit_code, found.figures["expired since"]) == (0, 25)
    with Admin(kafka.bootstrap) as settings:
        # The broker would begin at once otherwise, and nobody knew what it took.
        settings.alter_topic(topic, **{"cleanup.policy": "compact,delete", "min.compaction.lag.ms": str(10**15)})
    # What the topic does not have, as after a compaction; and in what has expired a fault that the table alone can tell.
    plant(table, with_column(rows_of(table, 0, [1]), "offset", [ROWS // 2 + 10]))
    plant(table, rows_of(table, 1, [3]))
    remove(table, 1, 40)
    found = audit(spark, kafka, table)
    assert named(found, topic) == {"[1] offset 3": "duplicate: 2 copies", "[1] offset 40": "gap"}
    assert [found.figures[name] for name in ("expired since", "compacted since", "foreign rows")] == [26, 1, 0]


def test_a_gap_that_retention_takes_from_the_topic_before_it_is_named(
    spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    remove(table, 1, 7)
    look_at_rows = Audit.findings

    def after_retention(self: Audit, cells: Sequence[Any]) -> tuple[dict[str, int], list[AuditFinding]]:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition(topic, 1, 20)]).values():
            future.result()
        return look_at_rows(self, cells)

    monkeypatch.setattr(Audit, "findings", after_retention)
    found = audit(spark, kafka, table)
    assert (found.exit_code, found.figures["gaps"]) == (3, 1)
    (what,) = named(found, topic).values()
    assert what.endswith("told by sums: retention took the rows meanwhile")


def test_a_sample_and_ranges(
    spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_pipeline, "PORTION_OFFSETS", 10)
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    for offset in range(5, 60, 10):
        remove(table, 1, offset)
    found = audit(spark, kafka, table, sample=0.5, seed=3)
    assert found.figures["sample"] == "0.5 (--sample 0.5 --seed 3)"
    assert (found.exit_code, found.figures["gaps"]) == (3, 3), "one in each portion: half of six"
    within = audit(spark, kafka, table, offsets=("1:6-25", "0:0-20"))
    assert named(within, topic) == {"[1] offset 15": "gap"}
    assert within.figures["offsets compared"] == 19 + 20


def test_a_table_without_rows(spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic, until={0: 0, 1: 0})
    found = audit(spark, kafka, table)
    assert (found.exit_code, found.figures["rows of the table"], found.figures["not archived yet"]) == (0, 0, ROWS + 20)


def is_readable(kafka: ToolkitBroker, topic: str) -> bool:
    with FetchClient(kafka.bootstrap, fetcher="librdkafka") as client:
        try:
            return bool(client.offsets([ReadPartition(topic, number) for number in range(2)], "latest"))
        except TidelogError:
            return False


def test_what_cannot_be_compared(spark: SparkSession, kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    table = archive(tmp_path / "table", kafka.bootstrap, topic)
    with pytest.raises(WrongTable, match=f"is of topic {topic}, not of topic payments"):
        audit(spark, kafka, table, topic="payments")
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            audit(spark, kafka, table)
        admin.create_topic(topic, partitions=2)
        # For a moment the broker answers that the new log is not readable yet.
        wait_until(lambda: is_readable(kafka, topic), "the new topic can be read")
        with pytest.raises(TopicRecreated, match="deleted and created again"):
            audit(spark, kafka, table)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample": 1.5}, "--sample is a share from 0 to 1"),
        ({"sample": 0.1, "whole": True}, "--sample and --whole"),
        ({"offsets": ("x",)}, "--offsets is a partition and offsets"),
        ({"kafka": ("x",)}, "--kafka x: expected NAME=VALUE"),
        ({"table": " "}, "--table is missing"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        AuditOptions(**{"table": "t", **given})  # type: ignore[arg-type]  # fields by name


# -- portions -----------------------------------------------------------------------------------------------------------------


LONG = (OffsetRange(0, 5, 10_003), OffsetRange(1, 0, 77))


def test_portions_lie_on_a_grid() -> None:
    assert list(portions([OffsetRange(3, 95, 205)], 100)) == [
        OffsetRange(3, 95, 100),
        OffsetRange(3, 100, 200),
        OffsetRange(3, 200, 205),
    ]


def test_portions_grow_with_the_topic_up_to_what_a_bitmap_holds() -> None:
    assert portion_size(0) == portion_size(10**8) == PORTION_OFFSETS
    assert portion_size(2 * 10**9) == 20_000
    assert portion_size(10**12) == PORTION_OFFSETS_MAX


def test_all_of_it_unless_it_is_very_much() -> None:
    assert fraction_of(LONG, None, is_whole=False) == 1
    large = (OffsetRange(0, 0, 4 * WHOLE_OFFSETS_MAX),)
    assert fraction_of(large, None, is_whole=False) == 0.25
    assert fraction_of(large, None, is_whole=True) == 1
    assert fraction_of(large, 0.01, is_whole=False) == 0.01
    assert fraction_of((), None, is_whole=False) == 1


def test_a_sample_is_what_its_seed_says() -> None:
    chosen = sampled(LONG, 100, 0.1, seed=7)
    assert chosen == sampled(LONG, 100, 0.1, seed=7)
    assert chosen != sampled(LONG, 100, 0.1, seed=8)
    assert 900 <= total_size(each for each in chosen if each.partition == 0) <= 1_000
    assert {each.partition for each in chosen} == {0, 1}, "each partition has a part"
    assert total_size(sampled(LONG, 100, 1.0, seed=7)) == total_size(LONG)
    assert chosen == sampled(LONG[:1], 100, 0.1, seed=7) + chosen[-1:], "a partition's choice is its own"
