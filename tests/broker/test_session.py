"""Several answers become one."""

import struct
import weakref

import pytest

from tests.broker.harness import FakeClient, Machine, fetch_request, produce_request
from tests.log.harness import batch
from tidelog.broker.api import Part, ResultCollector
from tidelog.broker.session import IN_FLIGHT_REQUESTS_MAX
from tidelog.wire.fetch import encode_fetch_request
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey

CLUSTER = encode_request(ApiKey.DESCRIBE_CLUSTER, 0, {})


@pytest.fixture
def client() -> FakeClient:
    client = Machine().client()
    client.create_topic()
    client.replies.clear()
    return client


def correlation_ids(client: FakeClient) -> list[int]:
    return [struct.unpack_from(">i", reply)[0] for reply in client.replies]


def test_gotcha_7_responses_keep_the_order_of_the_requests(client: FakeClient) -> None:
    waits = client.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch_request(wait_ms=500)))
    quick = [client.send(ApiKey.DESCRIBE_CLUSTER, 0, CLUSTER) for _ in range(3)]
    assert client.replies == []
    assert client.session.in_flight == 4
    client.machine.run_until(lambda: len(client.replies) == 4)
    assert correlation_ids(client) == [waits, *quick]
    assert client.session.in_flight == 0


def test_a_silent_request_between_others_leaves_no_gap(client: FakeClient) -> None:
    waits = client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=-1)))
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=0)))
    last = client.send(ApiKey.DESCRIBE_CLUSTER, 0, CLUSTER)
    client.machine.run_until(lambda: client.session.in_flight == 0)
    assert correlation_ids(client) == [waits, last]


def test_connections_do_not_wait_for_each_other(client: FakeClient) -> None:
    other = client.machine.client()
    client.send(ApiKey.FETCH, 12, encode_fetch_request(12, fetch_request(wait_ms=60_000)))
    other.call(ApiKey.DESCRIBE_CLUSTER, 0)
    assert client.replies == []


def test_a_client_with_too_much_in_flight_is_not_read_any_further(client: FakeClient) -> None:
    body = encode_fetch_request(12, fetch_request(wait_ms=500))
    for _ in range(IN_FLIGHT_REQUESTS_MAX):
        assert client.session.wants_reading
        client.send(ApiKey.FETCH, 12, body)
    assert not client.session.wants_reading
    client.machine.run_until(lambda: client.session.wants_reading)
    assert client.replies


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "shorter than its header"),
        (b"\0\x12\0\0\0\0\0\x01", "shorter than its header"),
        (struct.pack(">hhih", 999, 0, 1, -1), "unknown api key 999"),
        (struct.pack(">hhih", -1, 0, 1, -1), "unknown api key -1"),
        (struct.pack(">hhih", ApiKey.SASL_HANDSHAKE, 0, 1, -1), "unknown api key 17"),
        (struct.pack(">hhih", ApiKey.VOTE, 0, 1, -1) + b"\0", "unknown api key 52"),
        (struct.pack(">hhih", ApiKey.DESCRIBE_CONFIGS, 99, 1, -1) + b"\0", "version 99 is not served, only 1 to 4"),
        (struct.pack(">hhih", ApiKey.PRODUCE, 2, 1, -1), "version 2 is not served, only 3 to 13"),
        (struct.pack(">hhih", ApiKey.CREATE_TOPICS, 2, 1, -1) + b"\0\0\0\x05", "malformed CreateTopics request"),
        (struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1) + b"\0\xff", "malformed Produce request"),
    ],
)
def test_gotcha_7_what_cannot_be_read_or_is_not_served_closes_the_connection(
    client: FakeClient, frame: bytes, reason: str
) -> None:
    client.send_bytes(frame)
    assert client.closed is not None
    assert reason in client.closed
    assert client.replies == []


def test_nothing_is_taken_after_the_end(client: FakeClient) -> None:
    client.send_bytes(b"")
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=-1)))
    assert client.replies == []
    assert client.machine.broker.partitions.find("orders", None, 0).log.log_end_offset == 0


def test_answers_that_come_after_the_end_are_dropped(client: FakeClient) -> None:
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=-1)))
    client.session.closed()
    client.machine.run_for(100)
    assert client.replies == []
    assert client.machine.broker.partitions.find("orders", None, 0).log.durable.offset == 1


def test_a_session_that_is_closed_lets_go_of_its_connection() -> None:
    """Its connection has a large buffer and knows the session: as a cycle they would wait for a collection."""

    class Connection:
        def send(self, response: list[Part]) -> None: ...

        def close(self, reason: str) -> None: ...

    connection = Connection()
    alive = weakref.ref(connection)
    session = Machine().broker.session("127.0.0.1", connection.send, connection.close)
    session.closed()
    del connection
    assert alive() is None
    session.end("nobody hears of it")


def test_a_client_that_has_gone_leaves_no_decision_and_no_timer_behind(client: FakeClient) -> None:
    machine = client.machine
    machine.run_until(lambda: not client.session.in_flight)
    timers = len(machine.broker.timers)
    names = [f"of-nobody-{number}" for number in range(3)]
    for name in names:
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
        fields = {"topics": topics, "timeout_ms": 2**31 - 1}
        client.send(ApiKey.CREATE_TOPICS, 7, encode_request(ApiKey.CREATE_TOPICS, 7, fields))
    client.session.closed()
    machine.client().create_topic("of-somebody")
    assert len(machine.broker.controller.decisions) == 0
    assert [machine.broker.image.topic(name) is None for name in names] == [False, True, True], "the first was under way"
    assert len(machine.broker.timers) == timers


def test_answers_come_in_the_order_of_the_questions_when_all_are_there() -> None:
    said: list[list[object]] = []
    gather = ResultCollector(3, lambda results: said.append(list(results)))
    gather.put(2, "c")
    gather.put(0, "a")
    assert said == []
    gather.put(1, None)
    assert said == [["a", None, "c"]]


def test_no_questions_are_answered_at_once() -> None:
    said: list[list[object]] = []
    ResultCollector(0, lambda results: said.append(list(results)))
    assert said == [[]]
