"""A whole broker on simulated ports: what clients over a quota hear, and when they are listened to again."""

from typing import Any

import pytest

from tests.broker.handlers.test_table import fields_for
from tests.broker.harness import FakeClient, Machine, fetch_request, produce_request
from tests.log.harness import batch
from tidelog.broker.handlers import TABLE
from tidelog.broker.throttling import Throttled
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey

TEST_CLIENT: dict[str, str | None] = {"client-id": "test"}


def set_quotas(client: FakeClient, entity: dict[str, str | None], **quotas: float | None) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }
    (result,) = client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False).entries
    assert result.error_code == 0, result.error_message


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.client().create_topic()
    return machine


def held(machine: Machine, api: ApiKey, quota: str) -> Throttled:
    return machine.broker.throttling.by_api_and_key.get((api, quota), Throttled())


def test_a_producer_over_its_quota_is_answered_at_once_and_then_not_listened_to(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, producer_byte_rate=10)
    request = produce_request(records=batch(10))
    size = len(encode_produce_request(9, request)) + 15  # Its header, with the client id.
    answer = client.produce(request)
    assert answer.topics[0].partitions[0].error is ErrorCode.NONE
    expected_ms = round((size / 10 - 10) / 10 * 10_000)
    assert answer.throttle_time_ms == expected_ms > 0
    answered_ms = machine.clock.monotonic_ms()
    assert not client.session.wants_reading
    machine.run_until(lambda: client.session.wants_reading)
    # From when the request came; the answer waited for the disk.
    assert expected_ms - 50 <= machine.clock.monotonic_ms() - answered_ms <= expected_ms
    throttled = held(machine, ApiKey.PRODUCE, "producer_byte_rate")
    assert (throttled.count, throttled.milliseconds) == (1, expected_ms)
    # In the window there is still as much as the client may have in it.
    assert client.produce(produce_request(records=batch())).throttle_time_ms > 0


def test_within_its_quota_a_client_hears_nothing_of_it(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, producer_byte_rate=1_000_000, consumer_byte_rate=1_000_000)
    assert client.produce(produce_request(records=batch())).throttle_time_ms == 0
    assert client.fetch(fetch_request()).throttle_time_ms == 0
    assert client.session.wants_reading
    assert machine.broker.throttling.by_api_and_key == {}


def test_a_client_with_a_quota_is_answered_by_every_api(machine: Machine) -> None:
    """Also by the two whose response has no field for the throttle time."""
    set_quotas(machine.client(), TEST_CLIENT, request_percentage=1000)
    for api in TABLE.values():
        if api.decode is None:
            client = machine.client()
            assert client.call(api.key, api.versions[1], **fields_for(api, api.versions[1])) is not None
            assert client.closed is None, (api.name, client.closed)
    assert machine.events == []


def test_a_producer_that_expects_no_answer_is_held_too(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, producer_byte_rate=1)
    client.send(ApiKey.PRODUCE, 9, encode_produce_request(9, produce_request(records=batch(), acks=0)))
    assert client.session.in_flight == 0
    assert not client.session.wants_reading


def test_others_are_not_held_for_it_unless_they_share_the_quota(machine: Machine) -> None:
    client, other = machine.client(), machine.client()
    set_quotas(client, {"client-id": None}, producer_byte_rate=1)
    assert client.produce(produce_request(records=batch())).throttle_time_ms > 0
    assert other.session.wants_reading
    # The same client id on another connection: the same window.
    with_one = other.produce(produce_request(records=batch())).throttle_time_ms
    alone = Machine().client()
    alone.create_topic()
    set_quotas(alone, {"client-id": None}, producer_byte_rate=1)
    assert with_one > 1.9 * alone.produce(produce_request(records=batch())).throttle_time_ms


def test_quotas_of_the_anonymous_user_are_in_force_and_those_of_others_kept(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, {"user": "somebody"}, producer_byte_rate=1)
    assert client.produce(produce_request(records=batch())).throttle_time_ms == 0
    set_quotas(client, {"user": "ANONYMOUS"}, producer_byte_rate=1)
    assert client.produce(produce_request(records=batch())).throttle_time_ms > 0


