"""What requests are counted by, on a simulated clock: times are exact."""

import pytest

from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tests.broker.harness import Machine, fetch_request, produce_request
from tests.log.harness import batch
from tidelog.broker.handlers import TABLE
from tidelog.broker.request_metrics import (
    ERROR_PARTS_MAX,
    SLOWEST_PARTITIONS_MAX,
    SLOWEST_WINDOW_MS,
    TIMED_EVERY,
    TIMED_PER_SECOND_MAX,
    TOPICS_MAX,
    ApiTimings,
    RequestMetrics,
    RequestTiming,
)
from tidelog.metrics.labelled import OTHER
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import encode_fetch_request
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey


def make_metrics() -> RequestMetrics:
    return RequestMetrics(SimulatedClock(Scheduler()), TABLE)


def answered(metrics: RequestMetrics, elapsed_ns: int) -> RequestTiming:
    """A produce request that took so long."""
    timings = metrics.timings[ApiKey.PRODUCE]
    timings.count += 1
    timing = timings.begin(1, 1)
    timing.answered(1 + elapsed_ns)
    return timing


def timings(machine: Machine, api_key: int) -> ApiTimings:
    return machine.broker.request_metrics.timings[api_key]


def test_a_request_that_is_answered_at_once_has_no_wait() -> None:
    machine = Machine()
    machine.client().call(ApiKey.METADATA, 12, topics=None)
    found = timings(machine, ApiKey.METADATA)
    assert (found.total.count, found.handling.count, found.queue.count, found.wait.count) == (1, 1, 1, 0)


def test_a_produce_request_waits_for_the_disk() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    began_ns = machine.clock.monotonic_ns()
    client.append(count=3)
    elapsed_ns = machine.clock.monotonic_ns() - began_ns
    found = timings(machine, ApiKey.PRODUCE)
    assert elapsed_ns > 0
    # In the simulation a handler takes no time, a sync does.
    assert (found.total.sum, found.wait.sum, found.handling.sum) == (elapsed_ns, elapsed_ns, 0)
    assert dict(machine.broker.request_metrics.produce_to_ack)["orders"].sum == elapsed_ns
    assert machine.broker.request_metrics.slowest_partitions.found() == [(("orders", 0), elapsed_ns)]


def test_what_waited_before_it_was_begun_is_queue() -> None:
    machine = Machine()
    client = machine.client()
    client.received_ns = machine.clock.monotonic_ns()
    machine.run_for(7)
    client.call(ApiKey.METADATA, 12, topics=None)
    found = timings(machine, ApiKey.METADATA)
    assert found.queue.sum == found.total.sum == 7_000_000
    assert found.handling.sum == 0


def test_a_fetch_waits_for_data() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch_request(wait_ms=500)))
    machine.run_until(lambda: len(client.replies) == 2)
    # Long polls end together, in steps of ten milliseconds.
    assert timings(machine, ApiKey.FETCH).wait.sum == pytest.approx(505_000_000, abs=6_000_000)


@pytest.mark.parametrize("acks", [1, -1])
def test_topics_have_their_own_traffic(acks: int) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    records = batch(5)
    client.append(records=records, acks=acks)
    assert client.read(wait_ms=1_000).records is not None
    partition = machine.broker.partitions.find("orders", None, 0)
    assert (partition.produced_bytes, partition.fetched_bytes) == (len(records), len(records))
    assert dict(machine.broker.request_metrics.produce_to_ack)["orders"].count == 1


def test_a_topic_that_is_named_by_its_id() -> None:
    machine = Machine()
    client = machine.client()
    topic_id = client.create_topic()
    for acks in (1, -1):
        data = ProducePartition(0, memoryview(batch(1)))
        request = ProduceRequest(None, acks, 30_000, [ProduceTopic(None, topic_id, [data])])
        client.ask(ApiKey.PRODUCE, 13, encode_produce_request(13, request))
    assert dict(machine.broker.request_metrics.produce_to_ack)["orders"].count == 2


