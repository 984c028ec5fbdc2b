"""Dead letters on a real broker: into the table once each, counted as ``tidelog dlq`` counts them, and onto a page."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.deadletters.letters import HOUR_MS, Letters, now_ms, read_all
from tests.spark.pipelines.deadletters.made_reports import read_page
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.client.topic_partition import TopicPartition
from tidelog.deadletters import DeadLetters
from tidelog.spark.pipelines.deadletters import pipeline as deadletters
from tidelog.spark.pipelines.deadletters.letters import COLUMNS
from tidelog.spark.pipelines.deadletters.pipeline import (
    DeadLettersOptions,
    DeadLetterTopics,
    find_dead_letters,
    lacking,
    position_name,
    run,
    run_once,
    write_page,
)
from tidelog.spark.pipelines.pipeline import PipelineFailed, PipelineOutcome, Silent
from tidelog.spark.tables.errors import WrongTable
from tidelog.spark.tables.lake_table import LakeTable

CHILD_SECONDS_MAX = 300


class Scene:
    """A dead-letter topic, a table and a page."""

    def __init__(self, bootstrap: str, place: Path) -> None:
        self.letters = Letters(bootstrap)
        self.tools = DeadLetters(bootstrap)
        self.table = place / "table"
        self.page = place / "report" / "page.html"
        self.place = place

    @property
    def options(self) -> DeadLettersOptions:
        return DeadLettersOptions(
            table=str(self.table), page=str(self.page), topic=(self.letters.topic,), bootstrap=self.letters.bootstrap
        )

    def places(self, spark: SparkSession) -> list[tuple[int, int]]:
        rows = LakeTable.open(self.table, kind="deadletters").frame(spark).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in rows)

    def written(self) -> list[tuple[int, int]]:
        return [(message.partition(), message.offset()) for message in read_all(self.letters.bootstrap, self.letters.topic)]


@pytest.fixture
def scene(kafka: ToolkitBroker, tmp_path: Path) -> Scene:
    return Scene(kafka.bootstrap, tmp_path)


def fill(letters: Letters) -> None:
    """Of three errors, one of them passing and quiet; and what somebody else wrote there."""
    long_ago = now_ms() - 3 * HOUR_MS
    letters.write_many(20, exception_message="no more of item 7", application_version="1.0")
    letters.write_many(10, exception_class="TimeoutError", exception_message="after 3 s", last_failure_ms=long_ago)
    hostile = letters.letter(exception_class="<script>", exception_message="</pre><img src=x onerror=alert(1)>\x00\x1b")
    letters.write(hostile, value=b"\xff\xfe\x00<script>alert(1)</script>")
    producer = Producer({"bootstrap.servers": letters.bootstrap, "log_level": 0})
    producer.produce(letters.topic, b"not ours", partition=1)
    assert producer.flush(30) == 0


def figures(outcome: PipelineOutcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.figures.items() if name not in ("page", "oldest")}


def test_from_the_broker_to_the_page(spark: SparkSession, scene: Scene) -> None:
    letters = scene.letters
    fill(letters)
    scene.tools.discard(letters.topic, error="OutOfStock", partition=0, reason="sent by a test")
    scene.tools.replay(letters.topic, error="OutOfStock", last_offset=2)
    outcome = run(spark, scene.options, Silent())
    settled = {"replayed": 3, "discarded": 10}
    nothing = {"no longer in their topic": 0, "without a story": 1}
    assert figures(outcome) == {
        "new letters": 32,
        "waiting": 19,
        "different errors": 4,
        "worth a replay": 10,
        **settled,
        **nothing,
    }
    assert scene.tools.depth(letters.topic)[0].letters == 19
    assert scene.places(spark) == scene.written()

    text = read_page(scene.page.read_text(encoding="utf-8")).text
    command = f"tidelog dlq replay {letters.topic} --error=TimeoutError --since "
    assert command in text
    assert f"--bootstrap {letters.bootstrap}" in text
    assert "</pre><img src=x onerror=alert(1)>␀␛" in text

    letters.write_many(2, exception_class="KeyError", exception_message="'price'")
    again = run(spark, scene.options, Silent())
    assert (again.figures["new letters"], again.figures["waiting"]) == (2, 21)
    assert scene.places(spark) == scene.written()
    row = LakeTable.open(scene.table).frame(spark).where("exception_class = 'KeyError'").first()
    assert row is not None
    assert (row.origin_topic, row.group, row.attempts, row.replayable) == (letters.source, letters.group, 6, True)
    assert bytes(row.value) == b"%d" % row.origin_offset
    assert run(spark, scene.options, Silent()).figures["new letters"] == 0


@pytest.mark.parametrize("point", ["after", pytest.param("before", marks=pytest.mark.soak)])
def test_a_driver_is_killed_at_the_commit(point: str, spark: SparkSession, scene: Scene) -> None:
    scene.letters.write_many(30)
    words = [point, scene.letters.bootstrap, scene.letters.topic, str(scene.table), str(scene.page), str(scene.place / "local")]
    with open(scene.place / "child.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipelines.deadletters.child", *words],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert child.wait(CHILD_SECONDS_MAX) == -signal.SIGKILL, (scene.place / "child.log").read_text()[-2000:]
    assert len(list(scene.table.glob("*.parquet"))) >= 1, "it had written its files"
    assert len(scene.places(spark)) == (30 if point == "after" else 0)
    assert not scene.page.exists()
    outcome = run(spark, scene.options, Silent())
    assert (outcome.figures["new letters"], outcome.figures["waiting"]) == (0 if point == "after" else 30, 30)
    assert scene.places(spark) == scene.written()
    assert scene.page.exists()


def test_all_dead_letter_topics_are_found(scene: Scene) -> None:
    options = DeadLettersOptions(table=str(scene.table), bootstrap=scene.letters.bootstrap)
    scene.letters.write_many(1)
    scene.tools.discard(scene.letters.topic, error="OutOfStock")
    found = find_dead_letters(options)
    assert scene.letters.topic in found.topic_ids
    assert f"{scene.letters.topic}.ledger" in found.ledgers
    assert all(topic.endswith(".dlq") for topic in found.topic_ids)
    with pytest.raises(UnknownTopic):
        find_dead_letters(
            DeadLettersOptions(table=str(scene.table), bootstrap=scene.letters.bootstrap, topic=("there.is-none.dlq",))
        )


def test_what_the_table_lacks(tmp_path: Path) -> None:
    one, other = TopicPartition("orders.email.dlq", 0), TopicPartition("orders.email.dlq", 1)
    cluster = DeadLetterTopics({"orders.email.dlq": "id"}, {one: 5, other: 0}, {one: 9, other: 3}, ())
    table = LakeTable.ensure(tmp_path, COLUMNS, identity={"kind": "deadletters"})
    assert lacking(cluster, table) == ({one: 5, other: 0}, {one: 9, other: 3}, 0)
    table.append([], {position_name(one, cluster.topic_ids): 2, position_name(other, cluster.topic_ids): 3})
    found = lacking(cluster, LakeTable.open(tmp_path))
    assert found.size == 4
    assert found == ({one: 5}, {one: 9}, 3), "retention took three before they were read"
    recreated = cluster._replace(topic_ids={"orders.email.dlq": "made again"}, starts={one: 0}, ends={one: 1})
    assert lacking(recreated, LakeTable.open(tmp_path)).starts == {one: 0}


def test_a_table_of_another_kind_is_refused_before_anything_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    LakeTable.ensure(scene.table, COLUMNS, identity={"kind": "archive", "topic": "orders"})
    monkeypatch.setattr(deadletters, "take", lambda *_arguments: pytest.fail("it was read"))
    with pytest.raises(WrongTable, match="is of kind archive"):
        run_once(None, scene.options, Silent(), now_ms())  # type: ignore[arg-type]  # it does not come so far as to need Spark


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, "one")
    write_page(path, "two ü")
    assert path.read_text(encoding="utf-8") == "two ü"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(PipelineFailed, match=r"--page .* cannot be written"):
        write_page(path / "under-a-file.html", "x")
    path.unlink()
    path.mkdir()
    with pytest.raises(PipelineFailed, match="cannot be written"):
        write_page(path, "x")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": ""}, "--table"),
        ({"page": ""}, "--page"),
        ({"page": "t/page.html"}, "lies within the table"),
        ({"topic": ("orders",)}, "--topic orders: no dead-letter topic"),
        ({"top": 0}, "--top"),
        ({"quiet_minutes": -1.0}, "--quiet-minutes"),
        ({"trigger_seconds": 0.0}, "--trigger-seconds"),
        ({"kafka": ("x",)}, "--kafka x"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        DeadLettersOptions(**{"table": "t", **given})
