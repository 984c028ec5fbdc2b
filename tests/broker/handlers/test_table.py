"""Every API at every version that it is served in: asked, answered, and failed as a whole."""

import dataclasses
import subprocess
import sys
from typing import Any, NoReturn

import pytest

from tests.broker.harness import NODE_ID, PATH, Machine, fetch_request, produce_request
from tests.log.harness import batch
from tidelog.broker.api import Api
from tidelog.broker.broker import BrokerNode
from tidelog.broker.handlers import TABLE, TABLES
from tidelog.config.listeners import ListenerRole
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import Direction, versions
from tidelog.wire.produce import ProduceTopic
from tidelog.wire.protocol import ApiKey

OWN_CODECS = (ApiKey.PRODUCE, ApiKey.FETCH)
VERSIONS = [
    (api, version)
    for api in TABLE.values()
    if api.key not in OWN_CODECS
    for version in range(api.versions[0], api.versions[1] + 1)
]
TOPIC_RESOURCE = {"resource_type": 2, "resource_name": "orders"}
ID = b"0123456789abcdef"
ACL = {"resource_name": "x", "principal": "User:x", "host": "*"}


def fields_for(api: Api, version: int) -> dict[str, Any]:
    """A request with every array filled."""
    by_topic = {"topic": "orders", "partitions": [0]}
    delete = {"topics": [{"name": "orders"}]} if version >= 6 else {"topic_names": ["orders"]}
    requests: dict[int, dict[str, Any]] = {
        ApiKey.LIST_OFFSETS: {
            "replica_id": -1,
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
        ApiKey.METADATA: {"topics": [{"name": "orders"}]},
        ApiKey.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
        ApiKey.CREATE_TOPICS: {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        ApiKey.DELETE_TOPICS: delete,
        ApiKey.DELETE_RECORDS: {"topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}], "timeout_ms": 1000},
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {"topics": [{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        ApiKey.CREATE_ACLS: {"creations": [ACL]},
        ApiKey.DELETE_ACLS: {"filters": [{}]},
        ApiKey.DESCRIBE_CONFIGS: {"resources": [TOPIC_RESOURCE]},
        ApiKey.ALTER_CONFIGS: {"resources": [{**TOPIC_RESOURCE, "configs": [{"name": "retention.ms", "value": "1"}]}]},
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [{**TOPIC_RESOURCE, "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}]}]
        },
        ApiKey.ALTER_REPLICA_LOG_DIRS: {"dirs": [{"path": PATH, "topics": [{"name": "orders", "partitions": [0]}]}]},
        ApiKey.DESCRIBE_LOG_DIRS: {"topics": [by_topic]},
        ApiKey.CREATE_PARTITIONS: {"topics": [{"name": "orders", "count": 2, "assignments": None}]},
        ApiKey.ELECT_LEADERS: {"topic_partitions": [by_topic]},
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": [NODE_ID]}]}]
        },
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": [{"name": "orders", "partition_indexes": [0]}]},
        ApiKey.DESCRIBE_QUORUM: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": [{"entity_type": "user", "match_type": 2, "match": None}], "strict": True},
        ApiKey.ALTER_CLIENT_QUOTAS: {
            "entries": [
                {
                    "entity": [{"entity_type": "client-id", "entity_name": "a"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": False,
        },
        ApiKey.UPDATE_FEATURES: {"feature_updates": [{"feature": "metadata.version", "max_version_level": 30}]},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "orders"}]},
        **group_fields(version),
        **transaction_fields(version),
    }
    return requests.get(ApiKey(api.key), {})


def group_fields(version: int) -> dict[int, dict[str, Any]]:
    group = {"group_id": "group"}
    topic = {"name": "orders", "topic_id": ID}
    offsets = {"topics": [{**topic, "partition_indexes": [0]} if version >= 8 else {"name": "orders", "partition_indexes": [0]}]}
    member = {**group, "member_id": "member", "generation_id": 1}
    joining = {"member_id": "", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
    return {
        ApiKey.FIND_COORDINATOR: {"coordinator_keys": ["group"]} if version >= 4 else {"key": "group"},
        ApiKey.OFFSET_COMMIT: {
            **group,
            "generation_id_or_member_epoch": -1,
            "topics": [{**topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        },
        ApiKey.OFFSET_FETCH: {"groups": [{**group, **offsets}]} if version >= 8 else {**group, **offsets},
        ApiKey.JOIN_GROUP: {**group, **joining, "protocols": [{"name": "range", "metadata": b""}]},
        ApiKey.SYNC_GROUP: {**member, "protocol_type": "consumer", "protocol_name": "range"},
        ApiKey.HEARTBEAT: member,
        ApiKey.LEAVE_GROUP: {**group, "members": [{"member_id": "member"}]} if version >= 3 else {**group, "member_id": "member"},
        ApiKey.DESCRIBE_GROUPS: {"groups": ["group"]},
        ApiKey.DELETE_GROUPS: {"groups_names": ["group"]},
        ApiKey.OFFSET_DELETE: {**group, "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]},
        ApiKey.CONSUMER_GROUP_HEARTBEAT: {
            **group,
            "member_id": "member",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        },
        ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": ["group"]},
        ApiKey.SHARE_GROUP_DESCRIBE: {"group_ids": ["group"]},
        ApiKey.SHARE_GROUP_HEARTBEAT: {
            **group,
            "member_id": "member",
            "member_epoch": 0,
            "subscribed_topic_names": ["orders"],
        },
        ApiKey.SHARE_FETCH: {
            **group,
            "member_id": "member",
            "share_session_epoch": 0,
            "max_records": 1,
            "topics": [{"topic_id": ID, "partitions": [{"partition_index": 0}]}],
        },
        ApiKey.SHARE_ACKNOWLEDGE: {**group, "member_id": "member", "share_session_epoch": 1},
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {"groups": [{**group, "topics": [{"topic_name": "orders", "partitions": [0]}]}]},
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: {
            **group,
            "topics": [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}],
        },
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: {**group, "topics": [{"topic_name": "orders"}]},
    }


def transaction_fields(version: int) -> dict[int, dict[str, Any]]:
    producer = {"transactional_id": "id", "producer_id": 5, "producer_epoch": 0}
    topics = [{"name": "orders", "partitions": [0]}]
    adding = {
        "v3_and_below_transactional_id": "id",
        "v3_and_below_producer_id": 5,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics,
    }
    offsets = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    indexes = [{"name": "orders", "partition_indexes": [0]}]
    marker = {"producer_id": 5, "producer_epoch": 0, "transaction_result": True, "topics": indexes, "coordinator_epoch": 0}
    return {
        ApiKey.INIT_PRODUCER_ID: {"transactional_id": "id", "transaction_timeout_ms": 1000},
        ApiKey.ADD_PARTITIONS_TO_TXN: {"transactions": [{**producer, "topics": topics}]} if version >= 4 else adding,
        ApiKey.ADD_OFFSETS_TO_TXN: {**producer, "group_id": "group"},
        ApiKey.END_TXN: {**producer, "committed": True},
        ApiKey.TXN_OFFSET_COMMIT: {**producer, "group_id": "group", "topics": offsets},
        ApiKey.WRITE_TXN_MARKERS: {"markers": [marker]},
        ApiKey.DESCRIBE_PRODUCERS: {"topics": indexes},
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["id"]},
    }


# What the requests above are answered with, where that is not success, and from which version on.
EXPECTED = {
    ApiKey.DESCRIBE_ACLS: (0, ErrorCode.SECURITY_DISABLED),
    ApiKey.CREATE_ACLS: (0, ErrorCode.SECURITY_DISABLED),
    ApiKey.DELETE_ACLS: (0, ErrorCode.SECURITY_DISABLED),
    ApiKey.ELECT_LEADERS: (0, ErrorCode.ELECTION_NOT_NEEDED),
    ApiKey.OFFSET_COMMIT: (10, ErrorCode.UNKNOWN_TOPIC_ID),
    ApiKey.OFFSET_FETCH: (10, ErrorCode.UNKNOWN_TOPIC_ID),
    ApiKey.JOIN_GROUP: (4, ErrorCode.MEMBER_ID_REQUIRED),
    ApiKey.SYNC_GROUP: (0, ErrorCode.UNKNOWN_MEMBER_ID),
    ApiKey.HEARTBEAT: (0, ErrorCode.UNKNOWN_MEMBER_ID),
    ApiKey.LEAVE_GROUP: (0, ErrorCode.UNKNOWN_MEMBER_ID),
    ApiKey.DESCRIBE_GROUPS: (6, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.DELETE_GROUPS: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.OFFSET_DELETE: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ApiKey.END_TXN: (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ApiKey.TXN_OFFSET_COMMIT: (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    ApiKey.PUSH_TELEMETRY: (0, ErrorCode.INVALID_REQUEST),
    ApiKey.SHARE_GROUP_DESCRIBE: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.SHARE_FETCH: (0, ErrorCode.UNKNOWN_TOPIC_ID),
    ApiKey.SHARE_ACKNOWLEDGE: (0, ErrorCode.SHARE_SESSION_NOT_FOUND),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, ErrorCode.GROUP_ID_NOT_FOUND),
    ApiKey.UNREGISTER_BROKER: (0, ErrorCode.BROKER_ID_NOT_REGISTERED),
    # The voters of a broker that is alone stand in its settings.
    ApiKey.ADD_RAFT_VOTER: (0, ErrorCode.UNSUPPORTED_VERSION),
    ApiKey.REMOVE_RAFT_VOTER: (0, ErrorCode.UNSUPPORTED_VERSION),
}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


def codes_in(value: Any) -> list[int]:
    """Every error code in a message."""
    if isinstance(value, tuple):
        return [code for element in value for code in codes_in(element)]
    found: list[int] = []
    for name, field in vars(value).items() if hasattr(value, "__dict__") else ():
        found += [field] if name in ("error_code", "partition_error_code") else codes_in(field)
    return found


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_is_answered(api: Api, version: int) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    client.call(ApiKey.FIND_COORDINATOR, 0, key="group")
    client.call(ApiKey.FIND_COORDINATOR, 1, key="id", key_type=1)
    response = client.call(api.key, version, **fields_for(api, version))
    since, code = EXPECTED.get(ApiKey(api.key), (0, ErrorCode.NONE))
    expected = {code} if version >= since else set()
    assert set(codes_in(response)) - {0} == expected - {0}
    assert machine.facts("unexpected_error") == []


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_an_unexpected_error_becomes_a_response_of_every_version(api: Api, version: int, monkeypatch: Any) -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic()
    broken = dataclasses.replace(api, handle=raise_unexpected)
    monkeypatch.setattr(client.session, "apis", {**TABLE, api.key: broken})
    response = client.call(api.key, version, **fields_for(api, version))
    codes = codes_in(response)
    has_no_place = (api.key, version) in NOWHERE_TO_SAY_IT
    assert has_no_place or -1 in codes
    assert machine.facts("unexpected_error") == [{"where": api.name, "error": "RuntimeError('planted')"}]


@pytest.mark.parametrize("version", range(3, 14))
def test_an_unexpected_error_of_produce(machine: Machine, monkeypatch: Any, version: int) -> None:
    broken = dataclasses.replace(TABLE[ApiKey.PRODUCE], handle=raise_unexpected)
    monkeypatch.setattr(machine.broker, "tables", {ListenerRole.CLIENT: {ApiKey.PRODUCE: broken}})
    request = produce_request(records=batch())
    if version >= 13:
        request = request._replace(topics=[ProduceTopic(None, ID, request.topics[0].partitions)])
    ((result,),) = [topic.partitions for topic in machine.client().produce(request, version).topics]
    assert (result.error, result.base_offset) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)


@pytest.mark.parametrize("version", range(4, 19))
def test_an_unexpected_error_of_fetch(machine: Machine, monkeypatch: Any, version: int) -> None:
    broken = dataclasses.replace(TABLE[ApiKey.FETCH], handle=raise_unexpected)
    monkeypatch.setattr(machine.broker, "tables", {ListenerRole.CLIENT: {ApiKey.FETCH: broken}})
    response = machine.client().fetch(fetch_request("orders", topic_id=ID), version)
    assert response.topics[0].partitions[0].error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert version < 7 or response.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_failure_that_cannot_be_said_ends_the_connection(machine: Machine, monkeypatch: Any) -> None:
    broken = dataclasses.replace(TABLE[ApiKey.METADATA], handle=raise_unexpected, failure=raise_unexpected)
    monkeypatch.setattr(machine.broker, "tables", {ListenerRole.CLIENT: {ApiKey.METADATA: broken}})
    client = machine.client()
    client.send(ApiKey.METADATA, 0, b"\0\0\0\0")
    assert client.closed is not None


# Its response names directories, and has an error of its own from version 3 on.
NOWHERE_TO_SAY_IT = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}


def raise_unexpected(*_: object) -> NoReturn:
    raise RuntimeError("planted")


def test_what_is_served_has_a_definition() -> None:
    for api in TABLE.values():
        known = versions(api.key, Direction.REQUEST)
        assert set(range(api.versions[0], api.versions[1] + 1)) <= set(known), api.name


def test_the_table_is_the_one_that_the_protocol_notes_ask_for() -> None:
    served = {ApiKey(key).name: api.versions for key, api in TABLE.items()}
    assert served == {
        "ADD_RAFT_VOTER": (0, 1),
        "REMOVE_RAFT_VOTER": (0, 0),
        "PRODUCE": (3, 13),
        "SHARE_GROUP_HEARTBEAT": (1, 1),
        "SHARE_GROUP_DESCRIBE": (1, 1),
        "SHARE_FETCH": (1, 2),
        "SHARE_ACKNOWLEDGE": (1, 2),
        "DESCRIBE_SHARE_GROUP_OFFSETS": (0, 1),
        "ALTER_SHARE_GROUP_OFFSETS": (0, 0),
        "DELETE_SHARE_GROUP_OFFSETS": (0, 0),
        "FETCH": (4, 18),
        "LIST_OFFSETS": (1, 11),
        "METADATA": (0, 13),
        "OFFSET_COMMIT": (2, 10),
        "OFFSET_FETCH": (1, 10),
        "FIND_COORDINATOR": (0, 6),
        "JOIN_GROUP": (0, 9),
        "HEARTBEAT": (0, 4),
        "LEAVE_GROUP": (0, 5),
        "SYNC_GROUP": (0, 5),
        "DESCRIBE_GROUPS": (0, 6),
        "LIST_GROUPS": (0, 5),
        "API_VERSIONS": (0, 4),
        "CREATE_TOPICS": (2, 7),
        "DELETE_TOPICS": (1, 6),
        "DELETE_RECORDS": (0, 2),
        "OFFSET_FOR_LEADER_EPOCH": (2, 4),
        "DESCRIBE_ACLS": (1, 3),
        "CREATE_ACLS": (1, 3),
        "DELETE_ACLS": (1, 3),
        "DESCRIBE_CONFIGS": (1, 4),
        "ALTER_CONFIGS": (0, 2),
        "ALTER_REPLICA_LOG_DIRS": (1, 2),
        "DESCRIBE_LOG_DIRS": (1, 5),
        "CREATE_PARTITIONS": (0, 3),
        "ELECT_LEADERS": (0, 2),
        "INCREMENTAL_ALTER_CONFIGS": (0, 1),
        "ALTER_PARTITION_REASSIGNMENTS": (0, 1),
        "LIST_PARTITION_REASSIGNMENTS": (0, 0),
        "DESCRIBE_QUORUM": (0, 2),
        "DESCRIBE_CLIENT_QUOTAS": (0, 1),
        "ALTER_CLIENT_QUOTAS": (0, 1),
        "UPDATE_FEATURES": (0, 2),
        "DESCRIBE_CLUSTER": (0, 2),
        "LIST_CONFIG_RESOURCES": (0, 1),
        "DESCRIBE_TOPIC_PARTITIONS": (0, 0),
        "DELETE_GROUPS": (0, 2),
        "OFFSET_DELETE": (0, 0),
        "CONSUMER_GROUP_HEARTBEAT": (0, 1),
        "CONSUMER_GROUP_DESCRIBE": (0, 1),
        "INIT_PRODUCER_ID": (0, 5),
        "ADD_PARTITIONS_TO_TXN": (0, 5),
        "ADD_OFFSETS_TO_TXN": (0, 4),
        "END_TXN": (0, 5),
        "TXN_OFFSET_COMMIT": (0, 5),
        "WRITE_TXN_MARKERS": (1, 2),
        "DESCRIBE_PRODUCERS": (0, 0),
        "LIST_TRANSACTIONS": (0, 2),
        "DESCRIBE_TRANSACTIONS": (0, 0),
        "GET_TELEMETRY_SUBSCRIPTIONS": (0, 0),
        "PUSH_TELEMETRY": (0, 0),
        "UNREGISTER_BROKER": (0, 0),
    }


def test_a_broker_serves_the_table(machine: Machine) -> None:
    assert isinstance(machine.broker, BrokerNode)
    assert machine.broker.tables is TABLES
    assert TABLES[ListenerRole.CLIENT] is TABLE


def test_each_kind_of_listener_serves_its_own_apis() -> None:
    settings = {
        "listeners": "A://127.0.0.1:1,B://127.0.0.1:2,C://127.0.0.1:3",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "advertised.listeners": "A://outside:11,B://inside:12,C://quorum:13",
        "inter.broker.listener.name": "B",
        "controller.listener.names": "C",
    }
    machine = Machine(settings)
    clients, brokers, controllers = (machine.client(index) for index in range(3))
    served = [{api.api_key for api in client.call(ApiKey.API_VERSIONS, 0).api_keys} for client in (clients, brokers, controllers)]
    assert served == [
        set(TABLES[ListenerRole.CLIENT]),
        set(TABLES[ListenerRole.INTER_BROKER]),
        set(TABLES[ListenerRole.CONTROLLER]),
    ]
    assert ApiKey.CREATE_TOPICS in served[2]
    # Whoever asks is told the addresses of the listener that they asked on.
    clients.create_topic()
    for client, host, port in ((clients, "outside", 11), (brokers, "inside", 12)):
        (broker,) = client.call(ApiKey.METADATA, 12, topics=None).brokers
        assert (broker.host, broker.port) == (host, port)
        (broker,) = client.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers
        assert (broker.host, broker.port) == (host, port)
        assert client.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=2).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    (controller,) = controllers.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=2).brokers
    assert (controller.host, controller.port) == ("quorum", 13)
    assert controllers.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    # Records are no business of controllers.
    controllers.send(ApiKey.METADATA, 0, b"\0\0\0\0")
    assert controllers.closed == "unknown api key 3"


# What librdkafka 2.16 and kafka-python 3.0 were seen to send, and Java's client 4.1, which is given the newest versions.
LIBRDKAFKA = """API_VERSIONS:3 METADATA:13 FIND_COORDINATOR:2 JOIN_GROUP:5 SYNC_GROUP:3 HEARTBEAT:3 OFFSET_FETCH:9 LIST_OFFSETS:7
    LEAVE_GROUP:1 CONSUMER_GROUP_HEARTBEAT:1 INIT_PRODUCER_ID:4 GET_TELEMETRY_SUBSCRIPTIONS:0 ADD_OFFSETS_TO_TXN:0
    TXN_OFFSET_COMMIT:3"""
KAFKA_PYTHON = "API_VERSIONS:4 FIND_COORDINATOR:6 JOIN_GROUP:7 SYNC_GROUP:5 OFFSET_FETCH:8 LIST_OFFSETS:11 LEAVE_GROUP:5"
NEWEST = """API_VERSIONS METADATA FIND_COORDINATOR JOIN_GROUP SYNC_GROUP HEARTBEAT OFFSET_FETCH LIST_OFFSETS LEAVE_GROUP
    INIT_PRODUCER_ID"""


def test_after_the_warm_up_the_requests_of_clients_import_nothing() -> None:
    """In a process of its own, because the other tests have imported everything."""
    program = """
import sys
from tidelog.broker.handlers import TABLE, warm_up
from tidelog.wire.messages import Direction, message_reader, message_writer
from tidelog.wire.protocol import ApiKey
slices = list(warm_up())
modules = len(sys.modules)
for word in sys.argv[1:]:
    name, _, version = word.partition(":")
    version = int(version) if version else TABLE[ApiKey[name]].versions[1]
    message_reader(ApiKey[name], version, Direction.REQUEST)
    message_writer(ApiKey[name], version, Direction.RESPONSE)
assert len(sys.modules) == modules, sorted(sys.modules)[modules:]
print(len(slices))
"""
    words = [*LIBRDKAFKA.split(), *KAFKA_PYTHON.split(), *NEWEST.split()]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(words), "each import is a slice of its own"
