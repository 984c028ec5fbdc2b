from tests.broker.handlers.test_consumer_group_heartbeat import join, machine_with_topic
from tests.broker.harness import Machine
from tidelog.broker.response_fields import GROUP_OPERATIONS, OPERATIONS_NOT_ASKED_FOR
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

DESCRIBE = ApiKey.CONSUMER_GROUP_DESCRIBE


def test_groups_in_the_order_of_the_request_each_once() -> None:
    _, client, orders = machine_with_topic()
    join(client, "a", "orders", rack_id="east")
    for version in (0, 1):
        group, missing, empty = client.call(
            DESCRIBE, version, group_ids=["g", "missing", "", "g"], include_authorized_operations=True
        ).groups
        assert (group.error_code, group.group_id, group.group_state) == (ErrorCode.NONE, "g", "Stable")
        assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (1, 1, "uniform")
        assert group.authorized_operations == GROUP_OPERATIONS
        (member,) = group.members
        assert (member.member_id, member.rack_id, member.member_epoch) == ("a", "east", 1)
        assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
        assert member.subscribed_topic_names == ("orders",)
        for assignment in (member.assignment, member.target_assignment):
            assert [(topic.topic_id, topic.topic_name, topic.partitions) for topic in assignment.topic_partitions] == [
                (orders, "orders", (0, 1))
            ]
        assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group missing not found.")
        assert empty.error_code == ErrorCode.INVALID_GROUP_ID


def test_operations_only_when_asked_for() -> None:
    _, client, _ = machine_with_topic()
    join(client, "a", "orders")
    (group,) = client.call(DESCRIBE, 1, group_ids=["g"]).groups
    assert group.authorized_operations == OPERATIONS_NOT_ASKED_FOR


def test_nothing_asked_and_nobody_there() -> None:
    client = Machine().client()
    assert client.call(DESCRIBE, 1, group_ids=[]).groups == ()
    (group,) = client.call(DESCRIBE, 1, group_ids=["g"]).groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR
