"""A process with few descriptors, and clients that take as many as they can get: nothing goes offline, and rolls go on."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from confluent_kafka import KafkaError, Message, Producer

from tests.faults.load import COMMON
from tests.faults.rounds import create_topic
from tests.faults.test_disk_errors import assert_nothing_unexpected
from tidelog.testing import Broker

DESCRIPTORS = 256
IDLE_CONNECTIONS = 300
TOPIC = "orders"
VALUE_BYTES = 100_000
MESSAGES = 40
PROGRAM = (
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}));"
    "from tidelog.testing.child import run; run()"
)


class NarrowBroker(Broker):
    def _command(self, settings: Mapping[str, str]) -> list[str]:
        return [sys.executable, "-P", "-c", PROGRAM, json.dumps(settings), str(os.getpid())]


def test_idle_connections_leave_the_logs_their_descriptors() -> None:
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    with NarrowBroker(configs={"log.segment.bytes": 1 << 20, "max.connections": 1000}) as broker, ExitStack() as stack:
        create_topic(broker, TOPIC, 1)
        producer = Producer({**COMMON, "bootstrap.servers": broker.bootstrap_servers, "acks": "all", "retries": 0})
        producer.produce(TOPIC, b"first", partition=0, on_delivery=on_delivery)
        assert producer.flush(30) == 0
        host, port = broker.bootstrap_servers.split(":")
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port)), 10))
        for _ in range(MESSAGES):
            producer.produce(TOPIC, os.urandom(VALUE_BYTES), partition=0, on_delivery=on_delivery)
            assert producer.flush(30) == 0
        assert refused == []
        assert_nothing_unexpected(broker)
        assert [event for event in broker.events if event["event"] == "log_offline"] == []
        (limited,) = (event for event in broker.events if event["event"] == "setting_limited")
        assert (limited["setting"], limited["value"], limited["descriptors_max"]) == ("max.connections", 1000, DESCRIPTORS)
        assert limited["in_force"] < DESCRIPTORS / 2
