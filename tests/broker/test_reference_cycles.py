"""No request leaves a reference cycle behind.

What a request allocates must be freed when its references go. Objects in a cycle wait for the collector, and a collection that
finds many of them holds the loop for tens of milliseconds, in which nobody is served. So each of these workloads runs with the
collector off, after a first run that fills the caches, and a collection then must find no objects per request.
"""

import pytest

from tests.broker.handlers.classic_members import Member, stable_group
from tests.broker.handlers.group_clients import commit, find_coordinator, heartbeat, wait_loaded
from tests.broker.handlers.share_client import ShareMember, share_machine
from tests.broker.handlers.test_table import fields_for
from tests.broker.harness import FakeClient, Machine, fetch_request, produce_request
from tests.broker.test_replication import SECOND_US, ReplicatedCluster
from tests.broker.transactional import ORDERS, TransactionalProducer, stop_markers, transactional_machine
from tests.log.harness import batch
from tests.reference_cycles import assert_no_cycles
from tidelog.broker.api import Api
from tidelog.broker.handlers import TABLE, TABLES
from tidelog.config.listeners import ListenerRole
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import encode_fetch_request
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import encode_produce_request
from tidelog.wire.protocol import ApiKey

REQUESTS = 200
# Rebalances and transactions are many requests each.
ROUNDS = 40
OWN_CODECS = (ApiKey.PRODUCE, ApiKey.FETCH)
FETCH_VERSION = 12
PRODUCE_VERSION = 9


@pytest.fixture
def machine() -> Machine:
    machine = transactional_machine()
    client = machine.client()
    find_coordinator(client, "group")
    client.append()
    return machine


def fetch_body(offset: int, wait_ms: int, bytes_min: int = 1) -> bytes:
    return encode_fetch_request(FETCH_VERSION, fetch_request(offset=offset, wait_ms=wait_ms, bytes_min=bytes_min))


@pytest.mark.parametrize("api", [api for api in TABLE.values() if api.key not in OWN_CODECS], ids=lambda api: api.name)
@pytest.mark.parametrize("closes", [False, True], ids=["answered", "closing"])
def test_an_api(machine: Machine, api: Api, closes: bool) -> None:
    """At its newest version: answered, or sent on a connection that closes at once."""
    version = api.versions[1]
    fields = fields_for(api, version)
    body = encode_request(api.key, version, fields)
    client = machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            if closes:
                leaving = machine.client()
                leaving.send(api.key, version, body)
                leaving.session.closed()
            else:
                client.call(api.key, version, **fields)
        machine.run_for(100)

    assert_no_cycles(work, REQUESTS)


# The places of the listeners for brokers and for controllers.
LISTENERS = {
    "listeners": "A://127.0.0.1:1,B://127.0.0.1:2,C://127.0.0.1:3",
    "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    "inter.broker.listener.name": "B",
    "controller.listener.names": "C",
}
BETWEEN_NODES = [
    pytest.param(place, api, id=f"{role.name}-{api.name}")
    for place, role in ((1, ListenerRole.INTER_BROKER), (2, ListenerRole.CONTROLLER))
    for api in TABLES[role].values()
    if TABLE.get(api.key) is not api
]


@pytest.mark.parametrize(("place", "api"), BETWEEN_NODES)
def test_an_api_between_nodes(place: int, api: Api) -> None:
    """With nothing but defaults, which is a mistake to most of them: answered, or the end of the connection."""
    machine = Machine(LISTENERS)
    version = api.versions[1]
    body = encode_request(api.key, version, {})

    def work(count: int) -> None:
        for _ in range(count):
            for closes in (False, True):
                client = machine.client(place)
                client.send(api.key, version, body)
                if not closes:
                    machine.run_for(20)
                client.session.closed()
        machine.run_for(1_000)

    assert_no_cycles(work, ROUNDS)


def test_replication() -> None:
    """Followers' fetches that wait and are answered by data, heartbeats, and what the quorum says meanwhile."""
    cluster = ReplicatedCluster()
    cluster.send()
    cluster.run_until_in_sync(1, 2, 3)

    def work(count: int) -> None:
        for _ in range(count):
            cluster.send()
        until_us = cluster.world.scheduler.now_us + 5 * SECOND_US
        cluster.run_until("some time has passed", lambda: cluster.world.scheduler.now_us >= until_us)

    assert_no_cycles(work, ROUNDS)


