"""The spans that a program exports, read by OpenTelemetry's own SDK.

They are recorded in a process of their own, because OpenTelemetry has one provider per process and other tests want none.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.toolkit_broker import ToolkitBroker

ROOT = Path(__file__).parents[2]
READ = """
import json, sys
sys.path.insert(0, "examples")
from tracing import traced
print(json.dumps([json.loads(span.to_json()) for span in traced(sys.argv[1])]))
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
