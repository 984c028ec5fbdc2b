import pytest

from tests.broker.harness import HOST, NODE_ID, PORT, FakeClient, Machine
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def describe(
    client: FakeClient, version: int = 2, topic: str = METADATA_TOPIC, partitions: tuple[int, ...] = (0,)
) -> DecodedMessage:
    wanted = [{"topic_name": topic, "partitions": [{"partition_index": index} for index in partitions]}]
    return client.call(ApiKey.DESCRIBE_QUORUM, version, topics=wanted)


@pytest.mark.parametrize("version", range(3))
def test_the_only_voter_leads(client: FakeClient, machine: Machine, version: int) -> None:
    response = describe(client, version)
    ((topic,), (part,)) = response.topics, response.topics[0].partitions
    assert (response.error_code, topic.topic_name, part.partition_index, part.error_code) == (0, METADATA_TOPIC, 0, 0)
    assert (part.leader_id, part.leader_epoch) == (NODE_ID, 1)
    log = machine.broker.directory.logs[METADATA_TOPIC, 0]
    (voter,) = part.current_voters
    assert (voter.replica_id, voter.log_end_offset, part.high_watermark) == (NODE_ID, log.log_end_offset, log.high_watermark)
    assert part.observers == ()
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp == machine.clock.now_ms()
    if version >= 2:
        ((node,), (listener,)) = response.nodes, response.nodes[0].listeners
        assert (node.node_id, listener.name, listener.host, listener.port) == (NODE_ID, "PLAINTEXT", HOST, PORT)


def test_a_decision_moves_the_log_and_a_start_the_epoch(client: FakeClient, machine: Machine) -> None:
    before = describe(client).topics[0].partitions[0]
    client.create_topic()
    after = describe(client).topics[0].partitions[0]
    assert after.high_watermark > before.high_watermark
    machine.restart()
    assert describe(machine.client()).topics[0].partitions[0].leader_epoch == before.leader_epoch + 1


@pytest.mark.parametrize(("topic", "partitions"), [(METADATA_TOPIC, (1,)), (METADATA_TOPIC, (0, 1)), ("orders", (0,))])
def test_nothing_else_has_a_quorum(client: FakeClient, topic: str, partitions: tuple[int, ...]) -> None:
    client.create_topic()
    response = describe(client, topic=topic, partitions=partitions)
    assert (response.error_code, response.nodes) == (0, ())
    codes = [(part.partition_index, part.error_code) for part in response.topics[0].partitions]
    assert codes == [(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for index in partitions]


def test_who_does_not_lead_says_so(client: FakeClient, machine: Machine) -> None:
    machine.disk.faults.fail("sync", lambda path: METADATA_TOPIC in path)
    client.call(ApiKey.CREATE_TOPICS, 7, topics=[{"name": "never", "num_partitions": 1, "replication_factor": 1}])
    # Nobody leads, and the request waited for somebody who does.
    assert describe(client).error_code == ErrorCode.REQUEST_TIMED_OUT
