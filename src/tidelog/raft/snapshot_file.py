"""Snapshots of the metadata log, in Kafka's files (KIP-630).

A snapshot holds what all records of the log below its end offset add up to. It lies beside the segments and is named by its end
offset and the epoch of the last record below it: ``00000000000000004711-0000000012.checkpoint``. Its content has the format of a
log whose offsets count from 0::

    control batch    SnapshotHeader; under kraft.version 1 also KRaftVersion and Voters, as they were at the end offset
    batches          the records of the image
    control batch    SnapshotFooter

A snapshot is written under the suffix ``.part``, synced, renamed, and its directory is synced: whoever finds the plain name finds
all of it, and a start removes every ``.part``. Even so nobody trusts the name alone. ``check_snapshot`` reads every batch, and a
snapshot whose checksums, offsets, header or footer are wrong is not used.

``00000000000000000000-0000000000.checkpoint`` is the bootstrap snapshot: formatting a directory writes it, and it names the first
voters. ``bootstrap.checkpoint`` in the data directory itself has the same format and holds the first features.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidelog.ports.disk import Disk, DiskFile
from tidelog.ports.steps import Steps
from tidelog.raft.control_records import QuorumRecord, SnapshotFooter, SnapshotHeader, build_control_batch, read_control_records
from tidelog.raft.errors import CorruptMetadataLog, QuorumError
from tidelog.raft.messages import SnapshotId
from tidelog.raft.quorum import SnapshotPiece
from tidelog.raft.record_values import BATCH_SIZE_MAX, read_values
from tidelog.raft.voters import ControlRecord, KRaftVersion, VoterSet, VotersRecord
from tidelog.records.batch import build_batch
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, BatchHeader, check_header, crc_is_valid, read_header
from tidelog.records.record import Record

SNAPSHOT_SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
BOOTSTRAP_FILE_NAME = "bootstrap.checkpoint"
BOOTSTRAP_SNAPSHOT_ID = SnapshotId(0, 0)
# About half a millisecond of encoding: a snapshot is written while clients are served.
RECORDS_PER_BATCH = 50

_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10


class SnapshotUnusable(QuorumError):
    """A snapshot is damaged or not whole."""


class SnapshotSummary(NamedTuple):
    """What a snapshot says about the quorum. ``control_records`` are the kraft version and the voters, if it has them."""

    last_timestamp: int
    control_records: tuple[ControlRecord, ...]


def snapshot_file_name(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.end_offset:0{_OFFSET_DIGITS}d}-{snapshot_id.epoch:0{_EPOCH_DIGITS}d}{SNAPSHOT_SUFFIX}"


def parse_snapshot_file_name(name: str) -> SnapshotId | None:
    """The id of the snapshot with this file name; None for any other file, also for one that is not complete."""
    offset_text, dash, epoch_text = name.removesuffix(SNAPSHOT_SUFFIX).partition("-")
    are_digits = offset_text.isascii() and offset_text.isdigit() and epoch_text.isascii() and epoch_text.isdigit()
    if not dash or not are_digits or not name.endswith(SNAPSHOT_SUFFIX):
        return None
    snapshot_id = SnapshotId(int(offset_text), int(epoch_text))
    return snapshot_id if snapshot_file_name(snapshot_id) == name else None


# -- writing -----------------------------------------------------------------------------------------------------------------


class SnapshotWriter:
    """Writes one snapshot. Only ``seal`` blocks, and only after it does the snapshot exist."""

    __slots__ = ("_directory", "_disk", "_file", "_next_offset", "_now_ms", "position", "snapshot_id")

    def __init__(self, disk: Disk, directory: str, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Begin a new ``.part`` file in place of one that was left behind. Raises OSError."""
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms
        self.snapshot_id = snapshot_id
        self._file = disk.open(partial_path(directory, snapshot_id), "create")
        self._file.truncate(0)
        self._next_offset = 0
        self.position = 0

    def begin(self, last_timestamp: int, control_records: Sequence[ControlRecord]) -> None:
        """Write the header. ``last_timestamp`` is that of the last record that the snapshot covers."""
        self._write_control([SnapshotHeader(last_timestamp), *control_records])

    def append(self, values: Sequence[bytes]) -> None:
        base_offset, now_ms = self._next_offset, self._now_ms
        records = [Record(offset, now_ms, None, value) for offset, value in enumerate(values, base_offset)]
        self._write(build_batch(records, base_offset=base_offset, leader_epoch=self.snapshot_id.epoch), len(records))

    def end(self) -> None:
        self._write_control([SnapshotFooter()])

    def seal(self) -> None:
        """Make the snapshot durable under its name. Blocks."""
        seal_partial(self._disk, self._directory, self.snapshot_id)

    def _write_control(self, records: Sequence[QuorumRecord]) -> None:
        batch = build_control_batch(records, self._now_ms, self._next_offset, self.snapshot_id.epoch)
        self._write(batch, len(records))

    def _write(self, batch: bytes, count: int) -> None:
        self._file.write(self.position, [batch])
        self.position += len(batch)
        self._next_offset += count


