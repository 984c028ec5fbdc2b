"""What Apache Kafka 4.3 wrote, read by our own code: every batch is valid, and its records are those that Kafka served."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compatibility.kafka_fixtures import FIXTURE_NAMES, ExpectedPartition, read_expected, unpack
from tests.compatibility.kafka_records import ReadRecord
from tidelog.records.batch import iterate_keys, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, read_end_transaction_marker
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers

SIZE_MAX = 1 << 20
COUNT_MAX = 1000


class Batch(NamedTuple):
    path: Path
    data: bytes
    position: int
    header: BatchHeader


def batches_of(partition_directory: Path) -> list[Batch]:
    """Every batch of a partition, in order; fails when a file holds anything besides whole batches."""
    batches = []
    for path in sorted(partition_directory.glob("*.log")):
        data = path.read_bytes()
        end = 0
        for position, header in iterate_headers(data):
            batches.append(Batch(path, data, position, header))
            end = position + header.size
        assert end == len(data), f"{path.name} ends in bytes that are no batch"
    return batches


def records_of(batch: Batch) -> list[ReadRecord]:
    found = read_records(batch.data, batch.position, batch.header, size_max=SIZE_MAX, count_max=COUNT_MAX)
    is_log_append_time = batch.header.is_log_append_time
    return [
        ReadRecord(record.offset, record.timestamp, is_log_append_time, record.key, record.value, tuple(record.headers))
        for record in found
    ]


def data_records(batches: list[Batch], log_start_offset: int) -> list[ReadRecord]:
    """What a reader of uncommitted records is served: no control records, nothing before the log start offset."""
    data_batches = [batch for batch in batches if not batch.header.is_control]
    return [record for batch in data_batches for record in records_of(batch) if record.offset >= log_start_offset]


def committed_offsets(batches: list[Batch], log_start_offset: int) -> list[int]:
    """What a reader of committed records is served, found from the markers alone: the slow way that needs no index."""
    open_transactions: dict[int, list[int]] = {}
    settled: list[int] = []
    first_offsets: dict[int, int] = {}
    for batch in batches:
        header = batch.header
        if header.is_control:
            marker = read_end_transaction_marker(batch.data, batch.position, header)
            offsets = open_transactions.pop(header.producer_id, [])
            first_offsets.pop(header.producer_id, None)
            settled += offsets if marker.control_type is ControlType.COMMIT else []
        elif header.is_transactional:
            first_offsets.setdefault(header.producer_id, header.base_offset)
            open_transactions.setdefault(header.producer_id, []).extend(record.offset for record in records_of(batch))
        else:
            settled += [record.offset for record in records_of(batch)]
    last_stable_offset = min(first_offsets.values(), default=1 << 62)
    return sorted(offset for offset in settled if log_start_offset <= offset < last_stable_offset)


EXPECTED_PARTITIONS = [(name, expected) for name in FIXTURE_NAMES for expected in read_expected(name).partitions]
PARTITION_IDS = [f"{name}-{expected.directory_name}" for name, expected in EXPECTED_PARTITIONS]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: unpack(name, tmp_path_factory.mktemp(name)) for name in FIXTURE_NAMES}


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_every_batch_has_a_valid_crc_and_decodes(directories: dict[str, Path], name: str) -> None:
    """The internal topics too, which no client read."""
    partitions = [path for path in directories[name].iterdir() if path.is_dir()]
    assert {path.name for path in partitions} > {expected.directory_name for expected in read_expected(name).partitions}
    for batch in [batch for partition in partitions for batch in batches_of(partition)]:
        assert crc_is_valid(batch.data, batch.position, batch.header), batch
        records = records_of(batch)
        assert len(records) == batch.header.record_count
        keys = iterate_keys(batch.data, batch.position, batch.header, size_max=SIZE_MAX, count_max=COUNT_MAX)
        assert list(keys) == [(record.offset - batch.header.base_offset, record.key, record.value is None) for record in records]


@pytest.mark.parametrize(("name", "expected"), EXPECTED_PARTITIONS, ids=PARTITION_IDS)
def test_records_are_those_that_kafka_served(directories: dict[str, Path], name: str, expected: ExpectedPartition) -> None:
    batches = batches_of(directories[name] / expected.directory_name)
    assert data_records(batches, expected.log_start_offset) == expected.records
    assert committed_offsets(batches, expected.log_start_offset) == expected.committed_offsets
    assert (batches[-1].header.next_offset if batches else 0) == expected.high_watermark


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_fixture_holds_every_feature(directories: dict[str, Path], name: str) -> None:
    """A fixture that is made again must not lose what it is there for."""
    expected = {partition.directory_name: partition for partition in read_expected(name).partitions}
    headers = {path: [batch.header for batch in batches_of(directories[name] / path)] for path in expected}
    everything = [header for partition in headers.values() for header in partition]
    assert {header.compression for header in everything} == set(CompressionType)
    assert any(header.is_log_append_time for header in everything)
    assert any(header.has_delete_horizon for header in headers["compacted-0"])
    assert any(header.record_count == 0 for header in headers["compacted-transactions-0"])
    assert len({header.leader_epoch for header in headers["leader-epochs-0"]}) == 3
    assert headers["retained-0"][0].base_offset == expected["retained-0"].log_start_offset > 0
    assert headers["deleted-records-0"][0].base_offset < expected["deleted-records-0"].log_start_offset
    transactions = expected["transactions-0"]
    assert transactions.last_stable_offset < transactions.high_watermark
    below_stable = [record.offset for record in transactions.records if record.offset < transactions.last_stable_offset]
    assert set(transactions.committed_offsets) < set(below_stable)
