"""librdkafka begins a new producer epoch when a batch is out of order, and then writes twice what another partition has already.

Partition 1 appends a message, and the acknowledgement is lost with the connection. Before the message is sent again, partition 0
refuses the first of two batches that are on the wire and takes the second. See ``tidelog.broker.refused_batches``.
"""

import json
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.broker.api import RequestContext
from tidelog.broker.handlers import produce
from tidelog.replication.errors import NotLeader
from tidelog.testing.thread_broker import ThreadBroker
from tidelog.wire.produce import ProduceResult

SECONDS_MAX = 30.0


class Faults:
    """Stands in for the append of the broker, which runs in another thread."""

    def __init__(self, append: Callable[..., ProduceResult]) -> None:
        self._append = append
        self.loses_acknowledgement = self.refuses_repetition = self.refuses_first = False
        self.is_first_refused = threading.Event()
        self.may_go_on = threading.Event()

    def append(self, context: RequestContext, batch: produce._ProducedBatch, codes: None) -> ProduceResult:
        if batch.data.partition == 1 and self.loses_acknowledgement:
            self.loses_acknowledgement, self.refuses_repetition = False, True
            result = self._append(context, batch, codes)
            context.session.end("the acknowledgement is lost")
            return result
        # The second attempt of the message must not come before partition 0 had its turn.
        is_repetition = batch.data.partition == 1 and self.refuses_repetition
        if is_repetition or (batch.data.partition == 0 and self.refuses_first):
            batch.refuse(NotLeader("not yet"))
        if batch.data.partition == 0 and self.refuses_first:
            self.refuses_first = False
            self.is_first_refused.set()
            self.may_go_on.wait(SECONDS_MAX)
        return self._append(context, batch, codes)


class Sender:
    def __init__(self, bootstrap_servers: str) -> None:
        settings = {"linger.ms": 0, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5, "statistics.interval.ms": 5}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "stats_cb": self._counted, **settings}
        )
        self.in_flight = 0
        """The messages of partition 0 that are on the wire."""
        self.delivered: list[bytes] = []

    def _counted(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get("orders", {}).get("partitions", {})
        self.in_flight = partitions.get("0", {}).get("msgs_inflight", 0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.delivered.append(message.value() or b"")

    def send(self, partition: int, value: bytes) -> None:
        self._producer.produce("orders", value, partition=partition, on_delivery=self._delivered)

    def run_until(self, condition: Callable[[], bool]) -> None:
        waited = threading.Event()
        timer = threading.Timer(SECONDS_MAX, waited.set)
        timer.start()
        while not condition():
            assert not waited.is_set(), "the condition was never reached"
            self._producer.poll(0.005)
        timer.cancel()


@pytest.mark.pure_python
def test_a_message_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(produce._append)
    monkeypatch.setattr(produce, "_append", faults.append)
    with ThreadBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(SECONDS_MAX)
        sender = Sender(broker.bootstrap_servers)
        for partition in (0, 1):
            sender.send(partition, b"earlier")
        sender.run_until(lambda: len(sender.delivered) == 2)

        faults.loses_acknowledgement = True
        sender.send(1, b"once")
        sender.run_until(lambda: faults.refuses_repetition)
        faults.refuses_first = True
        sender.send(0, b"first")
        sender.run_until(faults.is_first_refused.is_set)
        sender.send(0, b"second")
        sender.run_until(lambda: sender.in_flight == 2)
        faults.may_go_on.set()
        sender.run_until(lambda: {b"first", b"second"} <= {*sender.delivered})
        faults.refuses_repetition = False
        sender.run_until(lambda: b"once" in sender.delivered)

        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
        ends = [consumer.get_watermark_offsets(TopicPartition("orders", index))[1] for index in (0, 1)]
        consumer.close()
    assert ends == [3, 2]
