"""A data directory on simulated ports, and the few things that every test of it does: append, commit, crash, open again, read."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from fastcrc.crc32 import iscsi as crc32c

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.log.append_check import AppendOrigin
from tidelog.log.data_directory import DataDirectory
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.settings import DirectoryOptions, LogSettings
from tidelog.ports.disk import DiskFile
from tidelog.records.batch import build_batch, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import (
    BATCH_LENGTH_MIN,
    CHECKSUMMED_HEADER,
    HEADER_SIZE,
    PREFIX_MAGIC_CRC,
    BatchHeader,
    crc_is_valid,
    iterate_headers,
    read_header,
)
from tidelog.records.record import Record

PATH = "/data"
CLUSTER_ID = "cluster"
NODE_ID = 1
TOPIC_ID = b"0123456789abcdef"
START_MS = 1_704_067_200_000
# One batch of ``append(log)`` with its one small record: tests count segments and limits in it.
BATCH_BYTES = 100
# Ten of them in a segment, and an index entry for every other one.
SMALL = LogSettings(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)


class Store:
    """One machine with one data directory. ``directory`` is the open one."""

    def __init__(
        self,
        settings: LogSettings | None = None,
        *,
        options: DirectoryOptions | None = None,
        reserve_bytes: int = 0,
        seed: int = 1,
        is_open: bool = True,
    ) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.randomness = SimulatedRandomness(seed)
        self.executor = SimulatedExecutor(self.scheduler, self.randomness, self.disk, self.clock)
        self.settings = settings if settings is not None else LogSettings()
        # By default file by file: a syncfs would cover a sync that was forgotten.
        options = options if options is not None else DirectoryOptions(syncfs_files_min=10_000)
        self.options = replace(options, disk_reserve_bytes=reserve_bytes)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.directory: DataDirectory
        if is_open:
            self.open()

    def open(self, *, cluster_id: str = CLUSTER_ID, node_id: int = NODE_ID) -> DataDirectory:
        self.directory = DataDirectory(
            PATH,
            disk=self.disk,
            clock=self.clock,
            randomness=self.randomness,
            executor=self.executor,
            cluster_id=cluster_id,
            node_id=node_id,
            settings_for=lambda topic: self.settings,
            report=lambda event, facts: self.events.append((event, facts)),
            options=self.options,
        )
        return self.directory

    def create(self, topic: str = "orders", partition: int = 0, topic_id: bytes = TOPIC_ID) -> PartitionLog:
        return self.directory.create(topic, partition, topic_id, self.settings)

    def log(self, topic: str = "orders", partition: int = 0) -> PartitionLog:
        return self.directory.logs[topic, partition]

    def facts(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]

    def wait(self, begin: Callable[[Callable[[BaseException | None], None]], None]) -> BaseException | None:
        """Start something, run the machine until it calls back, return what it said."""
        said: list[BaseException | None] = []
        begin(said.append)
        self.scheduler.run_until(lambda: bool(said))
        return said[0]

    def wait_durable(self, log: PartitionLog) -> BaseException | None:
        """Wait for all that was appended to this log; the error, if it cannot be made durable."""

        def begin(done: Callable[[BaseException | None], None]) -> None:
            self.directory.commit.wait(log, log.log_end_offset, done)
            self.directory.kick()

        return self.wait(begin)

    def commit(self, *logs: PartitionLog) -> None:
        """All that was appended becomes durable and visible."""
        for log in logs or self.directory.logs.values():
            self.directory.commit.wait(log, log.log_end_offset, lambda error: None)
        self.directory.kick()
        self.scheduler.run_until(lambda: self.directory.commit.is_idle)
        for log in logs or self.directory.logs.values():
            assert log.durable.offset == log.log_end_offset
            log.advance_high_watermark(log.durable.offset)

    def checkpoint(self, log: PartitionLog) -> None:
        """The recovery point moves to the log end, on the disk too."""
        assert self.wait(lambda done: self.directory.checkpoint_recovery_point(log, done)) is None
        assert log.recovery_point == log.log_end_offset

    def settle(self, duration_ms: int = 0) -> None:
        """Let time pass with a tick every 200 ms, and what is under way end."""
        end_us = self.scheduler.now_us + duration_ms * 1000
        while self.scheduler.now_us < end_us:
            self.scheduler.run_for(min(200_000, end_us - self.scheduler.now_us))
            self.directory.tick()
        self.scheduler.run_all()

    def pass_time(self, duration_ms: int) -> None:
        """Without a tick."""
        self.scheduler.run_for(duration_ms * 1000)

    def close(self) -> None:
        self.scheduler.run_all()
        self.directory.close()

    def restart(self) -> DataDirectory:
        self.close()
        return self.open()

    def lose_power(self, keep: Keep = "none") -> None:
        """The machine goes down; ``keep`` says what of the un-synced state is left."""
        self.executor.crash()
        self.disk = self.disk.crash_image(self.randomness, keep)
        self.executor.disk = self.disk

    def crash(self, keep: Keep = "none") -> DataDirectory:
        self.lose_power(keep)
        return self.open()

    def count_reads(self) -> list[str]:
        """The path of every read of a file from now on."""
        paths: list[str] = []

        def note(path: str) -> bool:
            paths.append(path)
            return False

        self.disk.faults.fail("read", note)
        return paths

    def paths(self, suffix: str, directory: str = f"{PATH}/orders-0") -> list[str]:
        return [f"{directory}/{name}" for name in self.disk.list_directory(directory) if name.endswith(suffix)]


def batch(
    count: int = 1,
    *,
    base_offset: int = 0,
    timestamps: Iterable[int] | None = None,
    size: int | None = None,
    key: bytes | None = b"key",
    leader_epoch: int = -1,
    compression: CompressionType = CompressionType.NONE,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
) -> bytes:
    """A batch; with ``size`` its last value is filled up so that the batch has exactly that many bytes."""
    stamps = list(timestamps) if timestamps is not None else [START_MS] * count

    def build(filler: int) -> bytes:
        records = [Record(base_offset + number, stamp, key, b"v" * (1 + filler)) for number, stamp in enumerate(stamps)]
        is_idempotent = producer_id >= 0
        return build_batch(
            records,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch if is_idempotent else -1,
            base_sequence=sequence if is_idempotent else -1,
            transactional=transactional,
        )

    if size is None:
        return build(0)
    built = build(size - len(build(0)))
    # Lengths are varints: a longer value may need longer lengths.
    return built if len(built) == size else build(2 * size - len(build(0)) - len(built))


def append(log: PartitionLog, count: int = 1, *, leader_epoch: int = 0, size: int | None = BATCH_BYTES) -> AppendResult:
    """One batch of ``count`` records, stamped with the clock's time; BATCH_BYTES long when it has one record."""
    stamps = [log.environment.clock.now_ms()] * count
    return log.append_as_leader(batch(timestamps=stamps, size=size if count == 1 else None), leader_epoch)


