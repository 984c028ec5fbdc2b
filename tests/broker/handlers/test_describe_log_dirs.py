from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.broker.harness import PATH, FakeClient, Machine
from tests.log.harness import batch
from tidelog.broker.api import RequestContext
from tidelog.broker.handlers.describe_log_dirs import handle
from tidelog.ports.steps import Steps, run_to_end
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def sizes(response: DecodedMessage) -> dict[tuple[str, int], int]:
    (result,) = response.results
    return {(topic.name, part.partition_index): part.partition_size for topic in result.topics for part in topic.partitions}


@pytest.mark.parametrize("version", range(1, 6))
def test_the_size_of_each_partition(client: FakeClient, machine: Machine, version: int) -> None:
    machine.disk.set_free_bytes(1 << 30)
    client.create_topic("orders", 2)
    records = batch(3)
    client.append(partition=1, records=records)
    response = client.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
    assert sizes(response) == {("orders", 0): 0, ("orders", 1): len(records)}
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (0, PATH)
    assert result.usable_bytes == (machine.disk.free_bytes(PATH) if version >= 4 else -1)
    assert result.total_bytes == (machine.disk.total_bytes(PATH) if version >= 4 else -1)


def test_only_what_was_asked_for(client: FakeClient) -> None:
    client.create_topic("a", 2)
    client.create_topic("b")
    wanted = [{"topic": "a", "partitions": [1]}, {"topic": "missing", "partitions": [0]}]
    assert sizes(client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=wanted)) == {("a", 1): 0}


def test_what_is_asked_for_is_looked_at_once_and_not_for_every_partition(client: FakeClient, machine: Machine) -> None:
    client.create_topic("a", 100)
    machine.run_until(lambda: len(machine.broker.directory.logs) > 100)
    looks: list[str] = []

    class Wanted:
        partitions = (0,)

        @property
        def topic(self) -> str:
            looks.append("a")
            return "a"

    replies: list[Any] = []

    def reply_in_slices(fields: Any) -> Steps[None]:
        replies.append(fields)
        yield

    context = cast(RequestContext, SimpleNamespace(broker=machine.broker, reply_in_slices=reply_in_slices))
    run_to_end(handle(context, cast(DecodedMessage, SimpleNamespace(topics=[Wanted(), Wanted()]))))
    (result,) = replies[0]["results"]
    assert [part["partition_index"] for part in result["topics"][0]["partitions"]] == [0]
    assert len(looks) == 2
