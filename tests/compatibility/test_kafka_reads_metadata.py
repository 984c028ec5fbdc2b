"""Apache Kafka's DumpLogSegments decodes a metadata log that our quorum and controller wrote: every record that we write, and the
leader change."""

import json
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath, run_tool
from tests.controller.cluster import RULES, STATIC, new_image, randomness
from tidelog.controller.topics import NewTopic, create_topics
from tidelog.metadata.features import METADATA_VERSION, METADATA_VERSION_LEVEL
from tidelog.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    SupportedFeature,
    encode_record,
)
from tidelog.raft.control_records import QuorumRecord, build_control_batch
from tidelog.raft.voters import KRaftVersion, LeaderChange, ReplicaKey, Voter, VoterEndpoint, VotersRecord, voter_set
from tidelog.records.batch import build_batch
from tidelog.records.record import Record

pytestmark = pytest.mark.apache_kafka
ID = bytes(range(16))


def records_of_ours() -> list[MetadataRecord]:
    created = create_topics(
        new_image(), RULES, STATIC, [NewTopic("orders", 2, 1, configs=(("retention.ms", "5"),))], randomness()
    )
    feature = SupportedFeature(METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_LEVEL)
    return [
        FeatureLevelRecord(METADATA_VERSION, METADATA_VERSION_LEVEL),
        RegisterBrokerRecord(
            1, False, ID, 3, (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092, 0),), (feature,), None, False, log_dirs=(ID,)
        ),
        *created.records,
        PartitionChangeRecord(0, created.response[0].topic_id, isr=(1,), leader=1),
        BrokerRegistrationChangeRecord(1, 3, fenced=1),
        ProducerIdsRecord(1, 3, 1000),
        BeginTransactionRecord("name"),
        AbortTransactionRecord("reason"),
        NoOpRecord(),
        RemoveTopicRecord(created.response[0].topic_id),
    ]


def test_kafka_decodes_every_record_that_we_write(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    records = records_of_ours()
    voter = Voter(1, ID, (VoterEndpoint("CONTROLLER", "127.0.0.1", 9093),))
    voters = VotersRecord(voter_set([voter]))
    control: list[QuorumRecord] = [LeaderChange(1, (voter.key,), (voter.key,)), KRaftVersion(1), voters]
    old = build_control_batch([LeaderChange(1, (ReplicaKey(1),), (ReplicaKey(1),))], 1, leader_epoch=1)
    new = build_control_batch(control, 1, base_offset=1, leader_epoch=2)
    values = [encode_record(record) for record in records]
    decisions = [Record(4 + index, 1, None, value) for index, value in enumerate(values)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(old + new + build_batch(decisions, base_offset=4, leader_epoch=2))
    output = run_tool("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path))
    payloads = [json.loads(line.split("payload: ", 1)[1]) for line in output.splitlines() if "payload: {" in line]
    kinds = [payload["type"].replace("_", "").lower() for payload in payloads]
    assert kinds == [type(record).__name__.lower() for record in records], output
    assert payloads[2]["data"]["name"] == "orders"
    assert payloads[3]["data"] == {"resourceType": 2, "resourceName": "orders", "name": "retention.ms", "value": "5"}
    assert '"leaderId":1' in output.replace(" ", "")
