"""The pipeline on a real broker: events with their rows, sessions over a killed driver, and what is refused.

Joins and sessions on small frames, against what Python makes of the same rows. The program of the page runs as it stands there,
and shows what the page says of sessions and rows.
"""

import contextlib
import datetime
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from tests.compatibility.apache_kafka import wait_until
from tests.spark.pipelines.archive.orders import Orders
from tests.spark.pipelines.made_table import NOON, put_customers
from tests.spark.reading import SECONDS_MAX
from tests.spark.test_kills import is_in_batch
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.errors import InvalidArgument, UnknownTopic
from tidelog.spark import spark_session
from tidelog.spark.options import RECORDS_PER_SPLIT, SourceOptions
from tidelog.spark.pipelines.archive.source import SCHEMA_OPTION
from tidelog.spark.pipelines.enrich import (
    EnrichOptions,
    MaterializedTable,
    event_messages,
    join_with_table,
    messages_of,
    run,
    session_messages,
    sessions,
    table_rows,
)
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.planning import OffsetSpan, split
from tidelog.spark.tables.errors import TableMissing, WrongTable
from tidelog.spark.tables.lake_table import LakeTable

DRIVER_SECONDS_MAX = 240.0
REQUIRED: dict[str, Any] = {
    "topic": "orders",
    "schema": "customer STRING",
    "on": "customer",
    "table": "t",
    "output": "o",
    "checkpoint": "c",
}


@pytest.fixture
def orders(kafka: ToolkitBroker, tmp_path: Path) -> Orders:
    return Orders(kafka.bootstrap, tmp_path)


def test_events_with_the_rows_of_the_moment(spark: SparkSession, orders: Orders) -> None:
    orders.send([(second, ["ada", "bob", "nobody"][second % 3], second) for second in range(30)], bad=2, tombstones=1)
    outcome = run(spark, orders.options(), Silent())
    assert outcome.figures == {"messages": 33, "bad": 2, "tombstones": 1, "events": 30, "without_row": 10}
    put_customers(orders.table, {"ada": "Utrecht", "bob": None, "nobody": "Breda"})
    orders.send([(40, "ada", 40), (41, "bob", 41), (42, "nobody", 42)])
    run(spark, orders.options(), Silent())
    cities: list[dict[str, str | None]] = [{"ada": "Delft", "bob": "Gouda"}, {"ada": "Utrecht", "nobody": "Breda"}]
    expected = [
        {"customer": customer, "amount": second, "city": cities[second >= 40].get(customer)}
        for second in [*range(30), 40, 41, 42]
        for customer in [["ada", "bob", "nobody"][(second - 40 * (second >= 40)) % 3]]
    ]
    assert orders.values() == sorted(expected, key=str)
    for message in orders.written():
        amount = json.loads(message.value())["amount"]
        assert (message.key(), message.headers()) == (b"%d" % amount, [("h", b"1")])
        assert message.timestamp()[1] == int(at(amount).timestamp() * 1000)


def test_the_table_is_read_again_in_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    """One query, two batches, and between them the table changes: by a merge, and with its old files gone."""
    place, source = tmp_path / "customers", tmp_path / "source"
    table = put_customers(place, {"ada": "Delft", "bob": "Gouda"})
    source.mkdir()
    for number in range(2):
        (source / f"{number}.json").write_text('{"customer": "ada"}\n{"customer": "bob"}\n')
    spark.dataSource.register(MaterializedTable)
    events = spark.readStream.schema("customer string").option("maxFilesPerTrigger", "1").json(str(source))
    joined = join_with_table(events, table_rows(spark, table, ["city"]), "customer", ["city"])
    found: list[dict[str, str | None]] = []

    def collect_and_change(rows: DataFrame, _: int) -> None:
        found.append({row.customer: row.city for row in rows.collect()})
        put_customers(place, {"ada": "Utrecht", "bob": None})
        LakeTable.open(place).delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    writer = joined.writeStream.foreachBatch(collect_and_change).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    assert found == [{"ada": "Delft", "bob": "Gouda"}, {"ada": "Utrecht", "bob": None}]


