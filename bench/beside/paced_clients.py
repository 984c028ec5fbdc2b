"""A writer that keeps a pace and a reader that notes when each message came; each a process, started by ``latency``.

A message begins with the time of its ``produce`` call on the system's monotonic clock. The first tenth of a run, at most five
seconds of it, is not counted: connections, metadata and the first fetch belong to it. The reader prints ``ready``, and at the end
the times in nanoseconds at which each message was sent and then those at which each arrived, as 64-bit integers.
"""

import gc
import json
import struct
import sys
import time
from array import array
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

STAMP = struct.Struct(">q")
UNCOUNTED_SHARE = 0.1
UNCOUNTED_MAX = 25_000
# Longer than any reader may be silent; then it is a failure.
SILENCE_SECONDS_MAX = 60.0


def write(
    bootstrap: str, topic: str, count: int, size_bytes: int, per_second: int, settings: dict[str, Any], keys: int = 0
) -> None:
    """``keys``: how many different keys the messages have; none if it is 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "queue.buffering.max.messages": 1_000_000, **settings})
    padding = b"x" * (size_bytes - STAMP.size)
    interval_ns = 1_000_000_000 // per_second
    gc.disable()
    due = time.monotonic_ns()
    for number in range(count):
        due += interval_ns
        while (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        key = str(number % keys) if keys else None
        producer.produce(topic, STAMP.pack(time.monotonic_ns()) + padding, key)
        producer.poll(0)
    if producer.flush(SILENCE_SECONDS_MAX):
        raise KafkaException("not all was acknowledged")


def read(bootstrap: str, topic: str, count: int) -> None:
    settings = {"group.id": "bench", "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 500}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.get_watermark_offsets(TopicPartition(topic, 0), SILENCE_SECONDS_MAX)
    print("ready", flush=True)
    gc.disable()
    sent, arrived = array("q"), array("q")
    uncounted = min(count * UNCOUNTED_SHARE, UNCOUNTED_MAX)
    for number in range(count):
        message = consumer.poll(SILENCE_SECONDS_MAX)
        now = time.monotonic_ns()
        if message is None or message.error() is not None:
            raise KafkaException("no message" if message is None else message.error())
        if number >= uncounted:
            sent.append(STAMP.unpack_from(message.value())[0])
            arrived.append(now)
    sys.stdout.buffer.write(sent.tobytes() + arrived.tobytes())
    sys.stdout.flush()
    consumer.close()


if __name__ == "__main__":
    run = write if sys.argv[1] == "write" else read
    run(**json.loads(sys.argv[2]))