def partial_path(directory: str, snapshot_id: SnapshotId) -> str:
    return f"{directory}/{snapshot_file_name(snapshot_id).removesuffix(SNAPSHOT_SUFFIX)}{PARTIAL_SUFFIX}"


def seal_partial(disk: Disk, directory: str, snapshot_id: SnapshotId) -> None:
    """Give a snapshot that is complete its name. Blocks until both are durable."""
    path = partial_path(directory, snapshot_id)
    disk.open(path, "write").sync()
    disk.rename(path, f"{directory}/{snapshot_file_name(snapshot_id)}")
    disk.sync_directory(directory)


def write_bootstrap_snapshot(disk: Disk, directory: str, voters: VoterSet, now_ms: int) -> None:
    """Write the snapshot with which a quorum under kraft.version 1 begins, into the directory of the metadata log. Blocks."""
    writer = SnapshotWriter(disk, directory, BOOTSTRAP_SNAPSHOT_ID, now_ms)
    writer.begin(now_ms, [KRaftVersion(1), VotersRecord(voters)])
    writer.end()
    writer.seal()


# -- reading -----------------------------------------------------------------------------------------------------------------


def check_snapshot(file: DiskFile) -> Steps[SnapshotSummary]:
    """Read all of a snapshot, in steps of one batch. Raises SnapshotUnusable unless it is whole and sound."""
    records: list[QuorumRecord] = []
    next_offset = 0
    for batch, header in _batches(file):
        if records and isinstance(records[-1], SnapshotFooter):
            raise SnapshotUnusable(f"{file.path} goes on after its footer")
        if header.base_offset != next_offset:
            raise SnapshotUnusable(f"{file.path} has offset {header.base_offset} where {next_offset} should be")
        next_offset = header.next_offset
        if header.is_control:
            try:
                records += [record for _, record in read_control_records(batch)]
            except CorruptMetadataLog as error:
                raise SnapshotUnusable(f"{file.path}: {error}") from error
        if not records or not isinstance(records[0], SnapshotHeader):
            raise SnapshotUnusable(f"{file.path} does not begin with the header of a snapshot")
        yield None
    if not records or not isinstance(records[-1], SnapshotFooter):
        raise SnapshotUnusable(f"{file.path} has no footer, so it is not whole")
    header_record = records[0]
    assert isinstance(header_record, SnapshotHeader)
    control_records = tuple(record for record in records if isinstance(record, KRaftVersion | VotersRecord))
    return SnapshotSummary(header_record.last_contained_log_timestamp, control_records)


def snapshot_values(file: DiskFile) -> Iterator[list[bytes]]:
    """The values of the records of a snapshot, batch by batch. Raises SnapshotUnusable."""
    for batch, header in _batches(file):
        if not header.is_control:
            try:
                yield read_values(batch, 0, header)
            except RecordError as error:
                raise SnapshotUnusable(f"{file.path}: the batch at offset {header.base_offset}: {error}") from error


