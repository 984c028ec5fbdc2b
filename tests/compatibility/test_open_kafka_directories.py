"""Data directories that Apache Kafka 4.3 wrote, cleanly stopped and killed, opened by our own log on the real disk."""

from pathlib import Path

import pytest

from tests.compatibility.kafka_fixtures import CLEAN, FIXTURE_NAMES, Expected, ExpectedPartition, read_expected, unpack
from tests.compatibility.our_directory import FixedClock, OurDirectory, read_partition
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import offset_for_timestamp, offset_of_max_timestamp
from tidelog.log.settings import LogSettings
from tidelog.ports.steps import run_to_end
from tidelog.records.batch import build_batch
from tidelog.records.record import Record


def open_fixture(name: str, path: Path) -> OurDirectory:
    """As the broker that the directory belongs to, at the time when it was made."""
    lines = [line for line in (path / "meta.properties").read_text().splitlines() if "=" in line]
    meta = dict(line.split("=", 1) for line in lines)
    compacted = LogSettings(compact=True, delete=False)
    return OurDirectory(
        path,
        FixedClock(read_expected(name).made_ms),
        meta["cluster.id"],
        int(meta["node.id"]),
        lambda topic: compacted if topic.startswith(("compacted", "__")) else LogSettings(),
    )


def check_partition(log: PartitionLog, expected: ExpectedPartition) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (expected.log_start_offset, expected.high_watermark)
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == expected.last_stable_offset
    assert read_partition(log, committed_only=False) == expected.records
    committed = [record for record in expected.records if record.offset in set(expected.committed_offsets)]
    assert read_partition(log, committed_only=True) == committed


def check_times(log: PartitionLog, expected: ExpectedPartition) -> None:
    """Every timestamp that occurs, and those just beside it, found by index as by a walk over all records."""
    wanted = {record.timestamp + difference for record in expected.records for difference in (-1, 0, 1)}
    for timestamp in wanted:
        first = next((record for record in expected.records if record.timestamp >= timestamp), None)
        found = run_to_end(offset_for_timestamp(log, timestamp))
        if first is None:
            # A marker is a record too, and Kafka's lookup may answer with its offset.
            assert found is None or found.offset not in {record.offset for record in expected.records}
        else:
            assert found is not None
            assert found.timestamp >= timestamp
            assert found.offset == first.offset or found.offset not in {record.offset for record in expected.records}
            assert found.offset <= first.offset
    assert (run_to_end(offset_of_max_timestamp(log)) is None) == (log.size == 0)


def partitions_of(expected: Expected) -> dict[tuple[str, int], ExpectedPartition]:
    return {(partition.topic, partition.partition): partition for partition in expected.partitions}


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_every_partition_opens_and_serves_what_kafka_served(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path / "data")
    expected = partitions_of(read_expected(name))
    with open_fixture(name, path) as ours:
        assert ours.directory.offline == {}
        assert set(ours.directory.logs) > set(expected), "the internal topics are there too"
        for key, partition in expected.items():
            check_partition(ours.directory.logs[key], partition)
            check_times(ours.directory.logs[key], partition)
        assert [report for report in ours.reports if report[0] in ("torn_tail_cut", "clean_stop_doubted")] == []
        ours.close()


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_producers_and_epochs_are_those_of_kafka(name: str, tmp_path: Path) -> None:
    """The same whether Kafka's snapshots and checkpoints are believed or everything is made again from the batches."""
    known = unpack(name, tmp_path / "known")
    rebuilt = unpack(name, tmp_path / "rebuilt")
    for pattern in ("*/*.index", "*/*.timeindex", "*/*.txnindex", "*/*.snapshot", "*/leader-epoch-checkpoint", "recovery-point*"):
        for file in rebuilt.glob(pattern):
            file.unlink()
    (rebuilt / ".kafka_cleanshutdown").unlink(missing_ok=True)
    with open_fixture(name, known) as first, open_fixture(name, rebuilt) as second:
        for key, log in first.directory.logs.items():
            # Of batches that compaction or retention took, and of a leader without records, only the files tell that are gone.
            is_whole = log.size > 0 and log.segments[0].base_offset == 0 and not log.settings.compact
            if is_whole:
                other = second.directory.logs[key]
                assert other.producers.describe() == log.producers.describe(), key
                assert other.epochs.latest_epoch == log.epochs.latest_epoch, key
                for segment, same in zip(log.segments, other.segments, strict=True):
                    assert list(same.transaction_index.entries()) == list(segment.transaction_index.entries()), key
        for key, partition in partitions_of(read_expected(name)).items():
            check_partition(second.directory.logs[key], partition)


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_appending_goes_on_where_kafka_ended(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path / "data")
    made_ms = read_expected(name).made_ms
    ends = {}
    with open_fixture(name, path) as ours:
        for key, log in ours.directory.logs.items():
            ends[key] = log.log_end_offset
            batch = build_batch([Record(number, made_ms, b"key", b"value") for number in range(3)])
            assert log.append_as_leader(batch, log.epochs.latest_epoch + 1).first_offset == ends[key]
            ours.commit(log)
        ours.close()
    assert (path / ".kafka_cleanshutdown").exists()
    with open_fixture(name, path) as ours:
        assert ours.directory.offline == {}
        for key, partition in partitions_of(read_expected(name)).items():
            log = ours.directory.logs[key]
            assert log.is_saved
            assert log.log_end_offset == ends[key] + 3
            records = read_partition(log, committed_only=False)
            assert records[:-3] == partition.records
            assert [record.offset for record in records[-3:]] == list(range(ends[key], ends[key] + 3))
        ours.close()


def test_a_clean_stop_of_kafka_is_believed(tmp_path: Path) -> None:
    with open_fixture(CLEAN, unpack(CLEAN, tmp_path / "data")) as ours:
        recovery_points = {key: log.recovery_point for key, log in ours.directory.logs.items()}
        assert recovery_points == {key: log.log_end_offset for key, log in ours.directory.logs.items()}
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        ours.close()
