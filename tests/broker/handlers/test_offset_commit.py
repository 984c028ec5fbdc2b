"""OffsetCommit through the broker: every version, exact error codes, and that an answer means durable."""

from typing import Any

import pytest

from tests.broker.handlers.group_clients import codes, commit, committed, find_coordinator, heartbeat, join, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.broker.handlers import offset_commit
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

NONE = ErrorCode.NONE
VERSIONS = range(2, 11)


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    client.create_topic("orders", 2)
    find_coordinator(client)
    return client


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_in_every_version(client: FakeClient, version: int) -> None:
    response = commit(client, {"orders": {0: 41, 1: 42}}, version)
    (topic,) = response.topics
    assert [(answer.partition_index, answer.error_code) for answer in topic.partitions] == [(0, NONE), (1, NONE)]
    if version >= 10:
        image = client.machine.broker.image.topic("orders")
        assert image is not None
        assert topic.topic_id == image.topic_id
    else:
        assert topic.name == "orders"
    assert (committed(client), committed(client, partition=1)) == (41, 42)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_exist(client: FakeClient, version: int) -> None:
    response = commit(client, {"orders": {0: 1, 2: 1}, "nowhere": {0: 1}}, version)
    answers = [[answer.error_code for answer in topic.partitions] for topic in response.topics]
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answers == [[NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [unknown_topic]]


BAD_COMMITS: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("no such group, before 9", {"group_id": "new", "generation": 0, "version": 8}, ErrorCode.ILLEGAL_GENERATION),
    ("no such group", {"group_id": "new", "generation": 0}, ErrorCode.GROUP_ID_NOT_FOUND),
    ("unknown member", {"member_id": "nobody", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ("no member of a group with members", {}, ErrorCode.UNKNOWN_MEMBER_ID),
    ("generation that was", {"member_id": "joined", "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
    ("generation that is not yet", {"member_id": "joined", "generation": 2}, ErrorCode.ILLEGAL_GENERATION),
    ("unknown instance", {"member_id": "joined", "generation": 1, "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ("metadata too long", {"member_id": "joined", "generation": 1, "metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ("group id too long", {"group_id": "x" * 40_000}, ErrorCode.INVALID_GROUP_ID),
]


@pytest.mark.parametrize(("fields", "expected"), [bad[1:] for bad in BAD_COMMITS], ids=[bad[0] for bad in BAD_COMMITS])
def test_bad_commits(client: FakeClient, fields: dict[str, Any], expected: ErrorCode) -> None:
    member_id, generation = join(client, "orders")
    assert generation == 1
    if fields.get("member_id") == "joined":
        fields = {**fields, "member_id": member_id}
    response = commit(client, {"orders": {0: 1, 9: 1}}, **fields)
    assert codes(response) == {"orders": {0: expected, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}
    assert committed(client) == -1


def test_a_member_commits(client: FakeClient) -> None:
    member_id, generation = join(client, "orders")
    response = commit(client, {"orders": {0: 7}}, member_id=member_id, generation=generation, metadata="x" * 4096)
    assert codes(response) == {"orders": {0: NONE}}
    assert committed(client) == 7


def test_during_a_rebalance(client: FakeClient) -> None:
    """Joined but not synced: the assignment is being made."""
    joined = client.call(
        ApiKey.JOIN_GROUP,
        3,
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    response = commit(client, {"orders": {0: 7}}, member_id=joined.member_id, generation=joined.generation_id)
    assert codes(response) == {"orders": {0: ErrorCode.REBALANCE_IN_PROGRESS}}


def test_commits_keep_a_session_alive(client: FakeClient) -> None:
    member_id, generation = join(client, "orders")
    for offset in range(5):
        client.machine.run_for(8_000)
        response = commit(client, {"orders": {0: offset}}, member_id=member_id, generation=generation)
        assert codes(response) == {"orders": {0: NONE}}
    client.machine.run_for(11_000)
    response = commit(client, {"orders": {0: 9}}, member_id=member_id, generation=generation)
    assert codes(response) == {"orders": {0: ErrorCode.UNKNOWN_MEMBER_ID}}


CONSUMER_COMMITS: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("its own epoch", {"generation": 1}, NONE),
    ("an epoch that is not yet", {"generation": 2}, ErrorCode.STALE_MEMBER_EPOCH),
    ("an epoch before the partition was assigned", {"generation": 0}, ErrorCode.STALE_MEMBER_EPOCH),
    ("a version that knows no epochs", {"generation": 1, "version": 8}, ErrorCode.UNSUPPORTED_VERSION),
    ("somebody else", {"generation": 1, "member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ("no member of a group with members", {"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(
    ("fields", "expected"), [case[1:] for case in CONSUMER_COMMITS], ids=[case[0] for case in CONSUMER_COMMITS]
)
def test_members_of_consumer_groups(client: FakeClient, fields: dict[str, Any], expected: ErrorCode) -> None:
    assert heartbeat(client, "member", 0, "orders").member_epoch == 1
    response = commit(client, {"orders": {0: 5}}, **{"member_id": "member", **fields})
    assert codes(response) == {"orders": {0: expected}}
    assert committed(client) == (5 if expected is NONE else -1)


def test_a_member_that_missed_an_epoch_commits_what_it_still_has(client: FakeClient) -> None:
    """The heartbeat that brought the new epoch and the commit have crossed."""
    heartbeat(client, "first", 0, "orders")
    client.create_topic("bills")
    subscribed = heartbeat(client, "first", 1, subscribed_topic_names=["orders", "bills"])
    assert subscribed.member_epoch == 2
    assert codes(commit(client, {"orders": {0: 5}}, member_id="first", generation=1)) == {"orders": {0: NONE}}
    # One partition that it got with the new epoch fails the whole commit, as in Kafka.
    both = commit(client, {"orders": {0: 6}, "bills": {0: 6}}, member_id="first", generation=1)
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert codes(both) == {"orders": {0: stale}, "bills": {0: stale}}
    assert committed(client) == 5


def test_the_empty_group_id(client: FakeClient) -> None:
    assert codes(commit(client, {"orders": {0: 7}}, group_id="")) == {"orders": {0: NONE}}
    assert committed(client, group_id="") == 7


@pytest.mark.parametrize("version", [2, 7, 9, 10])
def test_before_there_is_a_coordinator(version: int) -> None:
    client = Machine().client()
    client.create_topic("orders")
    (topic,) = commit(client, {"orders": {0: 1}}, version).topics
    assert [answer.error_code for answer in topic.partitions] == [ErrorCode.NOT_COORDINATOR]
    image = client.machine.broker.image.topic("orders")
    assert image is not None
    assert (topic.topic_id == image.topic_id) if version >= 10 else (topic.name == "orders")


def test_a_commit_that_fits_no_batch() -> None:
    machine = Machine()
    client = machine.client()
    client.create_topic("orders", 200)
    find_coordinator(client)
    response = commit(client, {"orders": dict.fromkeys(range(200), 1)}, metadata="é" * 4096)
    assert set(codes(response)["orders"].values()) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert committed(client) == -1


def test_an_answer_means_durable(client: FakeClient) -> None:
    machine = client.machine
    assert codes(commit(client, {"orders": {0: 7, 1: 8}}, metadata="note", leader_epoch=3)) == {"orders": {0: NONE, 1: NONE}}
    assert machine.crash() is None
    wait_loaded(machine)
    response = machine.client().call(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=None)
    ((first, second),) = [topic.partitions for topic in response.topics]
    assert (first.committed_offset, first.committed_leader_epoch, first.metadata) == (7, 3, "note")
    assert second.committed_offset == 8


def test_many_commits_in_one_burst(client: FakeClient) -> None:
    machine = client.machine
    clients = [machine.client() for _ in range(20)]
    topic = {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5}]}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [topic]}
    body = encode_request(ApiKey.OFFSET_COMMIT, 8, fields)
    for one in clients:
        one.send(ApiKey.OFFSET_COMMIT, 8, body)
    machine.run_until(lambda: all(one.replies for one in clients))
    assert len({one.replies[0] for one in clients}) == 1
    assert committed(client) == 5


def test_bytes_that_are_no_request_end_the_connection(client: FakeClient) -> None:
    client.send(ApiKey.OFFSET_COMMIT, 8, b"\1\2\3")
    assert client.closed is not None


def test_the_table_says_what_the_codec_can() -> None:
    assert offset_commit.API.versions == (2, 10)