def _batches(file: DiskFile) -> Iterator[tuple[bytes, BatchHeader]]:
    position, size = 0, file.size()
    while position < size:
        start = file.read(position, HEADER_SIZE)
        try:
            header = read_header(start)
            check_header(header, min(size - position, BATCH_SIZE_MAX))
        except RecordError as error:
            raise SnapshotUnusable(f"{file.path}: at byte {position}: {error}") from error
        batch = file.read(position, header.size)
        if not crc_is_valid(batch, 0, header):
            raise SnapshotUnusable(f"{file.path}: the batch at byte {position} fails its checksum")
        yield batch, header
        position += header.size


class SnapshotFiles:
    """The snapshots of a directory, in the order of their ids. What is added or removed here counts at once; the files follow."""

    __slots__ = ("_directory", "_disk", "_open", "_sizes")

    def __init__(self, disk: Disk, directory: str) -> None:
        """List the snapshots, and remove what a crash left of those that were being written or deleted. Raises OSError."""
        self._disk = disk
        self._directory = directory
        self._open: dict[SnapshotId, DiskFile] = {}
        self._sizes: dict[SnapshotId, int] = {}
        for name in disk.list_directory(directory):
            path = f"{directory}/{name}"
            snapshot_id = parse_snapshot_file_name(name)
            if snapshot_id is not None:
                self._sizes[snapshot_id] = disk.file_size(path)
            elif name.endswith((PARTIAL_SUFFIX, DELETED_SUFFIX)):
                disk.remove(path)

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        return tuple(sorted(self._sizes))

    @property
    def latest(self) -> SnapshotId | None:
        return max(self._sizes, default=None)

    @property
    def earliest(self) -> SnapshotId | None:
        return min(self._sizes, default=None)

    def size(self, snapshot_id: SnapshotId) -> int:
        return self._sizes[snapshot_id]

    def open(self, snapshot_id: SnapshotId) -> DiskFile:
        """Raises OSError."""
        file = self._open.get(snapshot_id)
        if file is None:
            file = self._open[snapshot_id] = self._disk.open(self.path(snapshot_id), "read")
        return file

    def path(self, snapshot_id: SnapshotId) -> str:
        return f"{self._directory}/{snapshot_file_name(snapshot_id)}"

    def read(self, snapshot_id: SnapshotId, position: int, size_max: int) -> SnapshotPiece | None:
        """A piece of a snapshot; None if there is no such snapshot. Raises OSError."""
        size = self._sizes.get(snapshot_id)
        if size is None:
            return None
        return SnapshotPiece(size, self.open(snapshot_id).read(position, size_max) if 0 <= position < size else b"")

    def write_fetched(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Keep a piece of a snapshot that comes from the leader, as part of a file that does not count yet. Raises OSError."""
        file = self._disk.open(partial_path(self._directory, snapshot_id), "create")
        file.truncate(position)
        file.write(position, [data])

    def open_fetched(self, snapshot_id: SnapshotId) -> DiskFile:
        return self._disk.open(partial_path(self._directory, snapshot_id), "read")

    def seal_fetched(self, snapshot_id: SnapshotId) -> None:
        """Blocks. ``add`` makes it count."""
        seal_partial(self._disk, self._directory, snapshot_id)

    def add(self, snapshot_id: SnapshotId, size: int) -> None:
        """A snapshot was sealed."""
        self._open.pop(snapshot_id, None)
        self._sizes[snapshot_id] = size

    def forget(self, snapshot_ids: Iterable[SnapshotId]) -> list[str]:
        """These snapshots no longer count. Returns the paths that the caller removes."""
        forgotten = [each for each in snapshot_ids if self._sizes.pop(each, None) is not None]
        for each in forgotten:
            self._open.pop(each, None)
        return [self.path(each) for each in forgotten]
