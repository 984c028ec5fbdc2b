"""The metadata log on the data directory, and how decisions get into it.

The log is the partition ``__cluster_metadata-0`` under Kafka's fixed id, and only the quorum writes to it. Its records count only
once they are on disk. Snapshots lie beside its segments (``raft.snapshot_file``), and only what a snapshot covers is ever deleted
from it (``broker.metadata_snapshots``); the topic's own retention deletes nothing.

At a start the latest snapshot is read completely before it counts. One that is damaged is set aside, and an older one, or the
whole log, takes its place; if neither is there, the node does not start. A log that ends below its latest snapshot is left over
from a crash and begins again at the snapshot's end.

``SlicedProposals`` writes each decision as one batch, and a large one in slices. Encoding, writing, reading back and replaying a
thousand records takes tens of milliseconds, in which nobody is served. So a decision of more than ``RECORDS_PER_SLICE`` records
becomes several batches within one transaction of the metadata log (BeginTransaction, EndTransaction: KIP-868), and the loop is
free while each is synced. Readers of the image see all of it or nothing, and so does a start after a crash, which aborts a
transaction without an end. A slice that cannot be written ends the decision: the transaction is aborted, with the next decision
at the latest. Other proposals wait in the meantime, because everything that is written within a transaction belongs to it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.append_check import AppendOrigin, whole_batches_bytes
from tidelog.log.data_directory import DataDirectory
from tidelog.log.durability.checkpoints import write_partition_metadata
from tidelog.log.errors import LogError, LogOffline, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.settings import UNLIMITED, LogSettings
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord, MetadataRecord
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.ports.disk import Disk
from tidelog.ports.steps import run_to_end
from tidelog.raft.control_records import build_control_batch, only_quorum_records, read_control_records
from tidelog.raft.errors import CorruptMetadataLog, QuorumError
from tidelog.raft.messages import EpochEnd, SnapshotId
from tidelog.raft.quorum import SnapshotPiece
from tidelog.raft.record_values import read_values
from tidelog.raft.snapshot_file import (
    BOOTSTRAP_SNAPSHOT_ID,
    SnapshotFiles,
    SnapshotSummary,
    SnapshotUnusable,
    check_snapshot,
    write_bootstrap_snapshot,
)
from tidelog.raft.voters import ControlRecord, PlacedControlRecord, VoterSet
from tidelog.records.errors import RecordError
from tidelog.records.header import BatchHeader, crc_is_valid, iterate_headers

METADATA_TOPIC_ID = bytes(15) + b"\1"
# The data directory must be opened with these settings for METADATA_TOPIC.
METADATA_LOG_SETTINGS = LogSettings(delete=False, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
_READ_BYTES = 1 << 20
DAMAGE_ADVICE = (
    "restore the data directory from a copy, or replace this node by one with an empty directory (docs/OPERATIONS.md, When a "
    "node is lost)"
)


class CommittedBatch(NamedTuple):
    first_offset: int
    last_offset: int
    epoch: int
    values: Sequence[bytes]
    """The values of the records; empty for a batch of the quorum's own."""
    size: int = 0
    timestamp: int = -1


class MetadataLogUnwritable(QuorumError):
    """A batch could not be appended to the metadata log; nothing of it is in the log. The cause says why."""


class MetadataLogUnreadable(QuorumError):
    """The disk did not give back a part of the metadata log. The cause says why."""


