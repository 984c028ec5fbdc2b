"""docs/SPARK.md as written: its programs and its SQL, in this order, on the topics that they name."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.docs.shell import ADDRESS, ROOT, blocks
from tests.spark.reading import SECONDS_MAX
from tidelog import Consumer, Producer
from tidelog.client.admin import Admin
from tidelog.spark import spark_session
from tidelog.testing import Broker

PAGE = (ROOT / "docs" / "SPARK.md").read_text()
TABLES = ("orders_out", "orders_in")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One of its own: the page names its topics."""
    with Broker() as broker, Producer(broker.bootstrap_servers) as producer, Admin(broker.bootstrap_servers) as admin:
        # The sink makes no topics.
        for name in ("orders-upper", "orders-out", "totals"):
            admin.create_topic(name)
        for number in range(3):
            producer.send("orders", f"order {number}", key="alice").result(60)
        yield broker


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The session that all tests share, in an empty directory."""
    monkeypatch.setattr(spark_session, "session", lambda: spark)
    monkeypatch.chdir(tmp_path)
    yield spark
    for query in spark.streams.active:
        query.stop()
    spark.sql("DROP VIEW IF EXISTS orders")
    for name in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_the_page_as_written(session: SparkSession, broker: Broker, tmp_path: Path) -> None:
    reading, listening, writing, changing = (block.replace(ADDRESS, broker.bootstrap_servers) for block in blocks(PAGE, "python"))
    # Java does not see that this process has changed its directory.
    names: dict[str, Any] = {}
    exec(_in(tmp_path, reading), names)
    assert [row.order for row in session.read.parquet(str(tmp_path / "lake/orders")).orderBy("order").collect()] == [
        f"order {number}" for number in range(3)
    ]
    exec(_in(tmp_path, listening), names)
    exec(_in(tmp_path, writing), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    session.streams.removeListener(names["listener"])
    with Consumer(broker.bootstrap_servers, topics=["orders-upper"], isolation="read_committed") as consumer:
        found: list[str | None] = []
        while len(found) < 3:
            found += [message.text() for message in consumer.poll(timeout=SECONDS_MAX)]
    assert found == ["ORDER 0", "ORDER 1", "ORDER 2"]
    exec(_in(tmp_path, changing), names)
    names["query"].processAllAvailable()
    Producer(broker.bootstrap_servers).send("orders", "order 3", key="alice").result(60)
    names["query"].processAllAvailable()
    names["query"].stop()
    with Consumer(broker.bootstrap_servers, topics=["totals"], isolation="read_committed") as consumer:
        totals: list[tuple[bytes | None, str | None]] = []
        while len(totals) < 2:
            totals += [(message.key, message.text()) for message in consumer.poll(timeout=SECONDS_MAX)]
    assert totals == [(b"alice", "3"), (b"alice", "4")]

    (sql,) = blocks(PAGE, "sql")
    rows = []
    for statement in filter(str.strip, sql.replace(ADDRESS, broker.bootstrap_servers).split(";")):
        result = session.sql(statement)
        rows.append([tuple(row) for row in result.collect()] if result.schema != StructType() else [])
    assert sorted(rows[1]) == [(f"order {number}",) for number in range(4)]
    assert rows[-1] == [(4,)]


def _in(directory: Path, block: str) -> str:
    for name in ("lake/", "checkpoints/", "metrics/"):
        os.makedirs(directory / name, exist_ok=True)
        block = block.replace(f'"{name}', f'"{directory}/{name}')
    return block
