"""Kafka's own Java producer on our broker: it speaks transactions v2, because the broker has finalized them. Runs under
``make compat``."""

from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath, run_tool
from tests.compatibility.kafka_client import admin_client, create_topic, read_partition
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.testing import Broker

pytestmark = pytest.mark.apache_kafka

RECORDS = 2_000
PARTITIONS = 3


def test_a_java_producer_gets_an_epoch_for_each_transaction(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with Broker(persist=tmp_path / "data") as broker:
        create_topic(admin_client(broker.bootstrap_servers), "measured", partitions=PARTITIONS)
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "measured", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "1000"),
            *("--bootstrap-server", broker.bootstrap_servers, "--transactional-id", "java", "--transaction-duration-ms", "100"),
        )
        with TransactionAdmin(broker.bootstrap_servers) as admin:
            (described,) = admin.describe_transactions(["java"]).values()
        committed = [
            read_partition(broker.bootstrap_servers, "measured", partition, committed_only=True)
            for partition in range(PARTITIONS)
        ]
    assert described.state == "CompleteCommit"
    # Two seconds of transactions of a tenth each; a client of version 1 would have kept epoch 0.
    assert described.producer_epoch > 3
    assert sum(len(each.records) for each in committed) == RECORDS
