"""Data directories written by Apache Kafka, kept as data, and what a Kafka client read from them.

``fixtures/<name>/data.tar.gz`` is the whole data directory, internal topics included; ``expected.json`` beside it says what the
broker served just before it ended: per partition the log start offset, the high watermark, the last stable offset, every
record, and the offsets that a reader of committed records saw. Keys, values and header values are hexadecimal; null is null.

``kafka-4.3-clean`` was stopped cleanly, ``kafka-4.3-killed`` by SIGKILL. Both hold the same topics; ``make_kafka_fixtures.py``
makes them.
"""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.compatibility.kafka_records import ReadRecord

FIXTURES = Path(__file__).parent / "fixtures"
CLEAN = "kafka-4.3-clean"
KILLED = "kafka-4.3-killed"
FIXTURE_NAMES = (CLEAN, KILLED)


class ExpectedPartition(NamedTuple):
    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    records: list[ReadRecord]
    committed_offsets: list[int]

    @property
    def directory_name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Expected(NamedTuple):
    kafka_version: str
    made_ms: int
    """The wall clock when it was made: a reader that expires by time must be given this as its present."""
    partitions: list[ExpectedPartition]


def unpack(name: str, destination: Path) -> Path:
    """A fresh copy of the data directory of a fixture, in ``destination``."""
    destination.mkdir(parents=True, exist_ok=True)
    with tarfile.open(FIXTURES / name / "data.tar.gz") as archive:
        # The fixtures are our own; the filter, which Python 3.11 lacks before 3.11.4, only silences a warning of later versions.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(destination, filter="data")
        else:
            archive.extractall(destination)
    return destination


def pack(name: str, data_directory: Path) -> None:
    """The same files give the same bytes: sorted names, no times, no owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(data_directory.rglob("*")):
            if path.name == ".lock":
                continue
            entry = tarfile.TarInfo(str(path.relative_to(data_directory)))
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                entry.size = path.stat().st_size
                archive.addfile(entry, io.BytesIO(path.read_bytes()))
    target = FIXTURES / name / "data.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def read_expected(name: str) -> Expected:
    document = json.loads((FIXTURES / name / "expected.json").read_text())
    return Expected(document["kafka_version"], document["made_ms"], [_partition_from(entry) for entry in document["partitions"]])


def write_expected(name: str, expected: Expected) -> None:
    """One record a line, so that a change can be read."""
    partitions = ",\n".join(_partition_text(partition) for partition in expected.partitions)
    head = f'"kafka_version": "{expected.kafka_version}", "made_ms": {expected.made_ms}'
    (FIXTURES / name / "expected.json").write_text(f'{{{head}, "partitions": [\n{partitions}\n]}}\n')


def _partition_text(partition: ExpectedPartition) -> str:
    fields = partition._asdict()
    records = ",\n".join("  " + json.dumps(_record_to(record)) for record in fields.pop("records"))
    return f'{json.dumps(fields)[:-1]}, "records": [\n{records}\n]}}'


def _record_to(record: ReadRecord) -> list[Any]:
    headers = [[name, _to_hex(value)] for name, value in record.headers]
    return [record.offset, record.timestamp, record.is_log_append_time, _to_hex(record.key), _to_hex(record.value), headers]


def _partition_from(entry: dict[str, Any]) -> ExpectedPartition:
    records = [_record_from(*fields) for fields in entry.pop("records")]
    return ExpectedPartition(**entry, records=records)


def _record_from(
    offset: int,
    timestamp: int,
    is_log_append_time: bool,
    key: str | None,
    value: str | None,
    headers: list[tuple[str, str | None]],
) -> ReadRecord:
    named = tuple((name, _from_hex(content)) for name, content in headers)
    return ReadRecord(offset, timestamp, is_log_append_time, _from_hex(key), _from_hex(value), named)


def _to_hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
