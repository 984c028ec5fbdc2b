"""Tracing: from a producer over two retries into a dead letter and its replay. ``python examples/tracing.py [HOST:PORT]``

The page that goes with it: docs/guides/tracing.md.
"""

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tidelog import Admin, Backoff, Consumer, Producer, Worker
from tidelog.client.message import Message
from tidelog.deadletters import DeadLetters


def traced(bootstrap: str) -> Sequence[Any]:
    """Let a message fail three times and succeed when it is replayed, and return the spans that were exported."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    suffix = secrets.token_hex(4)
    topic, receipts = f"orders-{suffix}", f"receipts-{suffix}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        admin.create_topic(receipts, partitions=1)

    with Producer(bootstrap) as producer:
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            producer.send(topic, {"order": 1}, key="customer-1").result()
        with Consumer(bootstrap, topics=[topic]) as consumer:
            wait_until(lambda: len(consumer.poll(timeout=1)) > 0)

        has_address = threading.Event()
        worker = Worker(bootstrap, group="email", topics=[topic], retries=2, backoff=Backoff(base=0.05, cap=0.1))

        @worker.handler
        def send_email(message: Message) -> None:
            if not has_address.is_set():
                raise LookupError("this customer has no address")
            producer.send(receipts, message.value, key=message.key).result()

        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_until(lambda: worker.metrics().dead == 1)
            has_address.set()
            DeadLetters(bootstrap).replay(f"{topic}.email.dlq")
            wait_until(lambda: worker.metrics().handled == 1)
        finally:
            worker.stop()
            thread.join()
    # The ledger is where a replay writes down what it did: that is no part of the message's way.
    return [span for span in exporter.get_finished_spans() if not span.name.endswith(".ledger")]


def main(bootstrap: str) -> None:
    logging.getLogger("tidelog").setLevel(logging.CRITICAL)
    spans = sorted(traced(bootstrap), key=lambda span: span.start_time)
    names = {span.context.span_id: span.name for span in spans}
    print(f"one trace: {len({span.context.trace_id for span in spans if not span.links}) == 1}")
    for span in spans:
        parts = [f"{span.name:40}"]
        if "tidelog.attempt" in span.attributes:
            parts.append(f"attempt {span.attributes['tidelog.attempt']}")
        if span.parent is not None:
            parts.append(f"under {names[span.parent.span_id]}")
        parts += [f"links to {names[link.context.span_id]}" for link in span.links]
        if "error.type" in span.attributes:
            parts.append(f"failed: {span.attributes['error.type']}")
        print("  ".join(parts))


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError("what should happen did not happen within a minute")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
