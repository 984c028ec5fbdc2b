import pytest

from tests.groups.consumer.bench import GROUP, ConsumerBench
from tests.groups.shard_bench import topic_id
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode


def test_a_group_in_the_middle_of_a_rebalance() -> None:
    bench = ConsumerBench({"orders": 2})
    bench.join("a", instance_id="i", rack_id="east", client_id="c", client_host="/h")
    bench.join("b", None, subscribed_topic_regex="or.*")
    described = bench.machine.consumer.describe(GROUP)
    first, second = described.pop("members")
    assert described == {
        "error_code": ErrorCode.NONE,
        "group_id": GROUP,
        "group_state": "Reconciling",
        "group_epoch": 2,
        "assignment_epoch": 2,
        "assignor_name": "uniform",
    }

    def assignment(*partitions: int) -> dict[str, object]:
        topic = {"topic_id": topic_id("orders"), "topic_name": "orders", "partitions": partitions}
        return {"topic_partitions": [topic] if partitions else []}

    assert first == {
        "member_id": "a",
        "instance_id": "i",
        "rack_id": "east",
        "member_epoch": 1,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ("orders",),
        "subscribed_topic_regex": None,
        "assignment": assignment(0, 1),
        "target_assignment": assignment(0),
        "member_type": 1,
    }
    assert second["subscribed_topic_regex"] == "or.*"
    assert (second["assignment"], second["target_assignment"]) == (assignment(), assignment(1))
    bench.delete_topic("orders")
    members = bench.machine.consumer.describe(GROUP)["members"]
    assert members[0]["assignment"] == assignment(), "a topic that is gone has no name"


def test_groups_that_are_not_there_or_of_another_kind(bench: ConsumerBench) -> None:
    with pytest.raises(ApiError) as refused:
        bench.machine.consumer.describe(GROUP)
    assert (refused.value.code, refused.value.message) == (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {GROUP} not found.")
    bench.machine.classic.offsets_only_group(GROUP)
    with pytest.raises(ApiError) as refused:
        bench.machine.consumer.describe(GROUP)
    assert refused.value.message == f"Group {GROUP} is not a consumer group."
