"""A topic of customers for ``materialize``: changes, deletes and messages without a key, and what a fold makes of them."""

import json
import random
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.client.producing import new_topic
from tests.spark.reading import SECONDS_MAX, producer
from tests.toolkit_broker import ToolkitBroker, wait_for_markers
from tidelog import Admin, Table
from tidelog.spark.pipelines.materialize.pipeline import MaterializeOptions, facts_of, run
from tidelog.spark.pipelines.pipeline import PipelineOutcome, Silent
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import position_name

SCHEMA = "name STRING NOT NULL, visits BIGINT"
PARTITIONS = 3
KEYS = 40


class Customers:
    def __init__(self, spark: SparkSession, kafka: ToolkitBroker, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = kafka.bootstrap
        self.topic = new_topic(kafka, partitions=PARTITIONS)
        self.place = directory / "table"
        self.fold: dict[bytes, bytes] = {}
        self._refused: list[Any] = []
        self._sender = producer(kafka.bootstrap, on_delivery=lambda error, _: self._refused.append(error) if error else None)
        self._dice = random.Random(self.topic)

    def change(self, count: int) -> None:
        """As many messages: upserts, one in five a delete, one in twenty not JSON."""
        for number in range(count):
            key = b"customer-%d" % self._dice.randrange(KEYS)
            value: bytes | None = json.dumps({"name": f"Customer {number}", "visits": number}).encode()
            if self._dice.random() < 0.2:
                value = None
            elif self._dice.random() < 0.05:
                value = b"not JSON"
            self._send(key, value)
        assert (self._sender.flush(SECONDS_MAX), self._refused) == (0, [])

    def compact(self, **more: str) -> None:
        with Admin(self.bootstrap) as admin:
            admin.alter_topic(self.topic, **{"cleanup.policy": "compact", **more})

    def send_keyless(self, count: int) -> None:
        """Which a compacted topic would refuse."""
        for _ in range(count):
            self._sender.produce(self.topic, value=b"{}")
        assert (self._sender.flush(SECONDS_MAX), self._refused) == (0, [])

    def abort(self, count: int) -> None:
        """Offsets in every partition that no reader sees, markers after them."""
        sender = producer(self.bootstrap, **{"transactional.id": self.topic})
        sender.init_transactions(SECONDS_MAX)
        sender.begin_transaction()
        for number in range(count * PARTITIONS):
            sender.produce(self.topic, key=b"customer-%d" % number, value=b"aborted", partition=number % PARTITIONS)
        assert sender.flush(SECONDS_MAX) == 0
        sender.abort_transaction(SECONDS_MAX)
        wait_for_markers(self.bootstrap, self.topic, PARTITIONS)

    def behind(self) -> int:
        """Offsets that the topic has and the table has not passed."""
        table = LakeTable.open(self.place)
        return sum(
            end - table.position(position_name(self.topic, partition)) for partition, end in facts_of(self.options()).ends.items()
        )

    def _send(self, key: bytes, value: bytes | None) -> None:
        self._sender.produce(self.topic, key=key, value=value)
        self._sender.poll(0)
        if value is None:
            self.fold.pop(key, None)
        else:
            self.fold[key] = value

    def options(self, **given: Any) -> MaterializeOptions:
        chosen = {"bootstrap": self.bootstrap, "schema": SCHEMA, "buckets": 4, "batch_rows": 150, **given}
        return MaterializeOptions(topic=self.topic, table=str(self.place), **chosen)

    def run(self, **given: Any) -> PipelineOutcome:
        return run(self.spark, self.options(**given), Silent())

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = LakeTable.open(self.place, kind="materialize").delta.to_pyarrow_table().to_pylist()
        return found

    def check(self) -> None:
        """The table has what a fold has, each key once, with its fields."""
        rows = self.rows()
        assert {row["key"]: row["value"] for row in rows} == self.fold
        assert len(rows) == len(self.fold)
        for row in rows:
            fields = {} if row["bad"] else json.loads(row["value"])
            assert (row["name"], row["visits"]) == (fields.get("name"), fields.get("visits"))
            assert row["error"] == ("not JSON" if row["value"] == b"not JSON" else None)

    def check_as_a_client_has_it(self) -> None:
        with Table(self.topic, bootstrap=self.bootstrap) as table:
            table.wait_ready(SECONDS_MAX)
            assert {str(row["key"], "ascii"): row["value"] for row in self.rows()} == dict(table.items())