def end_transaction(log: PartitionLog, producer_id: int, end: ControlType, *, leader_epoch: int = 0) -> int:
    """Write a marker; returns its offset."""
    marker = build_end_transaction_marker(
        EndTransactionMarker(end, 0), producer_id=producer_id, producer_epoch=0, timestamp=START_MS
    )
    return log.append_as_leader(marker, leader_epoch, AppendOrigin.COORDINATOR).first_offset


def slice_bytes(log: PartitionLog, offset: int, bytes_max: int, isolation: Isolation = Isolation.LOG_END) -> bytes:
    found = read(log, offset, bytes_max, isolation).records
    if found is None:
        return b""
    data = found.file.read(found.position, found.length)
    assert len(data) == found.length, "a slice promises no more than the file holds"
    return data


def headers_in(data: bytes) -> list[BatchHeader]:
    return [header for _, header in iterate_headers(data)]


def log_bytes(log: PartitionLog) -> bytes:
    """Everything in the log's files, in order."""
    return b"".join(_content(segment.file()) for segment in log.segments)


def _content(file: DiskFile) -> bytes:
    return file.read(0, file.size())


def log_headers(log: PartitionLog) -> list[BatchHeader]:
    """Every batch in the files: whole, valid, and nothing else beside them."""
    data = log_bytes(log)
    headers = []
    end = 0
    for position, header in iterate_headers(data):
        assert crc_is_valid(data, position, header)
        headers.append(header)
        end = position + header.size
    assert end == len(data)
    return headers


def base_offsets(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def state_of(log: PartitionLog) -> tuple[object, ...]:
    """All that a refused or failed append must leave alone."""
    indexes = [(segment.offset_index.entry_count, segment.time_index.entry_count, segment.size) for segment in log.segments]
    return log.log_end_offset, log.size, log.producers.describe(), log.epochs.latest_epoch, indexes, log_headers(log)


def read_offsets(log: PartitionLog, isolation: Isolation = Isolation.LOG_END, bytes_max: int = 1 << 20) -> list[int]:
    """The offsets that a consumer gets that reads the log from its start, slice by slice; control records too."""
    offsets: list[int] = []
    offset = log.log_start_offset
    while data := slice_bytes(log, offset, bytes_max, isolation):
        assert len(data) >= HEADER_SIZE
        for position, header in iterate_headers(data):
            records = read_records(data, position, header, size_max=1 << 20, count_max=1 << 20)
            offsets += [record.offset for record in records if record.offset >= offset]
            offset = max(offset, header.next_offset)
    return offsets


def first_header(data: bytes) -> BatchHeader:
    return read_header(data)


def with_body(data: bytes, body: bytes, **fields: int) -> bytes:
    """The batch with other bytes for its records and other fields in its header: all as wrong as wanted, but for the CRC."""
    header = read_header(data)._replace(batch_length=BATCH_LENGTH_MIN + len(body), **fields)
    checksummed = CHECKSUMMED_HEADER.pack(*header[5:])
    crc = crc32c(body, crc32c(checksummed))
    return PREFIX_MAGIC_CRC.pack(*header[:4], crc) + checksummed + body
