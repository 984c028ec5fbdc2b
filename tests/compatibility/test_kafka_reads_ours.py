"""Apache Kafka opens what we wrote, and its tools find nothing to complain about. Runs under ``make compat``."""

import shutil
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.compatibility.apache_kafka import KafkaUnavailable, kafka_classpath
from tests.compatibility.kafka_dump import dump_directory
from tests.compatibility.kafka_fixtures import CLEAN, read_expected, unpack
from tests.compatibility.kafka_records import ReadRecord
from tests.compatibility.our_directory import FixedClock, OurDirectory
from tidelog.log.append_check import AppendOrigin
from tidelog.log.durability.checkpoints import MetaProperties, write_meta_properties, write_partition_metadata
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import LogSettings
from tidelog.ports.real_disk import RealDisk
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import iterate_headers
from tidelog.records.record import Record

if TYPE_CHECKING:
    # At run time it is imported where it is used: it needs the client that only `make compat` installs.
    from tests.compatibility.kafka_reader import KafkaIdentity, KafkaReading

pytestmark = pytest.mark.apache_kafka

TOPIC = "ours"
# Old records must not fall to retention while Kafka looks at them.
CONFIGS = {"retention.ms": "-1", "cleanup.policy": "delete"}
TIME_MS = 1_700_000_000_000
HORIZON_MS = 1_900_000_000_000
HEADERS = (("name", b"value"), ("name", b""), ("null", None), ("\u00e9", b"\xff"))


@pytest.fixture(scope="module", autouse=True)
def _kafka_is_there() -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))


class OurBatches:
    """Batches one after the other as a log has them, and what readers must find in them."""

    def __init__(self) -> None:
        self.data = b""
        self.next_offset = 0
        self.everything: list[ReadRecord] = []
        self.committed: list[ReadRecord] = []

    def records(self, count: int, *, tombstones: bool = False) -> list[Record]:
        offsets = range(self.next_offset, self.next_offset + count)
        values = [None if tombstones else b"value %d" % offset for offset in offsets]
        return [
            Record(offset, TIME_MS + offset, b"key %d" % offset, value, HEADERS)
            for offset, value in zip(offsets, values, strict=True)
        ]

    def add(
        self, batch: bytes, records: list[Record], next_offset: int, *, committed: bool = True, append_ms: int | None = None
    ) -> None:
        found = [
            ReadRecord(
                record.offset, append_ms or record.timestamp, append_ms is not None, record.key, record.value, record.headers
            )
            for record in records
        ]
        self.data += batch
        self.everything += found
        self.committed += found if committed else []
        self.next_offset = next_offset

    def add_plain(self) -> None:
        for compression in CompressionType:
            records = [Record(self.next_offset, TIME_MS, None, None), *self.records(5)[1:]]
            batch = build_batch(records, base_offset=self.next_offset, leader_epoch=0, compression=compression)
            self.add(batch, records, self.next_offset + 5)

    def add_transaction(self, end: ControlType, producer_id: int) -> None:
        base, records = self.next_offset, self.records(3)
        batch = build_batch(
            records,
            base_offset=base,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        self.add(batch, records, base + 3, committed=end is ControlType.COMMIT)
        marker = EndTransactionMarker(end, coordinator_epoch=0)
        ending = build_end_transaction_marker(
            marker, producer_id=producer_id, producer_epoch=0, timestamp=TIME_MS, base_offset=base + 3, leader_epoch=0
        )
        self.add(ending, [], base + 4)

    def add_unusual(self) -> None:
        """What compaction and the broker's clock make: gaps, no records at all, a delete horizon, one time for all."""
        base = self.next_offset
        records = self.records(6)[1:5:2]
        self.add(build_batch(records, base_offset=base, leader_epoch=0, last_offset_delta=5), records, base + 6)
        base = self.next_offset
        empty = build_batch(
            [], base_offset=base, leader_epoch=0, producer_id=9, producer_epoch=0, base_sequence=0, last_offset_delta=2
        )
        self.add(empty, [], base + 3)
        base, records = self.next_offset, self.records(2, tombstones=True)
        self.add(build_batch(records, base_offset=base, leader_epoch=0, delete_horizon_ms=HORIZON_MS), records, base + 2)
        base, records = self.next_offset, self.records(2)
        append_ms = TIME_MS + 5000
        batch = build_batch(records, base_offset=base, leader_epoch=0, log_append_time_ms=append_ms)
        self.add(batch, records, base + 2, append_ms=append_ms)


@pytest.fixture(scope="module")
def batches() -> OurBatches:
    ours = OurBatches()
    ours.add_plain()
    ours.add_transaction(ControlType.COMMIT, producer_id=7)
    ours.add_transaction(ControlType.ABORT, producer_id=8)
    ours.add_unusual()
    return ours


def write_crashed_directory(directory: Path, identity: "KafkaIdentity", log: bytes) -> None:
    """The least that a crash can leave of us: the log, and who it belongs to. Kafka recovers and builds the rest."""
    partition = directory / f"{TOPIC}-0"
    partition.mkdir(parents=True)
    disk = RealDisk()
    meta = MetaProperties(identity.cluster_id, identity.node_id, urlsafe_b64decode(identity.directory_id + "=="))
    write_meta_properties(disk, str(directory / "meta.properties"), meta)
    write_partition_metadata(disk, str(partition / "partition.metadata"), urlsafe_b64decode(identity.topic_ids[TOPIC] + "=="))
    (partition / "00000000000000000000.log").write_bytes(log)


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory, batches: OurBatches) -> "tuple[KafkaReading, Path]":
    """What Kafka serves from our batches, and the directory as Kafka left it."""
    from tests.compatibility.kafka_reader import create_topics, read_with_kafka

    root, directory = tmp_path_factory.mktemp("kafka"), tmp_path_factory.mktemp("ours")
    write_crashed_directory(directory, create_topics(root, {TOPIC: CONFIGS}), batches.data)
    return read_with_kafka(root, directory, [(TOPIC, 0)]), directory