@pytest.mark.parametrize("answer", list(AcknowledgeType), ids=lambda answer: answer.name)
def test_a_share_group(answer: AcknowledgeType) -> None:
    """Fetches that wait and are answered by data, that time out, and whose connections close."""
    machine, client, topic_id = share_machine(share_record_lock_duration_ms="15000")
    offset = client.append().base_offset + 1
    number = 0

    def work(count: int) -> None:
        nonlocal number, offset
        for _ in range(count):
            number += 1
            member = ShareMember(machine, f"m{number}", topic_id)
            member.join()
            fields = member.fetch_fields(max_wait_ms=10_000)
            member.client.send(ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, fields))
            offset = client.append().base_offset + 1
            machine.run_for(100)
            member.epoch += 1
            member.acknowledge((0, offset - 1, offset - 1, [answer]))
            member.fetch(max_wait_ms=5)
            member.client.send(
                ApiKey.SHARE_FETCH, 2, encode_request(ApiKey.SHARE_FETCH, 2, member.fetch_fields(max_wait_ms=10_000))
            )
            member.client.session.closed()
            machine.run_for(100)
        machine.run_for(120_000)

    assert_no_cycles(work, ROUNDS // 2)


def test_produce(machine: Machine) -> None:
    client = machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            for acks in (1, -1):
                assert client.append(acks=acks).error is ErrorCode.NONE
            assert client.append("missing").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert client.append(records=b"not a batch").error is not ErrorCode.NONE
            leaving = machine.client()
            body = encode_produce_request(PRODUCE_VERSION, produce_request(records=batch()))
            leaving.send(ApiKey.PRODUCE, PRODUCE_VERSION, body)
            leaving.session.closed()
            body = encode_produce_request(PRODUCE_VERSION, produce_request(records=batch(), timeout_ms=0))
            client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, body)
        machine.run_for(100)

    assert_no_cycles(work, REQUESTS)


def test_produce_while_the_disk_is_behind(machine: Machine) -> None:
    machine.broker.backlog.bytes_max = 0
    client = machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            assert client.append(acks=1).error is ErrorCode.NONE
            machine.run_for(20)

    assert_no_cycles(work, REQUESTS)
    assert machine.broker.backlog.held > 0


def test_fetch_that_does_not_wait(machine: Machine) -> None:
    client = machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            assert client.read().records is not None
            assert client.read("missing").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert client.read(offset=1 << 40).error is ErrorCode.OFFSET_OUT_OF_RANGE

    assert_no_cycles(work, REQUESTS)


@pytest.mark.parametrize("bytes_min", [1, 100])
def test_fetch_that_is_answered_by_data(machine: Machine, bytes_min: int) -> None:
    reader, writer = machine.client(), machine.client()
    offset = writer.append().base_offset + 1

    def work(count: int) -> None:
        nonlocal offset
        for _ in range(count):
            replies = len(reader.replies)
            reader.send(ApiKey.FETCH, FETCH_VERSION, fetch_body(offset, 10_000, bytes_min))
            while len(reader.replies) == replies:
                offset = writer.append().base_offset + 1
        reader.replies.clear()
        machine.run_for(20_000)

    assert_no_cycles(work, REQUESTS)


def test_fetch_that_times_out(machine: Machine) -> None:
    client = machine.client()
    offset = client.append().base_offset + 1

    def work(count: int) -> None:
        for _ in range(count):
            assert not client.read(offset=offset, wait_ms=5).records

    assert_no_cycles(work, REQUESTS)


def test_fetch_whose_connection_closes(machine: Machine) -> None:
    offset = machine.client().append().base_offset + 1

    def work(count: int) -> None:
        for _ in range(count):
            leaving = machine.client()
            leaving.send(ApiKey.FETCH, FETCH_VERSION, fetch_body(offset, 50))
            assert leaving.session.in_flight == 1
            leaving.session.closed()
        machine.run_for(100)

    assert_no_cycles(work, REQUESTS)


def test_fetch_whose_topic_is_deleted(machine: Machine) -> None:
    client, reader = machine.client(), machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            client.create_topic("short-lived")
            request = fetch_request("short-lived", wait_ms=60_000)
            replies = len(reader.replies)
            reader.send(ApiKey.FETCH, FETCH_VERSION, encode_fetch_request(FETCH_VERSION, request))
            client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "short-lived"}], timeout_ms=1000)
            machine.run_for(10)
            assert len(reader.replies) > replies
        machine.run_for(200_000)

    assert_no_cycles(work, ROUNDS)