class PartitionRaftLog:
    """``tidelog.raft.quorum.RaftLog`` on a partition log."""

    __slots__ = ("_clock", "_disk", "_report", "_reserve", "_summary", "log", "snapshots")

    def __init__(self, directory: DataDirectory) -> None:
        """Create the log if it does not exist. Raises LogOffline if it exists and cannot be used."""
        self._clock = directory.clock
        self._disk = directory.disk
        self._reserve = directory.reserve
        self._report = directory.environment.report
        key = METADATA_TOPIC, 0
        if key in directory.offline:
            raise LogOffline(f"{METADATA_TOPIC}-0", f"{directory.offline[key]}; {DAMAGE_ADVICE}")
        log = directory.logs.get(key)
        if log is None:
            log = directory.create(METADATA_TOPIC, 0, METADATA_TOPIC_ID, METADATA_LOG_SETTINGS)
            # The quorum state lies in this directory too. A vote must not be lost together with the directory's name.
            directory.disk.sync_directory(directory.path)
        self.log: PartitionLog = log
        self.snapshots = SnapshotFiles(directory.disk, log.directory)
        # What the latest snapshot says about the voters.
        self._summary = SnapshotSummary(-1, ())

    # -- what the quorum asks ------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def durable_end_offset(self) -> int:
        return self.log.durable.offset

    @property
    def last_epoch(self) -> int:
        latest_epoch, snapshot = self.log.epochs.latest_epoch, self.snapshots.latest
        if latest_epoch >= 0:
            return latest_epoch
        return snapshot.epoch if snapshot is not None else 0

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots.latest

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        # A crash may bring back snapshots from before the one at which the log begins. Who has nothing newer needs a snapshot.
        at_start = [each for each in self.snapshots.ids if each.end_offset <= self.start_offset]
        return at_start[-1] if at_start else self.snapshots.earliest

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        end_offset = self.end_offset
        for entry in reversed(self.log.epochs.entries):
            if entry.epoch <= epoch:
                return EpochEnd(entry.epoch, end_offset)
            end_offset = entry.start_offset
        # After a crash there may be older snapshots than the one at which the log begins.
        for snapshot in reversed(self.snapshots.ids):
            if snapshot.epoch <= epoch and snapshot.end_offset <= self.start_offset:
                return EpochEnd(snapshot.epoch, snapshot.end_offset)
        return EpochEnd(0, 0)

    def control_records(self, offset: int) -> Iterator[PlacedControlRecord]:
        snapshot = self.snapshots.latest
        if snapshot is not None and offset <= snapshot.end_offset:
            offset = snapshot.end_offset
            yield from ((offset - 1, record) for record in self._summary.control_records)
        for data in self._pieces(offset, Isolation.LOG_END):
            yield from (placed for placed in only_quorum_records(read_control_records(data)) if placed[0] >= offset)

    def read(self, offset: int, size_max: int) -> bytes | None:
        return next(self._pieces(offset, Isolation.LOG_END, size_max), None)

    # -- what the quorum does ------------------------------------------------------------------------------------------------

    def append(self, batch: bytes, epoch: int) -> int:
        return self._append(lambda: self.log.append_as_leader(batch, epoch, AppendOrigin.COORDINATOR))

    def append_control(self, records: Sequence[ControlRecord], epoch: int) -> int:
        return self.append(build_control_batch(records, self._clock.now_ms()), epoch)

    def append_fetched(self, records: bytes) -> None:
        self._append(lambda: self.log.append_as_follower(records))

    def _append(self, append: Callable[[], object]) -> int:
        try:
            try:
                append()
            except StorageError as error:
                # Nothing was written. A broker must be able to start, and to delete a topic, on a full disk.
                if not self._reserve.may_have_made_room(error):
                    raise
                append()
        except (LogError, RecordError, OSError) as error:
            raise MetadataLogUnwritable(f"the metadata log cannot be written: {error}") from error
        return self.end_offset

    def advance_high_watermark(self, offset: int) -> None:
        self.log.advance_high_watermark(offset)

    # -- snapshots -----------------------------------------------------------------------------------------------------------

    def check_snapshots(self) -> None:
        """Before the quorum starts: read the latest snapshot, and set aside those that are damaged. Raises CorruptMetadataLog
        when what they held is nowhere else."""
        while (snapshot_id := self.snapshots.latest) is not None:
            try:
                self._summary = run_to_end(check_snapshot(self.snapshots.open(snapshot_id)))
            except (SnapshotUnusable, OSError) as error:
                self._set_aside(snapshot_id, error)
            else:
                return

    def _set_aside(self, snapshot_id: SnapshotId, error: Exception) -> None:
        older = [each for each in self.snapshots.ids if each < snapshot_id]
        if self.start_offset > (older[-1].end_offset if older else 0) or snapshot_id == BOOTSTRAP_SNAPSHOT_ID:
            raise CorruptMetadataLog(
                f"{error}. Nothing else holds what it held: restore the file, or format the directory and let the node fetch "
                "everything from the quorum"
            ) from error
        self._report("snapshot_set_aside", {"snapshot": self.snapshots.path(snapshot_id), "reason": str(error)})
        for path in self.snapshots.forget([snapshot_id]):
            self._disk.rename(path, f"{path}.damaged")

    @property
    def is_behind_snapshot(self) -> bool:
        """Whether the latest snapshot ends above this log, or is of a later history: a crash interrupted its installation, or
        took the end of the log."""
        snapshot = self.snapshots.latest
        log_epoch = max(self.log.epochs.latest_epoch, 0)
        return (
            snapshot is not None
            and (snapshot.epoch > log_epoch or snapshot.end_offset > self.end_offset)
            and (snapshot.end_offset != self.start_offset or self.start_offset != self.end_offset)
        )

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, size_max: int) -> SnapshotPiece | None:
        try:
            return self.snapshots.read(snapshot_id, position, size_max)
        except OSError as error:
            self._report("snapshot_not_read", {"snapshot": self.snapshots.path(snapshot_id), "error": str(error)})
            return None

    def write_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        try:
            self.snapshots.write_fetched(snapshot_id, position, data)
        except OSError as error:
            raise MetadataLogUnwritable(f"a piece of a snapshot cannot be written: {error}") from error

    @property
    def snapshot_timestamp(self) -> int:
        """The timestamp of the last record that the latest snapshot covers; -1 without one."""
        return self._summary.last_timestamp

    def add_snapshot(self, snapshot_id: SnapshotId, size: int, summary: SnapshotSummary) -> None:
        """A snapshot is durable under its name."""
        self.snapshots.add(snapshot_id, size)
        if snapshot_id == self.snapshots.latest:
            self._summary = summary

    # -- what the image follows ----------------------------------------------------------------------------------------------

    def committed_batches(self, offset: int) -> Iterator[CommittedBatch]:
        """The batches of decisions from ``offset`` up to the high watermark. Raises CorruptMetadataLog."""
        for data in self._pieces(offset, Isolation.HIGH_WATERMARK):
            for position, header in _read_headers(data):
                if header.base_offset < offset:
                    continue
                if not crc_is_valid(data, position, header):
                    raise CorruptMetadataLog(
                        f"{self.log.directory}: the metadata batch at offset {header.base_offset} fails its checksum; "
                        f"{DAMAGE_ADVICE}"
                    )
                values = [] if header.is_control else _read_values(data, position, header)
                yield CommittedBatch(
                    header.base_offset, header.last_offset, header.leader_epoch, values, header.size, header.max_timestamp
                )

    def _pieces(self, offset: int, isolation: Isolation, size_max: int = _READ_BYTES) -> Iterator[bytes]:
        """Whole batches from the one that holds ``offset`` on, in pieces. Raises MetadataLogUnreadable."""
        while offset < (self.end_offset if isolation is Isolation.LOG_END else self.log.high_watermark):
            try:
                found = read(self.log, offset, size_max, isolation).records
                if found is None:
                    return
                data = found.file.read(found.position, found.length)
            except (LogError, OSError) as error:
                raise MetadataLogUnreadable(f"the metadata log cannot be read at offset {offset}: {error}") from error
            data = data[: whole_batches_bytes(memoryview(data))]
            yield data
            offset = _next_offset(data)