def test_kafka_serves_our_batches(recovered: "tuple[KafkaReading, Path]", batches: OurBatches) -> None:
    reading, directory = recovered
    everything, committed = reading.partitions[TOPIC, 0]
    assert (everything.log_start_offset, everything.end_offset) == (0, batches.next_offset)
    assert everything.records == batches.everything
    assert (committed.end_offset, committed.records) == (batches.next_offset, batches.committed)
    assert reading.lines_about(TOPIC, "Recovering unflushed segment"), "recovery was to be tried, and did not run"
    assert not reading.lines_about(TOPIC, "ERROR", "WARN", "truncating")
    assert (directory / f"{TOPIC}-0" / "00000000000000000000.log").read_bytes() == batches.data


def test_dump_log_segments_finds_our_batches_valid(
    recovered: "tuple[KafkaReading, Path]", batches: OurBatches, tmp_path: Path
) -> None:
    """With the indexes and snapshots that Kafka built from them."""
    partition = tmp_path / f"{TOPIC}-0"
    shutil.copytree(recovered[1] / f"{TOPIC}-0", partition)
    dump = dump_directory(tmp_path)
    assert dump.complaints == []
    dumped = dump.batches(partition)
    assert {batch.fields["isvalid"] for batch in dumped} == {"true"}
    assert int(dumped[-1].fields["lastOffset"]) + 1 == batches.next_offset
    offsets = [offset for batch in dumped if batch.fields["isControl"] == "false" for offset in batch.record_offsets]
    assert offsets == [record.offset for record in batches.everything]
    assert {batch.fields["compresscodec"] for batch in dumped} == {kind.name.lower() for kind in CompressionType}


# -- a whole directory of ours ------------------------------------------------------------------------------------------------

WHOLE_TOPIC = "whole"
SMALL_SEGMENTS = LogSettings(segment_bytes=1500, index_interval_bytes=200, retention_ms=-1)


class Written(NamedTuple):
    batches: OurBatches
    open_transaction_offset: int
    copy: Path
    """The directory as we left it, before Kafka saw it."""
    reading: "KafkaReading"
    producers: int


def append_all(log: PartitionLog, data: bytes) -> None:
    """By a leader's way where a client could have sent it, else as a follower gets it."""
    for position, header in iterate_headers(data):
        batch = data[position : position + header.size]
        is_usual = header.record_count == header.last_offset_delta + 1 and not header.has_delete_horizon
        if header.is_control:
            log.append_as_leader(batch, 0, AppendOrigin.COORDINATOR)
        elif is_usual and not header.is_log_append_time:
            log.append_as_leader(batch, 0)
        else:
            log.append_as_follower(batch)