def test_sessions_over_a_driver_that_is_killed(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    sent = [(second * 400, ["ada", "bob", "eve"][second % 3 if second % 20 < 10 else 0], second) for second in range(40)]
    orders.send(sent)
    places = [str(orders.table), orders.output, str(orders.checkpoint), str(tmp_path / "local")]
    command = [sys.executable, "-m", "tests.spark.pipelines.enrich_driver", orders.bootstrap, orders.topic, *places]
    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(
            lambda: driver.poll() is not None or is_in_batch(orders.checkpoint, 1),
            "the driver is in its second batch, or beyond",
            DRIVER_SECONDS_MAX,
        )
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    options = orders.options(gap="10m", watermark="0s", sum=("amount",))
    run(spark, options, Silent())
    # A day later: every session before is over. One that is late by then is left out.
    orders.send([(90_000, "ada", 0), (0, "bob", 1_000_000)])
    run(spark, options, Silent())
    cities = {"ada": "Delft", "bob": "Gouda", "eve": "Leiden"}
    rows = [(at(seconds), customer, amount) for seconds, customer, amount in sent]
    expected = [{**each, "city": cities[each["customer"]]} for each in expected_sessions(rows)]
    assert orders.values() == sorted(expected, key=str)
    assert max(each["events"] for each in expected) > 1


def test_what_is_refused(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    for given, error, reason in (
        ({"on": "client"}, InvalidArgument, "--on client is not a field of --schema, which has customer, amount"),
        ({"gap": "5m", "sum": ("customer",)}, InvalidArgument, "--sum customer is not a numeric field"),
        ({"take": ("town",)}, InvalidArgument, "--take town is not a column of .*city"),
        ({"schema": "customer STRING, city STRING"}, InvalidArgument, "--take city: the output already has a field of that name"),
        ({"output": "no-such-topic"}, UnknownTopic, "no-such-topic"),
        ({"table": str(tmp_path / "none")}, TableMissing, "there is no table"),
    ):
        with pytest.raises(error, match=reason):
            run(spark, orders.options(**given), Silent())
    columns = LakeTable.open(orders.table).columns
    other = LakeTable.ensure(tmp_path / "archive", columns, identity={"kind": "archive", "topic": "customers"})
    with pytest.raises(WrongTable, match="is of kind archive, not of kind materialize"):
        run(spark, orders.options(table=str(other.place)), Silent())
    assert not orders.checkpoint.exists()
    assert orders.written() == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": ""}, "--topic is missing"),
        ({"output": "orders"}, "--output orders is the topic of the events"),
        ({"sum": ("amount",)}, "--sum is for sessions: give --gap"),
        ({"start": "now"}, "--start is earliest or latest: not now"),
        ({"gap": "soon"}, "--gap is a time such as 15m"),
        ({"watermark": "late"}, "--watermark is a time"),
        ({"trigger_seconds": 0.0}, "--trigger-seconds"),
        ({"batch_rows": 0}, "--batch-rows"),
        ({"kafka": ("nonsense",)}, "--kafka nonsense"),
    ],
)
def test_options(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        EnrichOptions(**{**REQUIRED, **given})


def test_a_batch_of_one_partition_is_one_task() -> None:
    """Two would write its events out of order. Also where a batch is more than the source gives a task by itself."""
    rows = 3 * RECORDS_PER_SPLIT
    spark = MagicMock()
    messages_of(spark, EnrichOptions(**{**REQUIRED, "batch_rows": rows}), StructType().add("customer", StringType()))
    given = spark.readStream.format.return_value.options.call_args.kwargs
    source = SourceOptions.parse({name: value for name, value in given.items() if name != SCHEMA_OPTION}, is_stream=True)
    whole = OffsetSpan("orders", bytes(16), 0, 0, rows)
    assert split([whole], source.min_partitions, source.max_records_per_partition) == [whole]


# -- rows ---------------------------------------------------------------------------------------------------------------------


GAP_SECONDS = 600


def at(seconds: int) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def test_events_with_rows_beside_them(spark: SparkSession) -> None:
    events = spark.createDataFrame(
        [(b"1", None, at(0), "ada", 5), (b"2", None, at(1), "bob", 6), (b"3", None, at(2), None, 7)],
        "key binary, headers array<struct<key:string,value:binary>>, timestamp timestamp, customer string, amount int",
    )
    table = spark.createDataFrame(
        [(b"ada", "Delft", "secret"), (b"eve", "Gouda", "secret")], "key binary, city string, other string"
    )
    joined = join_with_table(events, table, "customer", ["city"])
    messages = event_messages(joined, ["customer", "amount", "timestamp", "city"]).collect()
    assert {bytes(each.key): json.loads(each.value) for each in messages} == {
        b"1": {"customer": "ada", "amount": 5, "timestamp": "2026-03-02T12:00:00.000Z", "city": "Delft"},
        b"2": {"customer": "bob", "amount": 6, "timestamp": "2026-03-02T12:00:01.000Z", "city": None},
        b"3": {"customer": None, "amount": 7, "timestamp": "2026-03-02T12:00:02.000Z", "city": None},
    }
    assert sum(each._is_matched for each in joined.collect()) == 1
    assert sorted(bytes(each.key) for each in messages) == [b"1", b"2", b"3"]


def test_sessions_as_a_loop_makes_them(spark: SparkSession) -> None:
    dice = random.Random(3)
    rows = [(at(dice.randrange(20_000)), f"c{dice.randrange(4)}", dice.randrange(100)) for _ in range(120)]
    # Exactly the gap apart is together still.
    rows += [(at(0), "edge", 1), (at(GAP_SECONDS), "edge", 2), (at(2 * GAP_SECONDS + 1), "edge", 3)]
    events = spark.createDataFrame(rows, "timestamp timestamp, customer string, amount int")
    found = session_messages(
        sessions(events, "customer", f"{GAP_SECONDS} seconds", "0 seconds", ["amount"]),
        "customer",
        ["customer", "started", "ended", "events", "sum_amount"],
    ).collect()
    assert sorted((json.loads(each.value) for each in found), key=str) == sorted(expected_sessions(rows), key=str)
    assert {each.key for each in found} == {"c0", "c1", "c2", "c3", "edge"}


def expected_sessions(rows: list[tuple[datetime.datetime, str, int]]) -> list[dict[str, Any]]:
    open_ones: dict[str, dict[str, Any]] = {}
    found = []
    for time, customer, amount in sorted(rows):
        session = open_ones.get(customer)
        if session is None or (time - session["ended"]).total_seconds() > GAP_SECONDS:
            session = {"customer": customer, "started": time, "ended": time, "events": 0, "sum_amount": 0}
            open_ones[customer] = session
            found.append(session)
        session["ended"] = time
        session["events"] += 1
        session["sum_amount"] += amount
    return [{**each, "started": text(each["started"]), "ended": text(each["ended"])} for each in found]


def text(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


# -- the documentation --------------------------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[3] / "docs" / "PIPELINES.md"


def test_the_program_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (section,) = re.findall(r"^## enrich\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    put_customers(tmp_path / "lake" / "customers", {"ada": "Delft"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark_session, "session", lambda: spark)
    exec(compile(program, str(PAGE), "exec"), {})
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert shown[0] == ["customer", "started", "ended", "events", "sum_amount", "city", "_is_matched"]
    assert sorted((row[0], *row[3:]) for row in shown[1:]) == [
        ("ada", "2", "11", "Delft", "true"),
        ("bob", "1", "7", "NULL", "false"),
    ]