def format_metadata_log(disk: Disk, data_path: str, voters: VoterSet, now_ms: int) -> None:
    """In a new data directory, name the first voters of a quorum under kraft.version 1. Blocks until that is durable."""
    directory = names.join(data_path, names.partition_directory_name(METADATA_TOPIC, 0))
    disk.make_directory(directory)
    write_partition_metadata(disk, names.join(directory, names.PARTITION_METADATA), METADATA_TOPIC_ID)
    write_bootstrap_snapshot(disk, directory, voters, now_ms)
    disk.sync_directory(data_path)


def _next_offset(data: bytes) -> int:
    *_, (_, last) = iterate_headers(data)
    return last.next_offset


def _read_headers(data: bytes) -> list[tuple[int, BatchHeader]]:
    try:
        return list(iterate_headers(data))
    except RecordError as error:
        raise CorruptMetadataLog(f"the metadata log cannot be read: {error}") from error


def _read_values(data: bytes, position: int, header: BatchHeader) -> list[bytes]:
    try:
        return read_values(data, position, header)
    except RecordError as error:
        raise CorruptMetadataLog(f"the metadata batch at offset {header.base_offset} cannot be read: {error}") from error


# About four milliseconds: half to encode and write them, half to decode them when they are committed.
RECORDS_PER_SLICE = 200

OnDone = Callable[[Exception | None], None]
Write = Callable[[Sequence[MetadataRecord], OnDone], None]


class SlicedProposals:
    __slots__ = ("_image", "_is_busy", "_waiting", "_write")

    def __init__(self, image: ClusterImage, write: Write) -> None:
        """``write`` commits records as one batch, replays them into ``image``, and then calls back."""
        self._image = image
        self._write = write
        self._is_busy = False
        self._waiting: deque[tuple[Sequence[MetadataRecord], OnDone]] = deque()

    def propose(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        """``on_done`` is called when all records are committed and the image has them, or with the error: then it has none of
        them."""
        if self._is_busy:
            self._waiting.append((records, on_done))
        elif len(records) <= RECORDS_PER_SLICE:
            self._write([*self._abort_of_open(), *records], on_done)
        else:
            self._is_busy = True
            self._write_slices(records, on_done)

    def _abort_of_open(self) -> list[MetadataRecord]:
        """The abort record of a transaction whose abort could not be written earlier."""
        return [AbortTransactionRecord("a part of it could not be written")] if self._image.in_transaction else []

    def _write_slices(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        def write_from(position: int) -> None:
            end = position + RECORDS_PER_SLICE
            head = [*self._abort_of_open(), BeginTransactionRecord()] if position == 0 else []
            tail = [EndTransactionRecord()] if end >= len(records) else []

            def written(error: Exception | None) -> None:
                if error is not None:
                    self._give_up(error, on_done)
                elif tail:
                    self._end(None, on_done)
                else:
                    write_from(end)

            self._write([*head, *records[position:end], *tail], written)

        write_from(0)

    def _give_up(self, error: Exception, on_done: OnDone) -> None:
        abort = self._abort_of_open()
        if abort:
            self._write(abort, lambda _: self._end(error, on_done))
        else:
            self._end(error, on_done)

    def _end(self, error: Exception | None, on_done: OnDone) -> None:
        self._is_busy = False
        on_done(error)
        while self._waiting and not self._is_busy:
            self.propose(*self._waiting.popleft())
