"""Joins and sessions on small frames, against what Python makes of the same rows."""

import datetime
import json
import random
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.pipelines.made_table import NOON
from tidelog.spark.pipelines.enrich_rows import event_messages, join_with_table, session_messages, sessions

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
