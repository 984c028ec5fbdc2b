"""A topic of orders for ``enrich``, with times of their own, and what comes out of it."""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.spark.pipelines.made_table import NOON, put_customers
from tests.spark.reading import SECONDS_MAX, producer
from tests.spark.sink.reader import committed_messages
from tests.toolkit_broker import create_topic
from tidelog.spark.pipelines.enrich import EnrichOptions

SCHEMA = "customer STRING NOT NULL, amount BIGINT"


class Orders:
    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        # Its times are long ago, and stay.
        self.topic = create_topic(bootstrap, f"orders-{secrets.token_hex(4)}", config={"retention.ms": "-1"})
        self.output = create_topic(bootstrap, f"enriched-{secrets.token_hex(4)}", partitions=2, config={"retention.ms": "-1"})
        self.table = directory / "customers"
        self.checkpoint = directory / "checkpoint"
        put_customers(self.table, {"ada": "Delft", "bob": "Gouda", "eve": "Leiden"})

    def send(self, orders: Sequence[tuple[int, str, int]], *, bad: int = 0, tombstones: int = 0) -> None:
        """Seconds after noon, customer and amount."""
        refused: list[Any] = []
        sender = producer(self.bootstrap, on_delivery=lambda error, _: refused.append(error) if error else None)
        for seconds, customer, amount in orders:
            value = json.dumps({"customer": customer, "amount": amount}).encode()
            time_ms = int(NOON.timestamp() * 1000) + seconds * 1000
            sender.produce(self.topic, key=b"%d" % amount, value=value, timestamp=time_ms, headers=[("h", b"1")])
        for other in [b"no order"] * bad + [None] * tombstones:
            sender.produce(self.topic, value=other, timestamp=int(NOON.timestamp() * 1000))
        assert (sender.flush(SECONDS_MAX), refused) == (0, [])

    def options(self, **given: Any) -> EnrichOptions:
        places = {"table": str(self.table), "output": self.output, "checkpoint": str(self.checkpoint)}
        settings = {"topic": self.topic, "schema": SCHEMA, "on": "customer", "bootstrap": self.bootstrap, "batch_rows": 20}
        return EnrichOptions(**{**settings, **places, **given})

    def written(self) -> list[Any]:
        return committed_messages(self.bootstrap, self.output)

    def values(self) -> list[dict[str, Any]]:
        return sorted((json.loads(message.value()) for message in self.written()), key=str)
