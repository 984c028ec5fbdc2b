"""The requests of a transactional worker, and which versions of them transactions v1 and v2 use."""

from typing import Any, NamedTuple

from simulation.script import Call, call
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey

PRODUCE_TIMEOUT_MS = 400
FETCH_VERSION = 12
FETCH_BYTES_MAX = 2_000
READ_COMMITTED = 1


class Versions(NamedTuple):
    init_producer_id: int
    produce: int
    txn_offset_commit: int
    end_txn: int


V1 = Versions(init_producer_id=4, produce=11, txn_offset_commit=4, end_txn=4)
V2 = Versions(init_producer_id=5, produce=12, txn_offset_commit=5, end_txn=5)


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1


def produce(producer: Producer, version: int, topic: str, index: int, values: list[str], base_sequence: int, now_ms: int) -> Call:
    """The answer is the partition's ProduceResult."""
    batch = build_batch(
        [Record(number, now_ms, None, value.encode()) for number, value in enumerate(values)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )
    topics = [ProduceTopic(topic, None, [ProducePartition(index, memoryview(batch))])]
    request = ProduceRequest(producer.transactional_id, -1, PRODUCE_TIMEOUT_MS, topics)

    def decode(frame: memoryview, position: int) -> ProduceResult:
        return decode_produce_response(version, frame, position).topics[0].partitions[0]

    return Call(ApiKey.PRODUCE, version, encode_produce_request(version, request), decode)


def fetch(
    topic: str, index: int, offset: int, wait_ms_max: int, bytes_max: int = FETCH_BYTES_MAX, leader_epoch: int = -1
) -> Call:
    """Fetch with read_committed. The answer is the FetchedPartition, or None when the whole fetch failed."""
    partition = FetchPartition(index, offset, bytes_max, leader_epoch)
    request = FetchRequest(
        replica_id=-1,
        wait_ms_max=wait_ms_max,
        bytes_min=1,
        bytes_max=bytes_max,
        isolation_level=READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic, None, [partition])],
        forgotten=[],
        rack_id="",
    )

    def decode(frame: memoryview, position: int) -> FetchedPartition | None:
        topics = decode_fetch_response(FETCH_VERSION, frame, position).topics
        return topics[0].partitions[0] if topics else None

    return Call(ApiKey.FETCH, FETCH_VERSION, encode_fetch_request(FETCH_VERSION, request), decode)


def add_partitions(producer: Producer, topic: str, indexes: list[int]) -> Call:
    fields: dict[str, Any] = {f"v3_and_below_{name}": value for name, value in producer._asdict().items()}
    fields["v3_and_below_topics"] = [{"name": topic, "partitions": indexes}]
    return call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)


def commit_offset(producer: Producer, version: int, group: str, topic: str, index: int, offset: int, metadata: str) -> Call:
    """Commit without a member of the group: the transaction's own fencing applies."""
    partition = {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    fields = {
        **producer._asdict(),
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    return call(ApiKey.TXN_OFFSET_COMMIT, version, fields)


def fetch_offset(group: str, topic: str, index: int) -> Call:
    wanted = {"name": topic, "partition_indexes": [index]}
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": [wanted]}]
    return call(ApiKey.OFFSET_FETCH, 9, {"groups": groups, "require_stable": True})