def test_when_there_are_many_some_stand_for_all() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic(flush_messages="1000")
    found = timings(machine, ApiKey.PRODUCE)
    body = encode_produce_request(9, produce_request(records=batch(1)))

    def produce(count: int) -> None:
        for _ in range(count):
            client.send(ApiKey.PRODUCE, 9, body)
            machine.broker.end_of_burst()

    produce(5)
    assert (found.count, found.total.count) == (5, 5), "few: all are timed"
    produce(TIMED_PER_SECOND_MAX)
    machine.run_for(100)
    assert found.untimed_mask == TIMED_EVERY - 1
    timed_before = found.total.count
    produce(10 * TIMED_EVERY)
    assert found.total.count == found.handling.count == found.queue.count == found.wait.count
    assert timed_before + 9 * TIMED_EVERY <= found.total.count <= found.count
    assert found.count - found.total.count < TIMED_EVERY
    assert dict(machine.broker.request_metrics.produce_to_ack)["orders"].count == found.total.count
    machine.run_for(200)
    assert found.untimed_mask == 0, "few again"
    produce(1)
    assert found.total.count == found.count, "the next one stands for those that were left out"


def test_topics_that_do_not_exist_take_no_place() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    for number in range(3):
        client.append(f"unknown-{number}")
        client.append(f"unknown-{number}", acks=1)
        client.read(f"unknown-{number}")
    assert dict(machine.broker.request_metrics.produce_to_ack) == {}
    errors = machine.broker.request_metrics.errors
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == {(ApiKey.PRODUCE, code): 6, (ApiKey.FETCH, code): 3}


def test_errors_of_requests_that_failed_as_a_whole_are_counted_once() -> None:
    machine = Machine()
    client = machine.client()
    client.append(acks=7)
    assert client.call(ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m").error_code
    assert client.fetch(fetch_request(replica_id=1)).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert sum(machine.broker.request_metrics.errors.values()) == 3
    assert (ApiKey.PRODUCE, ErrorCode.INVALID_REQUIRED_ACKS) in machine.broker.request_metrics.errors


def test_a_produce_request_whose_time_is_up_is_an_error_and_no_acknowledgement() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.produce(produce_request(records=batch(1), timeout_ms=0))
    assert machine.broker.request_metrics.errors == {(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT): 1}
    assert dict(machine.broker.request_metrics.produce_to_ack) == {}


def test_only_the_partition_that_was_waited_for_is_among_the_slowest() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("relaxed", flush_messages="1000")
    client.create_topic("durable")
    topics = [ProduceTopic(name, None, [ProducePartition(0, memoryview(batch(1)))]) for name in ("durable", "relaxed")]
    client.produce(ProduceRequest(None, -1, 30_000, topics))
    metrics = machine.broker.request_metrics
    assert [key for key, _ in metrics.slowest_partitions.found()] == [("durable", 0)]
    assert {name: histogram.count for name, histogram in metrics.produce_to_ack} == {"durable": 1, "relaxed": 1}


def test_what_was_slow_is_forgotten_after_two_windows() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.append()
    machine.run_for(SLOWEST_WINDOW_MS)
    assert machine.broker.request_metrics.slowest_partitions.found()
    machine.run_for(SLOWEST_WINDOW_MS + 1000)
    assert machine.broker.request_metrics.slowest_partitions.found() == []


def test_topics_and_slowest_partitions_are_bounded() -> None:
    metrics = make_metrics()
    for number in range(TOPICS_MAX + 50):
        metrics.acknowledged(f"topic-{number}", 0, answered(metrics, number))
    assert len(metrics.produce_to_ack) == TOPICS_MAX + 1
    assert metrics.produce_to_ack.of(OTHER).count == 50
    assert len(metrics.slowest_partitions.found()) == SLOWEST_PARTITIONS_MAX


def test_errors_are_found_at_any_depth_and_a_large_response_is_not_looked_through_whole() -> None:
    metrics = make_metrics()
    failed = {"error_code": ErrorCode.NOT_COORDINATOR}
    metrics.count_errors_in(ApiKey.METADATA, {"error_code": 0, "topics": [{"partitions": (failed, failed)}], "name": "a"})
    assert metrics.errors == {(ApiKey.METADATA, ErrorCode.NOT_COORDINATOR): 2}
    metrics.count_errors_in(ApiKey.METADATA, {"topics": [failed] * (10 * ERROR_PARTS_MAX)})
    assert metrics.errors[ApiKey.METADATA, ErrorCode.NOT_COORDINATOR] <= 2 + ERROR_PARTS_MAX
