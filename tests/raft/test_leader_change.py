from tests.metadata.kafka_fixture import read_batches
from tidelog.raft.leader_change import build_leader_change, leader_change_value
from tidelog.records.batch import read_records
from tidelog.records.control import ControlType, control_key
from tidelog.records.header import read_header


def test_the_bytes_are_those_that_kafka_wrote() -> None:
    of_kafka = [value for batch in read_batches() if batch.is_control for value in batch.values]
    assert of_kafka == [leader_change_value(1, [1], [1])] * 2


def test_several_voters() -> None:
    value = leader_change_value(2, [1, 2, 3], [2, 3])
    assert value == bytes.fromhex("0000 00000002 04 0000000100 0000000200 0000000300 03 0000000200 0000000300 00")


def test_it_is_a_control_batch() -> None:
    batch = build_leader_change(1, [1], [1], 1234)
    header = read_header(batch, 0)
    assert header.is_control
    assert header.max_timestamp == 1234
    (record,) = read_records(batch, 0, header, size_max=1000, count_max=1)
    assert record.key == control_key(ControlType.LEADER_CHANGE)
    assert record.value == leader_change_value(1, [1], [1])
