"""Topics as views and tables of SQL: what is inserted is read, a stream writes to a table, and what Spark does not do is said."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.client.producing import new_topic
from tests.spark.reading import SECONDS_MAX, producer, send
from tests.toolkit_broker import ToolkitBroker

TABLES = ("sql_out", "sql_in", "sql_refused")


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.sql("DROP VIEW IF EXISTS sql_view")
    for name in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_what_is_inserted_is_read(sql: SparkSession, kafka: ToolkitBroker, checkpoint: str) -> None:
    topic, source = new_topic(kafka), new_topic(kafka)
    address = f"'bootstrap'='{kafka.bootstrap}'"
    sql.sql(f"CREATE TEMPORARY VIEW sql_view USING tidelog OPTIONS (bootstrap '{kafka.bootstrap}', subscribe '{topic}')")
    sql.sql("CREATE TABLE sql_out (key STRING, value STRING) USING tidelog")
    sql.sql(f"INSERT INTO sql_out WITH ({address}, 'topic'='{topic}') VALUES ('k', '7'), (NULL, '8')")
    rows = sql.sql(
        "SELECT CAST(key AS STRING) AS key, CAST(CAST(value AS STRING) AS INT) AS value FROM sql_view WHERE offset >= 0"
    ).collect()
    assert sorted((row.value, row.key) for row in rows) == [(7, "k"), (8, None)]

    send(producer(kafka.bootstrap), source, 5)
    stream = sql.readStream.format("tidelog").option("bootstrap", kafka.bootstrap).option("subscribe", source)
    texts = stream.option("startingOffsets", "earliest").load().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    writer = texts.writeStream.option("bootstrap", kafka.bootstrap).option("topic", topic).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).toTable("sql_out")
    assert query.awaitTermination(SECONDS_MAX)
    sql.sql("CREATE TABLE sql_in USING tidelog")
    found = sql.sql(
        f"SELECT CAST(CAST(value AS STRING) AS INT) AS value FROM sql_in WITH ({address}, 'subscribe'='{topic}')"
    ).collect()
    assert sorted(row.value for row in found) == [0, 1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE TABLE sql_refused USING tidelog OPTIONS (bootstrap 'h:1', subscribe 'a')", "takes no OPTIONS"),
        ("SELECT * FROM sql_in", "option bootstrap .* is missing: .* FROM orders WITH"),
        ("INSERT INTO sql_in (value) VALUES (binary('x'))", "option bootstrap .* is missing"),
    ],
)
def test_what_spark_does_not_do_is_said(sql: SparkSession, statement: str, problem: str) -> None:
    sql.sql("CREATE TABLE sql_in USING tidelog")
    with pytest.raises(PySparkException, match=problem):
        sql.sql(statement).collect()
