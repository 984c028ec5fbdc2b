"""OffsetFetch through the broker: every version's shape, and where its errors go."""

from typing import Any

import pytest

from tests.broker.handlers.group_clients import commit, find_coordinator, heartbeat, join, wait_loaded
from tests.broker.harness import FakeClient, Machine
from tidelog.broker.handlers.offset_fetch import GROUPS_MAX
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

NONE = ErrorCode.NONE
UNKNOWN_ID = b"unknown".ljust(16)


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    client.create_topic("orders", 3)
    client.create_topic("bills", 1)
    find_coordinator(client)
    commit(client, {"orders": {0: 41, 1: 42}}, metadata="note", leader_epoch=5)
    commit(client, {"bills": {0: 7}}, metadata=None)
    return client


def id_of(client: FakeClient, name: str) -> bytes:
    topic = client.machine.broker.image.topic(name)
    assert topic is not None
    return topic.topic_id


def topic_fields(client: FakeClient, version: int, name: str) -> dict[str, Any]:
    if version < 10:
        return {"name": name}
    topic = client.machine.broker.image.topic(name)
    return {"topic_id": UNKNOWN_ID if topic is None else topic.topic_id}


def fetch(
    client: FakeClient, version: int, wanted: dict[str, list[int]] | None, group_id: str = "g", **fields: Any
) -> DecodedMessage:
    """The one group's part of the response; before version 8 that is all of it."""
    topics = None
    if wanted is not None:
        topics = [{**topic_fields(client, version, name), "partition_indexes": wanted[name]} for name in wanted]
    if version < 8:
        return client.call(ApiKey.OFFSET_FETCH, version, group_id=group_id, topics=topics, **fields)
    require_stable = fields.pop("require_stable", False)
    group = {"group_id": group_id, "topics": topics, **fields}
    response = client.call(ApiKey.OFFSET_FETCH, version, groups=[group], require_stable=require_stable)
    (answer,) = response.groups
    assert isinstance(answer, DecodedMessage)
    assert answer.group_id == group_id
    return answer


def offsets(client: FakeClient, answer: DecodedMessage, version: int) -> dict[str, list[tuple[int, int, int, str, int]]]:
    names = {id_of(client, name): name for name in ("orders", "bills")} | {UNKNOWN_ID: "nowhere"}
    return {
        names[topic.topic_id] if version >= 10 else topic.name: [
            (one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code)
            for one in topic.partitions
        ]
        for topic in answer.topics
    }


@pytest.mark.parametrize("version", range(1, 11))
def test_what_was_asked_for_in_every_version(client: FakeClient, version: int) -> None:
    answer = fetch(client, version, {"orders": [1, 0, 2, 99], "nowhere": [3]})
    leader_epoch = 5 if version >= 5 else -1
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else NONE
    assert offsets(client, answer, version) == {
        "orders": [
            (1, 42, leader_epoch, "note", NONE),
            (0, 41, leader_epoch, "note", NONE),
            (2, -1, -1, "", NONE),
            (99, -1, -1, "", NONE),
        ],
        "nowhere": [(3, -1, -1, "", unknown_topic)],
    }
    if version >= 2:
        assert answer.error_code == NONE


@pytest.mark.parametrize("version", range(2, 11))
def test_all_topics_in_every_version_that_can_say_so(client: FakeClient, version: int) -> None:
    answer = fetch(client, version, None)
    leader_epoch = 5 if version >= 5 else -1
    assert offsets(client, answer, version) == {
        "orders": [(0, 41, leader_epoch, "note", NONE), (1, 42, leader_epoch, "note", NONE)],
        "bills": [(0, 7, -1, "", NONE)],
    }


@pytest.mark.parametrize("version", [1, 7, 8, 10])
def test_a_group_that_nobody_knows_has_committed_nothing(client: FakeClient, version: int) -> None:
    answer = fetch(client, version, {"orders": [0]}, "unknown")
    assert offsets(client, answer, version) == {"orders": [(0, -1, -1, "", NONE)]}
    if version >= 2:
        assert answer.error_code == NONE
        assert fetch(client, version, None, "unknown").topics == ()


