"""Requests by API, errors by code, traffic by topic, the slowest partitions, fetch sessions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.broker.request_metrics import SLOWEST_PARTITIONS_MAX, TOPICS_MAX
from tidelog.metrics.histogram import NANOSECONDS_PER_SECOND, SECONDS, SECONDS_COARSE
from tidelog.metrics.registry import Description, Kind, Registry, Rest, Sample
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

# More than the protocol has.
APIS_MAX = 100
ERRORS_MAX = 500

REQUESTS = Description("tidelog_requests_total", Kind.COUNTER, "Requests received.", ("api",), APIS_MAX)
TOTAL = Description(
    "tidelog_request_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a request to its answer, before that is sent. Above 500 a second every 32nd is timed for 32.",
    ("api",),
    APIS_MAX,
)
QUEUE = Description(
    "tidelog_request_queue_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a request until it was begun: behind others of the same turn.",
    ("api",),
    APIS_MAX,
)
HANDLING = Description(
    "tidelog_request_handling_seconds",
    Kind.HISTOGRAM,
    "Decoding a request and doing what can be done at once; it holds the loop.",
    ("api",),
    APIS_MAX,
)
WAIT = Description(
    "tidelog_request_wait_seconds",
    Kind.HISTOGRAM,
    "From then on until the answer, of requests that had to wait: for the disk, for data, for a group.",
    ("api",),
    APIS_MAX,
)
ERRORS = Description(
    "tidelog_request_errors_total",
    Kind.COUNTER,
    "Error codes in responses, each as often as it stands in them.",
    ("api", "code"),
    ERRORS_MAX,
)
PRODUCE_TO_ACK = Description(
    "tidelog_topic_produce_to_ack_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a produce request to its acknowledgement, once for each partition in it.",
    ("topic",),
    TOPICS_MAX,
)
PRODUCED = Description(
    "tidelog_topic_produced_bytes_total", Kind.COUNTER, "Bytes of records that producers sent, as stored.", ("topic",), TOPICS_MAX
)
FETCHED = Description(
    "tidelog_topic_fetched_bytes_total", Kind.COUNTER, "Bytes of records that consumers were sent.", ("topic",), TOPICS_MAX
)
SLOWEST = Description(
    "tidelog_slowest_partition_produce_to_ack_seconds",
    Kind.GAUGE,
    "The worst produce-to-ack time of the last 30 to 60 seconds, of the partitions where it was worst.",
    ("topic", "partition"),
    SLOWEST_PARTITIONS_MAX,
    Rest.MAX,
)


def add_request_metrics(registry: Registry, broker: "Broker") -> None:
    registry.add([REQUESTS, TOTAL, QUEUE, HANDLING, WAIT, ERRORS], lambda: _collect_requests(broker))
    registry.add([PRODUCE_TO_ACK, PRODUCED, FETCHED, SLOWEST], lambda: _collect_topics(broker))
    registry.add_value(
        Kind.GAUGE, "tidelog_fetch_sessions", "Incremental fetch sessions that are kept.", lambda: len(broker.fetch_sessions)
    )


def _collect_requests(broker: "Broker") -> Iterator[Sample]:
    metrics = broker.request_metrics
    for key, timings in metrics.timings.items():
        if not timings.count:
            continue
        labels = (broker.apis[key].name,)
        yield REQUESTS, labels, timings.count
        yield TOTAL, labels, timings.total.value(SECONDS)
        yield QUEUE, labels, timings.queue.value(SECONDS)
        yield HANDLING, labels, timings.handling.value(SECONDS)
        if any(timings.wait.counts):
            yield WAIT, labels, timings.wait.value(SECONDS)
    for (key, code), count in list(metrics.errors.items()):
        yield ERRORS, (broker.apis[key].name, ErrorCode(code).name), count


def _collect_topics(broker: "Broker") -> Iterator[Sample]:
    metrics = broker.request_metrics
    metrics.produce_to_ack.forget(lambda name: broker.image.topic(name) is None)
    for name, histogram in metrics.produce_to_ack:
        yield PRODUCE_TO_ACK, (name,), histogram.value(SECONDS_COARSE)
    for partition in list(broker.partitions):
        if partition.produced_bytes or partition.fetched_bytes:
            # Samples with the same labels are added up.
            yield PRODUCED, (partition.topic,), partition.produced_bytes
            yield FETCHED, (partition.topic,), partition.fetched_bytes
    for (topic, index), worst_ns in metrics.slowest_partitions.found():
        yield SLOWEST, (topic, str(index)), worst_ns / NANOSECONDS_PER_SECOND
