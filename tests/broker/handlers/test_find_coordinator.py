"""FindCoordinator: the topic is made on demand, every key has a coordinator, other types are refused."""

import pytest

from tests.broker.harness import HOST, NODE_ID, PORT, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def test_the_first_question_creates_the_topic_and_is_answered() -> None:
    machine = Machine({"offsets.topic.num.partitions": "7"})
    found = machine.client().call(ApiKey.FIND_COORDINATOR, 3, key="group", key_type=0)
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.NONE, NODE_ID, HOST, PORT)
    topic = machine.broker.image.topic("__consumer_offsets")
    assert topic is not None
    assert len(topic.partitions) == 7
    assert topic.is_internal
    assert machine.broker.settings.log_settings("__consumer_offsets").compact


def test_several_keys_at_once() -> None:
    keys = [f"group{number}" for number in range(20)]
    found = Machine().client().call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
    assert [(one.key, one.error_code, one.node_id) for one in found.coordinators] == [(key, 0, NODE_ID) for key in keys]


def test_many_clients_at_once_create_one_topic() -> None:
    machine = Machine()
    clients = [machine.client() for _ in range(20)]
    for client in clients:
        client.send(ApiKey.FIND_COORDINATOR, 0, b"\0\1g")
    machine.run_until(lambda: all(client.replies for client in clients))
    assert len({client.replies[0] for client in clients}) == 1


@pytest.mark.parametrize("version", [3, 4])
def test_an_unknown_type_is_refused(version: int) -> None:
    fields = {"coordinator_keys": ["key"]} if version >= 4 else {"key": "key"}
    found = Machine().client().call(ApiKey.FIND_COORDINATOR, version, key_type=9, **fields)
    answer = found.coordinators[0] if version >= 4 else found
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "type 9" in answer.error_message


def test_a_topic_that_cannot_be_created_is_said() -> None:
    machine = Machine({"offsets.topic.replication.factor": "3"})
    found = machine.client().call(ApiKey.FIND_COORDINATOR, 3, key="group", key_type=0)
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found.node_id == -1
    assert "replication factor" in found.error_message