def test_a_malformed_request(machine: Machine) -> None:
    def work(count: int) -> None:
        for _ in range(count):
            client = machine.client()
            client.send(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff")
            assert client.closed is not None

    assert_no_cycles(work, REQUESTS)


def test_rebalances_of_a_classic_group(machine: Machine) -> None:
    """JoinGroup and SyncGroup wait for each other here; then one more member joins and its connection closes."""
    find_coordinator(machine.client())
    wait_loaded(machine)

    def work(count: int) -> None:
        for _ in range(count):
            members = stable_group(machine)
            newcomer = Member(machine, "orders")
            newcomer.begin_join()
            newcomer.client.session.closed()
            for member in members:
                member.heartbeat()
            gone = [{"member_id": member.member_id} for member in (*members, newcomer)]
            members[0].client.call(ApiKey.LEAVE_GROUP, 5, group_id="g", members=gone)
            for member in members:
                member.client.session.closed()
        machine.run_for(120_000)

    assert_no_cycles(work, ROUNDS)


def test_a_sync_whose_connection_closes(machine: Machine) -> None:
    find_coordinator(machine.client())
    wait_loaded(machine)

    def work(count: int) -> None:
        for _ in range(count):
            members = [Member(machine, "orders") for _ in range(2)]
            waiting = [member.begin_join() for member in members]
            members[0].joined(waiting[0])
            again = members[0].begin_join()
            answers = [members[1].joined(waiting[1]), members[0].joined(again)]
            follower = next(member for member in members if member.member_id != answers[0].leader)
            follower.send_sync()
            for member in members:
                member.client.session.closed()
            machine.run_for(120_000)

    assert_no_cycles(work, ROUNDS)


def test_a_consumer_group(machine: Machine) -> None:
    client = machine.client()
    find_coordinator(client, "g848")
    wait_loaded(machine, "g848")

    def work(count: int) -> None:
        for number in range(count):
            member = f"m{number}"
            joined = heartbeat(client, member, 0, "orders", group_id="g848")
            heartbeat(client, member, joined.member_epoch, group_id="g848")
            commit(client, {"orders": {0: 1}}, group_id="g848", member_id=member, generation=joined.member_epoch)
            heartbeat(client, member, -1, group_id="g848")
        machine.run_for(120_000)

    assert_no_cycles(work, ROUNDS)


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_transactions(machine: Machine, is_v2: bool, committed: bool) -> None:
    producer = TransactionalProducer(machine, is_v2=is_v2).started()

    def work(count: int) -> None:
        for number in range(count):
            producer.write(ORDERS)
            if not is_v2:
                assert producer.add_offsets() is ErrorCode.NONE
            assert producer.commit_offset(number) is ErrorCode.NONE
            assert producer.end(committed) is ErrorCode.NONE
            producer.settle()
        machine.run_for(1_000)

    assert_no_cycles(work, ROUNDS)


def test_transactions_that_are_fenced_or_time_out(machine: Machine) -> None:
    def work(count: int) -> None:
        for _ in range(count):
            first = TransactionalProducer(machine, timeout_ms=1_000).started()
            first.write(ORDERS)
            # An InitProducerId that has to abort the open transaction waits for its markers.
            go_on = stop_markers(machine)
            second = TransactionalProducer(machine, timeout_ms=1_000)
            second.client.send(
                ApiKey.INIT_PRODUCER_ID,
                4,
                encode_request(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    {"transactional_id": "tx", "transaction_timeout_ms": 1_000, "producer_id": -1, "producer_epoch": -1},
                ),
            )
            machine.run_for(10)
            second.client.session.closed()
            first.client.session.closed()
            go_on()
            machine.run_for(20_000)
            third = TransactionalProducer(machine, timeout_ms=1_000).started()
            third.write(ORDERS)
            third.client.session.closed()
            machine.run_for(20_000)

    assert_no_cycles(work, ROUNDS // 4)


def test_topics_come_and_go(machine: Machine) -> None:
    client = machine.client()

    def work(count: int) -> None:
        for _ in range(count):
            client.create_topic("short-lived")
            client.append("short-lived")
            client.call(ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "short-lived", "count": 2}], timeout_ms=1000)
            client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "short-lived"}], timeout_ms=1000)
        machine.run_for(200_000)

    assert_no_cycles(work, ROUNDS)


def test_decisions_that_time_out(machine: Machine) -> None:
    def work(count: int) -> None:
        for number in range(count):
            client: FakeClient = machine.client()
            topics = [{"name": f"t{number % 2}", "num_partitions": 1, "replication_factor": 1}]
            client.call(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=1, validate_only=bool(number % 3))
            client.session.closed()
        machine.run_for(60_000)

    assert_no_cycles(work, REQUESTS)


def test_throttled_requests(machine: Machine) -> None:
    admin, client = machine.client(), machine.client()
    entity = [{"entity_type": "client-id", "entity_name": "test"}]
    ops = [{"key": "request_percentage", "value": 0.001, "remove": False}, {"key": "consumer_byte_rate", "value": 10.0}]
    admin.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)

    def work(count: int) -> None:
        for _ in range(count):
            client.fetch(fetch_request())
            client.call(ApiKey.METADATA, 12, topics=[{"name": "orders"}])
            leaving = machine.client()
            leaving.fetch(fetch_request())
            leaving.session.closed()
        machine.run_for(120_000)

    assert_no_cycles(work, REQUESTS)
