"""The spans that a program exports, read by OpenTelemetry's own SDK.

They are recorded in a process of their own, because OpenTelemetry has one provider per process and other tests want none.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.client.queue.working import new_queue
from tests.toolkit_broker import ToolkitBroker

ROOT = Path(__file__).parents[2]
READ = """
import json, sys
sys.path.insert(0, "examples")
from tracing import traced
print(json.dumps([json.loads(span.to_json()) for span in traced(sys.argv[1])]))
"""
QUEUE = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tidelog import AsyncQueue, Queue

bootstrap, name = sys.argv[1:]
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")

def attempt(queue, job):
    with job.processing():
        if job.deliveries == 1:
            raise OSError("the store does not answer")
        queue.send("thumbnail of " + job.text(), key="second").result()

with Queue(bootstrap, name) as queue:
    with tracer.start_as_current_span("upload"):
        queue.send("cat.png", key="first").result()
    done = 0
    while done < 2:
        for job in queue.receive(wait=20):
            if job.key == b"first":
                try:
                    attempt(queue, job)
                except OSError:
                    job.nack()
                    continue
            job.ack()
            done += 1

async def send_async():
    async with AsyncQueue(bootstrap, name) as queue:
        with tracer.start_as_current_span("upload of another"):
            await queue.send("dog.png")

asyncio.run(send_async())
print(json.dumps([json.loads(span.to_json()) for span in exporter.get_finished_spans()]))
"""
SECONDS_MAX = 120


def test_a_message_is_one_trace_from_its_producer_to_the_replay_of_its_dead_letter(kafka: ToolkitBroker) -> None:
    words = [sys.executable, "-c", READ, kafka.bootstrap]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=SECONDS_MAX)
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    polls = [span for span in spans if span["attributes"].get("messaging.operation.name") == "poll"]
    traced = [span for span in spans if span not in polls]
    assert len({span["context"]["trace_id"] for span in traced}) == 1
    by_operation: dict[str | None, list[dict[str, Any]]] = {}
    for span in traced:
        by_operation.setdefault(span["attributes"].get("messaging.operation.name"), []).append(span)
        if "messaging.operation.name" in span["attributes"]:
            assert span["attributes"]["messaging.system"] == "kafka"

    sends, rounds = by_operation["send"], by_operation["process"]
    (checkout,) = by_operation[None]
    first = sends[0]
    assert first["parent_id"] == checkout["context"]["span_id"]
    assert first["kind"] == "SpanKind.PRODUCER"
    topic = first["attributes"]["messaging.destination.name"]
    letters = [f"{topic}.email.retry.0", f"{topic}.email.retry.1", f"{topic}.email.dlq", f"{topic}.email.retry.0"]
    assert [span["attributes"]["messaging.destination.name"] for span in sends[1:5]] == letters

    assert [span["attributes"]["tidelog.attempt"] for span in rounds] == [1, 2, 3, 1]
    assert {span["parent_id"] for span in rounds} == {first["context"]["span_id"]}
    assert {span["kind"] for span in rounds} == {"SpanKind.CONSUMER"}
    assert [span["status"]["status_code"] for span in rounds] == ["ERROR"] * 3 + ["UNSET"]
    assert [span["attributes"].get("error.type") for span in rounds] == ["LookupError"] * 3 + [None]
    assert {span["attributes"]["messaging.consumer.group.name"] for span in rounds} == {"email"}
    # What the handler sends is under its own round.
    assert sends[5]["parent_id"] == rounds[3]["context"]["span_id"]

    # The consumer's span belongs to no message alone, so it links to their traces.
    (poll,) = polls
    assert poll["attributes"]["messaging.batch.message_count"] == 1
    assert poll["links"][0]["context"]["span_id"] == first["context"]["span_id"]


def test_a_job_of_a_queue_is_one_trace_from_its_sender_over_its_deliveries_to_what_they_send(kafka: ToolkitBroker) -> None:
    words = [sys.executable, "-c", QUEUE, kafka.bootstrap, new_queue(kafka.bootstrap)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    upload, another = (span for span in spans if span["name"].startswith("upload"))
    first, second, third = (span for span in spans if span["name"].startswith("send "))
    failed, succeeded = (span for span in spans if span["name"].startswith("process "))
    polls = [span for span in spans if span["name"].startswith("poll ")]
    assert first["parent_id"] == upload["context"]["span_id"]
    assert failed["parent_id"] == succeeded["parent_id"] == first["context"]["span_id"]
    assert second["parent_id"] == succeeded["context"]["span_id"]
    assert [span["attributes"]["tidelog.attempt"] for span in (failed, succeeded)] == [1, 2]
    assert (failed["attributes"]["error.type"], failed["status"]["status_code"]) == ("OSError", "ERROR")
    assert [event["name"] for event in failed["events"]] == ["exception"]
    assert succeeded["status"]["status_code"] == "UNSET"
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in polls) == 3
    assert {link["context"]["trace_id"] for span in polls for link in span["links"]} == {upload["context"]["trace_id"]}
    # The trace of a task goes along into the thread that sends.
    assert third["parent_id"] == another["context"]["span_id"]
