"""How much one client moves: batched messages in and out, and requests of one message.

The client is librdkafka in this process, with the same settings whatever the broker. Time runs until everything is acknowledged
(in) or handed to Python (out).
"""

from time import perf_counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.beside.subjects import Reachable
from bench.broker_process import WAIT_SECONDS_MAX

MESSAGES_PER_CALL = 10_000
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_000_000, "log_level": 0}
# A linger that fills batches.
BATCHED = {"linger.ms": 10, "batch.num.messages": 100_000, "batch.size": 1_000_000, "enable.idempotence": False}
# One message in a request, and as many requests in flight as a connection may have.
UNBATCHED = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 100, "enable.idempotence": False}


class NotDelivered(Exception):
    pass


def producer_of(subject: Reachable, settings: dict[str, Any]) -> Producer:
    return Producer({"bootstrap.servers": subject.bootstrap_servers, "acks": "all", **QUEUE, **settings})


def send_one(subject: Reachable, topic: str, value: bytes) -> None:
    """One message, acknowledged when it returns; also a broker that comes up meanwhile is found at once."""
    producer = producer_of(subject, {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20, "linger.ms": 0})
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer.produce(topic, value, on_delivery=on_delivery)
    if producer.flush(WAIT_SECONDS_MAX) or errors:
        raise NotDelivered(str(errors[:1]))


def produce_rate(subject: Reachable, topic: str, value: bytes, count: int, settings: dict[str, Any]) -> float:
    """Messages per second."""
    producer = producer_of(subject, settings)
    # The first message pays for connections and metadata.
    producer.produce(topic, value)
    if producer.flush(WAIT_SECONDS_MAX):
        raise NotDelivered("the first message")
    batch: list[dict[str, Any]] = [{"value": value} for _ in range(min(count, MESSAGES_PER_CALL))]
    began, queued = perf_counter(), 0
    while queued < count:
        wanted = batch if count - queued >= len(batch) else batch[: count - queued]
        taken = producer.produce_batch(topic, wanted)
        queued += taken
        producer.poll(0 if taken == len(wanted) else 0.01)
    if producer.flush(WAIT_SECONDS_MAX):
        raise NotDelivered(f"{len(producer)} messages")
    return count / (perf_counter() - began)


def consume_rate(subject: Reachable, topic: str, count: int) -> float:
    """Messages per second, from the beginning of the topic's only partition."""
    settings = {"group.id": "bench", "enable.auto.commit": False, "log_level": 0}
    # By default the client stops fetching for a second when its queue is full.
    queues = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}
    consumer = Consumer({"bootstrap.servers": subject.bootstrap_servers, **settings, **queues})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        began, read = perf_counter(), 0
        while read < count:
            found = consumer.consume(min(MESSAGES_PER_CALL, count - read), WAIT_SECONDS_MAX)
            if not found or found[0].error() is not None:
                raise KafkaException(found[0].error() if found else KafkaError._TIMED_OUT)
            read += len(found)
        return count / (perf_counter() - began)
    finally:
        consumer.close()
