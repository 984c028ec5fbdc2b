"""Seen from outside: how much memory a reader takes, what it does when its broker dies, and who pays for importing it."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.client.fetch.rows import Row, rows_of
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.fetch.client import FetchClient
from tidelog.testing import Broker

SECONDS_MAX = 60
MEMORY_MIB_MAX = 300
# More than the limit when all of it is held: the reader itself takes some 70.
LOG_MIB = 260
VALUE = bytes(range(256)) * 256
READER = """
import sys
from pathlib import Path
from tidelog.client.fetch.client import FetchClient

with FetchClient(sys.argv[1]) as client:
    rows = sum(batch.num_rows for batch in client.read(sys.argv[2], 0, 0, int(sys.argv[3])))
most = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(rows, int(most.split()[1]) // 1024)
"""


def fill(bootstrap: str, topic: str, count: int, value: bytes, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "queue.buffering.max.kbytes": 32 << 10, **settings})
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(SECONDS_MAX) == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory a process had is asked of Linux")
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_memory_does_not_grow_with_the_log(kafka: ToolkitBroker, codec: str) -> None:
    topic = new_topic(kafka)
    count = LOG_MIB * 2**20 // len(VALUE)
    fill(kafka.bootstrap, topic, count, VALUE, **{"compression.type": codec})
    command = [sys.executable, "-c", READER, kafka.bootstrap, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, mebibytes = map(int, done.stdout.split())
    assert rows == count
    assert mebibytes < MEMORY_MIB_MAX


@pytest.mark.tidelog_only
@pytest.mark.parametrize("settings", [{}, {"socket.nagle.disable": "true"}], ids=["own", "librdkafka"])
def test_a_broker_that_is_killed_during_a_read(settings: Mapping[str, str]) -> None:
    with Broker() as broker:
        create_topic(broker.bootstrap_servers, "orders")
        fill(broker.bootstrap_servers, "orders", 20_000, b"v" * 200, **{"batch.num.messages": 100})
        # Little at a time, so that the read is not over before the kill.
        little = {**settings, "max.partition.fetch.bytes": "65536"} | ({"queued.max.messages.kbytes": "64"} if settings else {})
        with FetchClient(broker.bootstrap_servers, settings=little) as client:
            found: list[Row] = []
            for number, batch in enumerate(client.read("orders", 0, 0, 20_000, max_rows_per_batch=500)):
                found += rows_of([batch], "orders", 0)
                if number == 3:
                    broker.kill()
                    broker.start()
        assert number > 10
        assert [row.offset for row in found] == list(range(20_000))


def test_nothing_else_imports_arrow() -> None:
    modules = ["tidelog", "tidelog.client.producer", "tidelog.client.consumer", "tidelog.client.admin", "tidelog.cli.main"]
    code = f"import sys, {', '.join(modules)}; print(sorted({{'numpy', 'pyarrow', 'pyspark'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