def test_a_fetch_over_quota_is_empty_and_counts_as_not_sent(machine: Machine) -> None:
    client = machine.client()
    client.append(count=200)
    client.append(count=200)
    size = client.read().records
    assert size is not None
    one_batch = len(size) // 2
    # Ten seconds' worth is one batch, and a few bytes of the next, which a client throws away.
    set_quotas(client, TEST_CLIENT, consumer_byte_rate=-(-one_batch // 10))
    first = client.fetch(fetch_request())
    assert first.throttle_time_ms == 0
    assert one_batch <= len(first.topics[0].partitions[0].records or b"") < one_batch + 10
    second = client.fetch(fetch_request(offset=200))
    assert second.throttle_time_ms > 0
    assert (second.error, second.topics) == (ErrorCode.NONE, [])
    assert not client.session.wants_reading
    # What was not sent does not count against the next one.
    assert machine.client().fetch(fetch_request(offset=200)).throttle_time_ms <= second.throttle_time_ms
    machine.run_until(lambda: client.session.wants_reading)
    machine.run_for(12_000)
    third = client.fetch(fetch_request(offset=200))
    assert third.throttle_time_ms == 0
    assert len(third.topics[0].partitions[0].records or b"") == one_batch
    assert held(machine, ApiKey.FETCH, "consumer_byte_rate").count == 2


def test_a_batch_larger_than_the_whole_window_is_sent_when_the_window_is_empty(machine: Machine) -> None:
    client = machine.client()
    client.append(count=200)
    client.append(count=200)
    set_quotas(client, TEST_CLIENT, consumer_byte_rate=1)
    assert client.fetch(fetch_request()).topics[0].partitions[0].records
    assert client.fetch(fetch_request(offset=200)).topics == []


def test_a_throttled_fetch_begins_no_session_and_does_not_end_one(machine: Machine) -> None:
    client = machine.client()
    client.append(count=100)
    client.append(count=100)
    kept = client.fetch(fetch_request(session=(0, 0)))
    assert kept.session_id
    set_quotas(client, TEST_CLIENT, consumer_byte_rate=1)
    assert client.fetch(fetch_request()).throttle_time_ms == 0
    again = client.fetch(fetch_request(session=(kept.session_id, 1), offset=100))
    assert (again.throttle_time_ms > 0, again.session_id) == (True, kept.session_id)
    begun = client.fetch(fetch_request(session=(0, 0)))
    assert (begun.throttle_time_ms > 0, begun.session_id) == (True, 0)
    assert len(machine.broker.fetch_sessions) == 1


class Stopwatch:
    """Every look at it takes so long."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def test_request_time_is_counted_and_a_client_is_held_for_a_window_at_most(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, request_percentage=1)
    # 200 ms from the beginning to the answer: over ten seconds that is 2 percent.
    client.session.now_ns = Stopwatch(200_000_000)
    answer = client.call(ApiKey.DESCRIBE_CLUSTER, 0)
    assert answer.throttle_time_ms == 1_000
    assert not client.session.wants_reading
    assert held(machine, ApiKey.DESCRIBE_CLUSTER, "request_percentage").milliseconds == 1_000
    machine.run_until(lambda: client.session.wants_reading)


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        (ApiKey.METADATA, 13, {"topics": None}),
        (ApiKey.METADATA, 3, {"topics": [{"name": "orders"}]}),
        (ApiKey.LIST_OFFSETS, 6, {"replica_id": -1, "topics": []}),
        (ApiKey.OFFSET_COMMIT, 8, {"group_id": "g", "topics": []}),
        (ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}),
        (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]}),
    ],
)
def test_every_answer_says_so(machine: Machine, api: ApiKey, version: int, fields: dict[str, Any]) -> None:
    client = machine.client()
    if api is ApiKey.METADATA:
        client.call(api, version, **fields)  # The second one comes from the cache.
    set_quotas(client, TEST_CLIENT, request_percentage=0.001)
    client.session.now_ns = Stopwatch(1_000_000)
    answer = client.call(api, version, **fields)
    assert answer.throttle_time_ms > 0
    set_quotas(machine.client(), TEST_CLIENT, request_percentage=None)
    machine.run_until(lambda: client.session.wants_reading)
    assert client.call(api, version, **fields).throttle_time_ms == 0


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (ApiKey.END_TXN, {"transactional_id": "id", "producer_id": 1, "producer_epoch": 0, "committed": True}),
        (ApiKey.ADD_PARTITIONS_TO_TXN, {"v3_and_below_transactional_id": "id", "v3_and_below_topics": []}),
    ],
)
def test_answers_of_a_transactions_coordinator_say_so(machine: Machine, api: ApiKey, fields: dict[str, Any]) -> None:
    client = machine.client()
    client.call(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["id"])
    set_quotas(client, TEST_CLIENT, request_percentage=0.001)
    client.session.now_ns = Stopwatch(1_000_000)
    assert client.call(api, 3, **fields).throttle_time_ms > 0


def test_changes_of_metadata_are_refused_while_the_client_is_in_debt(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, controller_mutation_rate=1)

    def create(name: str, version: int = 7) -> Any:
        topic = {"name": name, "num_partitions": 10, "replication_factor": 1}
        answer = client.call(ApiKey.CREATE_TOPICS, version, topics=[topic], timeout_ms=1_000)
        return answer.topics[0].error_code, answer.throttle_time_ms

    # Eleven are a window's worth; the request that goes beyond it still may.
    assert create("a") == (0, 0)
    assert create("b") == (0, 0)
    code, throttle_ms = create("c")
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 8_000 < throttle_ms <= 9_000
    assert machine.broker.image.topic("c") is None
    machine.run_until(lambda: client.session.wants_reading)
    # A version that does not know the error: done, and held afterwards.
    code, throttle_ms = create("c", 5)
    assert code == 0
    assert throttle_ms > 8_000
    deleted = client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "a", "topic_id": bytes(16)}], timeout_ms=1_000)
    assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    grown = client.call(ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "a", "count": 20, "assignments": None}], timeout_ms=1_000)
    assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    asked = client.call(ApiKey.METADATA, 9, topics=[{"name": "made-by-asking"}], allow_auto_topic_creation=True)
    assert asked.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert machine.broker.image.topic("made-by-asking") is None


def test_connections_of_an_address_beyond_its_rate_are_left_alone(machine: Machine) -> None:
    broker = machine.broker
    assert broker.connection_throttle_ms("10.0.0.1") == 0
    set_quotas(machine.client(), {"ip": "10.0.0.1"}, connection_creation_rate=1)
    assert [broker.connection_throttle_ms("10.0.0.1") for _ in range(10)] == [0] * 10
    assert broker.connection_throttle_ms("10.0.0.1") == 1_000
    assert broker.connection_throttle_ms("10.0.0.2") == 0
    machine.run_for(11_000)
    assert broker.connection_throttle_ms("10.0.0.1") == 0


def test_quotas_are_there_after_a_restart_and_after_a_crash(machine: Machine) -> None:
    set_quotas(machine.client(), TEST_CLIENT, producer_byte_rate=1)
    for begin_again in (machine.restart, machine.crash):
        assert begin_again() is None
        assert machine.client().produce(produce_request(records=batch())).throttle_time_ms > 0


def test_a_quota_that_is_taken_away_holds_nobody_any_more(machine: Machine) -> None:
    client = machine.client()
    set_quotas(client, TEST_CLIENT, producer_byte_rate=1)
    assert client.produce(produce_request(records=batch())).throttle_time_ms > 0
    set_quotas(client, TEST_CLIENT, producer_byte_rate=None)
    assert not machine.broker.throttling.quotas.is_active
    assert client.produce(produce_request(records=batch())).throttle_time_ms == 0


def test_a_client_that_is_gone_leaves_no_timer_behind(machine: Machine) -> None:
    set_quotas(machine.client(), TEST_CLIENT, producer_byte_rate=1)
    client = machine.client()
    machine.run_for(200)
    before = len(machine.broker.timers)
    client.produce(produce_request(records=batch()))
    assert len(machine.broker.timers) == before + 1
    client.session.closed()
    assert len(machine.broker.timers) == before
    assert client.session.mute(1_000) == 0


def test_a_quota_of_next_to_nothing_can_be_taken_away_again(machine: Machine) -> None:
    """How long its client would have to wait is more than a float can say. It is held for as long as there is, and answered."""
    client = machine.client()
    set_quotas(client, TEST_CLIENT, request_percentage=1e-310, controller_mutation_rate=1e-310)
    client.session.now_ns = Stopwatch(1_000_000)
    codes = []
    for name in ("first", "second"):
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        codes.append(client.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000).topics[0].error_code)
    assert codes == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    set_quotas(client, TEST_CLIENT, request_percentage=None, controller_mutation_rate=None)
    assert not machine.broker.throttling.quotas.is_active
