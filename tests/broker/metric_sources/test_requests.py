import pytest

from tests.broker.harness import Machine, fetch_request
from tests.broker.metric_sources.shown import Shown
from tests.log.harness import batch
from tidelog.broker.request_metrics import TOPICS_MAX
from tidelog.metrics.labelled import OTHER
from tidelog.wire.protocol import ApiKey


def test_requests_topics_and_errors() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    records = batch(3)
    client.append(records=records)
    client.append("nothing")
    client.fetch(fetch_request(session=(0, 0)))
    shown = Shown(machine)
    assert shown.value("tidelog_requests_total", "Produce") == 2
    assert shown.histogram("tidelog_request_seconds", "Produce").total == 2
    assert shown.histogram("tidelog_request_wait_seconds", "Produce").total == 1
    assert ("tidelog_request_wait_seconds", ("Fetch",)) not in shown.series
    assert shown.value("tidelog_request_errors_total", "Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert shown.value("tidelog_topic_produced_bytes_total", "orders") == len(records)
    assert shown.value("tidelog_topic_fetched_bytes_total", "orders") == len(records)
    assert shown.value("tidelog_fetch_sessions") == 1
    waited = shown.histogram("tidelog_topic_produce_to_ack_seconds", "orders").sum
    assert waited > 0
    assert shown.value("tidelog_slowest_partition_produce_to_ack_seconds", "orders", "0") == pytest.approx(waited)


def test_a_topic_that_was_deleted_is_no_longer_shown() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append()
    client.call(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"])
    assert Shown(machine).labels("tidelog_topic_produced_bytes_total") == []


def test_more_topics_than_are_shown() -> None:
    machine = Machine()
    client = machine.client()
    for number in range(TOPICS_MAX + 2):
        client.create_topic(f"topic-{number}")
        client.append(f"topic-{number}", acks=1)
    shown = Shown(machine)
    labels = shown.labels("tidelog_topic_produced_bytes_total")
    assert len(labels) == TOPICS_MAX + 1
    assert shown.value("tidelog_topic_produced_bytes_total", OTHER) == 2 * len(batch(1))