def write_whole_directory(directory: Path, identity: "KafkaIdentity", batches: OurBatches) -> tuple[int, int]:
    """Several segments, every codec, decided transactions and an open one, stopped cleanly. (its first offset, producers)"""
    disk = RealDisk()
    meta = MetaProperties(identity.cluster_id, identity.node_id, urlsafe_b64decode(identity.directory_id + "=="))
    write_meta_properties(disk, str(directory / "meta.properties"), meta)
    topic_id = urlsafe_b64decode(identity.topic_ids[WHOLE_TOPIC] + "==")
    with OurDirectory(directory, FixedClock(TIME_MS), identity.cluster_id, identity.node_id) as ours:
        log = ours.directory.create(WHOLE_TOPIC, 0, topic_id, SMALL_SEGMENTS)
        append_all(log, batches.data)
        open_offset = log.log_end_offset
        records = batches.records(2)
        batch = build_batch(
            records, producer_id=99, producer_epoch=0, base_sequence=0, transactional=True, base_offset=open_offset
        )
        batches.add(batch, records, open_offset + 2, committed=False)
        log.append_as_leader(batch, 0)
        ours.commit(log)
        assert len(log.segments) > 3
        ours.close()
    return open_offset, log.producers.producer_count


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    from tests.compatibility.kafka_reader import create_topics, read_with_kafka

    root, directory, copy = (tmp_path_factory.mktemp(name) for name in ("kafka", "ours", "copy"))
    batches = OurBatches()
    for round_number in range(5):
        batches.add_plain()
        batches.add_transaction(ControlType.COMMIT, producer_id=10 + round_number)
        batches.add_transaction(ControlType.ABORT, producer_id=20 + round_number)
    batches.add_unusual()
    identity = create_topics(root, {WHOLE_TOPIC: CONFIGS})
    open_offset, producers = write_whole_directory(directory, identity, batches)
    shutil.copytree(directory, copy, dirs_exist_ok=True)
    return Written(batches, open_offset, copy, read_with_kafka(root, directory, [(WHOLE_TOPIC, 0)]), producers)


def test_kafka_opens_and_serves_a_whole_directory_of_ours(written: Written) -> None:
    everything, committed = written.reading.partitions[WHOLE_TOPIC, 0]
    assert (everything.log_start_offset, everything.end_offset) == (0, written.batches.next_offset)
    assert everything.records == written.batches.everything
    assert committed.end_offset == written.open_transaction_offset, "Kafka knows of the open transaction by our snapshot"
    assert committed.records == written.batches.committed
    # It believes our clean stop, and finds nothing to mend.
    assert not written.reading.lines_about(WHOLE_TOPIC, "Recovering", "ERROR", "WARN", "ebuilding index", "truncating", "orrupt")


def test_dump_log_segments_finds_our_indexes_and_snapshots_sound(written: Written) -> None:
    dump = dump_directory(written.copy)
    assert dump.complaints == []
    partition = written.copy / f"{WHOLE_TOPIC}-0"
    files = [file for path, file in dump.files.items() if path.parent == partition]
    assert {batch.fields["isvalid"] for file in files for batch in file.batches} == {"true"}
    entries = {
        suffix: sum(len(file.entries) for file in files if file.path.suffix == suffix) for suffix in (".index", ".timeindex")
    }
    assert entries[".index"] > 5
    assert entries[".timeindex"] > 5
    aborted = [entry for file in files if file.path.suffix == ".txnindex" for entry in file.entries]
    assert len(aborted) == 5
    newest_snapshot = max((file for file in files if file.path.suffix == ".snapshot"), key=lambda file: file.path)
    assert len(newest_snapshot.entries) == written.producers


def test_dump_log_segments_complains_about_damage(batches: OurBatches, tmp_path: Path) -> None:
    """Or else its silence would say nothing."""
    partition = tmp_path / f"{TOPIC}-0"
    partition.mkdir()
    damaged = bytearray(batches.data)
    damaged[70] ^= 1
    (partition / "00000000000000000000.log").write_bytes(damaged[:-1])
    dump = dump_directory(tmp_path)
    assert [batch.fields["isvalid"] for batch in dump.batches(partition)][:2] == ["false", "true"]
    assert dump.complaints


def test_dump_log_segments_agrees_with_the_fixtures(tmp_path: Path) -> None:
    """The same reading of the tool, on files that are known to be Kafka's."""
    directory = unpack(CLEAN, tmp_path)
    dump = dump_directory(directory)
    assert dump.complaints == []
    for expected in read_expected(CLEAN).partitions:
        dumped = dump.batches(directory / expected.directory_name)
        assert {batch.fields["isvalid"] for batch in dumped} <= {"true"}
        offsets = [offset for batch in dumped if batch.fields["isControl"] == "false" for offset in batch.record_offsets]
        assert [offset for offset in offsets if offset >= expected.log_start_offset] == [
            record.offset for record in expected.records
        ]