def test_several_groups_each_with_its_own(client: FakeClient) -> None:
    commit(client, {"orders": {0: 1}}, group_id="other")
    wanted = [{"name": "orders", "partition_indexes": [0]}]
    groups = [{"group_id": name, "topics": wanted} for name in ("other", "g", "nobody", "other")]
    response = client.call(ApiKey.OFFSET_FETCH, 8, groups=groups)
    found = [(group.group_id, group.topics[0].partitions[0].committed_offset) for group in response.groups]
    assert found == [("other", 1), ("g", 41), ("nobody", -1), ("other", 1)]
    assert client.call(ApiKey.OFFSET_FETCH, 8, groups=[]).groups == ()


def test_too_many_groups(client: FakeClient) -> None:
    groups = [{"group_id": "g", "topics": []}] * (GROUPS_MAX + 1)
    response = client.call(ApiKey.OFFSET_FETCH, 8, groups=groups)
    assert {group.error_code for group in response.groups} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", range(1, 11))
def test_where_an_error_goes(version: int) -> None:
    client = Machine().client()
    client.create_topic("orders", 2)
    answer = fetch(client, version, {"orders": [0, 1]})
    if version >= 2:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert fetch(client, version, None).error_code == ErrorCode.NOT_COORDINATOR
    if version >= 8:
        assert answer.topics == ()
    else:
        (topic,) = answer.topics
        failed = [(one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in topic.partitions]
        assert failed == [(partition, -1, "", ErrorCode.NOT_COORDINATOR) for partition in (0, 1)]


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_unstable_while_a_transaction_is_open(client: FakeClient, version: int) -> None:
    shard = client.machine.broker.coordinators.groups.shard_of("g")
    assert shard.machine is not None
    record = shard.machine.offsets.tombstones("g")[0]
    value = shard.machine.offsets.of_group("g")[record.topic][record.partition]
    shard.machine.offsets.replay(record._replace(value=value._replace(offset=99)), 10, 5, 0)
    answer = fetch(client, version, {"orders": [0, 1]}, require_stable=True)
    assert offsets(client, answer, version)["orders"] == [
        (0, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (1, 42, 5, "note", NONE),
    ]
    assert offsets(client, fetch(client, version, None, require_stable=True), version)["orders"][0][1] == -1
    assert offsets(client, fetch(client, version, {"orders": [0]}), version)["orders"][0][1] == 41
    shard.machine.offsets.replay_end_transaction(5, True)
    assert offsets(client, fetch(client, version, {"orders": [0]}, require_stable=True), version)["orders"][0][1] == 99


def test_members_of_classic_groups_are_not_checked(client: FakeClient) -> None:
    join(client, "orders", group_id="classic")
    answer = fetch(client, 9, {"orders": [0]}, "classic", member_id="somebody", member_epoch=7)
    assert answer.error_code == NONE


@pytest.mark.parametrize("version", [8, 9, 10])
@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        ("member", 1, NONE),
        (None, -1, NONE),
        ("member", 0, ErrorCode.STALE_MEMBER_EPOCH),
        ("member", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_of_consumer_groups_are_checked(
    client: FakeClient, version: int, member_id: str | None, epoch: int, expected: ErrorCode
) -> None:
    heartbeat(client, "member", 0, "orders", group_id="new")
    if version < 9:
        expected = NONE  # It cannot say who asks.
    for wanted in ({"orders": [0]}, None):
        answer = fetch(client, version, wanted, "new", member_id=member_id, member_epoch=epoch)
        assert answer.error_code == expected
        assert len(answer.topics) == (wanted is not None and expected is NONE)


def test_all_topics_by_id_leaves_out_those_that_are_gone(client: FakeClient) -> None:
    client.call(ApiKey.DELETE_TOPICS, 4, topic_names=["bills"], timeout_ms=1000)
    assert client.machine.broker.image.topic("bills") is None
    answer = fetch(client, 10, None)
    assert [topic.topic_id for topic in answer.topics] == [id_of(client, "orders")]


def test_the_offsets_of_a_deleted_topic_are_gone(client: FakeClient) -> None:
    client.call(ApiKey.DELETE_TOPICS, 4, topic_names=["orders"], timeout_ms=1000)
    client.machine.run_for(100)
    assert [topic.name for topic in fetch(client, 7, None).topics] == ["bills"]
    client.create_topic("orders", 3)
    assert offsets(client, fetch(client, 7, {"orders": [0]}), 7) == {"orders": [(0, -1, -1, "", NONE)]}
    assert client.machine.restart() is None
    wait_loaded(client.machine)
    fresh = client.machine.client()
    assert [topic.name for topic in fetch(fresh, 7, None).topics] == ["bills"]
