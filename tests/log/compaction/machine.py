"""One partition log on a simulated machine, with everything that compacts it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tidelog.log.append_check import AppendOrigin
from tidelog.log.compaction.cleaner import Cleaner, CleanerPorts
from tidelog.log.durability.disk_reserve import DiskReserve
from tidelog.log.environment import LogEnvironment
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery.log_recovery import LogOpening, open_log
from tidelog.log.segments.batch_scan import scan_batches
from tidelog.log.segments.file_handles import FileHandles
from tidelog.log.segments.indexes import IndexCache
from tidelog.log.segments.segment import LogSegment
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch, read_records
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.header import BatchHeader, crc_is_valid
from tidelog.records.record import Record
from tidelog.records.topic_partition import TopicPartition

TOPIC = "orders"
DIRECTORY = "/data/orders-0"
RETENTION_MS = 10_000
KEY: TopicPartition = (TOPIC, 0)

KeyValue = tuple[bytes | None, bytes | None]


class FoundBatch(NamedTuple):
    header: BatchHeader
    records: list[Record]


def settings(**changes: int | float | bool) -> LogSettings:
    values: dict[str, int | float | bool] = {
        "compact": True,
        "delete": False,
        "segment_bytes": 1 << 20,
        "index_interval_bytes": 1,
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": RETENTION_MS,
        **changes,
    }
    return LogSettings(**values)  # type: ignore[arg-type]  # one dictionary for fields of several types


class Machine:
    def __init__(self, log_settings: LogSettings | None = None, key_map_bytes_max: int = 1 << 20, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.disk.make_directory("/data")
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_directory("/")
        self.disk.sync_directory("/data")
        self.randomness = SimulatedRandomness(seed)
        self.executor = SimulatedExecutor(self.scheduler, self.randomness, self.disk, self.clock)
        self.settings = log_settings or settings()
        self.key_map_bytes_max = key_map_bytes_max
        self.bytes_per_second_max = float("inf")
        self.recovery_point_on_disk = 0
        self.first_dirty_on_disk: dict[TopicPartition, int] = {}
        self.deleted: list[LogSegment] = []
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.sequences: dict[int, int] = {}
        self.log = self.open(self.disk)
        self.cleaner = self.new_cleaner()
        self.sync()

    # -- opening ---------------------------------------------------------------------------------------------------------------

    def open(self, disk: SimulatedDisk, recovery_point: int | None = None) -> PartitionLog:
        environment = LogEnvironment(
            disk,
            self.clock,
            self.randomness,
            FileHandles(disk, 100),
            IndexCache(1 << 20),
            DiskReserve(disk, DIRECTORY, 0, lambda event, facts: None),
            on_dirty=lambda log: None,
            report=lambda event, facts: self.reports.append((event, facts)),
        )
        point = self.recovery_point_on_disk if recovery_point is None else recovery_point
        opening = LogOpening(TOPIC, 0, bytes(16), DIRECTORY, self.settings, point, 0, point, False, True)
        return open_log(environment, opening)

    @property
    def ports(self) -> CleanerPorts:
        return CleanerPorts(
            self.clock,
            self.executor,
            report=lambda event, facts: self.reports.append((event, facts)),
            logs=lambda: [self.log],
            checkpoint_recovery_point=self._checkpoint_recovery_point,
            delete_later=lambda segments, log: self.deleted.extend(segments),
            save_checkpoint=self.first_dirty_on_disk.update,
        )

    def new_cleaner(self) -> Cleaner:
        return Cleaner(self.ports, dict(self.first_dirty_on_disk), self.key_map_bytes_max, self.bytes_per_second_max, 0)

    def _checkpoint_recovery_point(self, log: PartitionLog, on_done: object) -> None:
        assert callable(on_done)
        plan = log.begin_sync(with_recovery_point=True)

        def done() -> None:
            log.finish_sync(plan, None)
            self.recovery_point_on_disk = log.recovery_point
            on_done(None)

        self.executor.submit(lambda: plan.run(self.disk), lambda completion: done())

    # -- writing ---------------------------------------------------------------------------------------------------------------

    def send(
        self,
        pairs: Iterable[KeyValue],
        producer_id: int = -1,
        transactional: bool = False,
        compression: CompressionType = CompressionType.NONE,
    ) -> list[Record]:
        """Append one batch; returns its records with the offsets that they were given."""
        now_ms = self.clock.now_ms()
        records = [Record(number, now_ms + number, key, value) for number, (key, value) in enumerate(pairs)]
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(records)
        batch = build_batch(
            records,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        first_offset = self.log.append_as_leader(batch, 0).first_offset
        return [record._replace(offset=first_offset + record.offset) for record in records]

    def end_transaction(self, producer_id: int, commit: bool, producer_epoch: int = 0) -> int:
        """Returns the marker's offset."""
        marker = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0)
        now_ms = self.clock.now_ms()
        batch = build_end_transaction_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.log.append_as_leader(batch, 0, AppendOrigin.COORDINATOR).first_offset

    def sync(self) -> None:
        plan = self.log.begin_sync()
        plan.run(self.disk)
        self.log.finish_sync(plan, None)
        self.log.advance_high_watermark(self.log.log_end_offset)

    def roll(self) -> None:
        self.log.roll()
        self.sync()

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms * 1000)

    # -- compacting ------------------------------------------------------------------------------------------------------------

    def clean_once(self) -> None:
        """One pass, if one is due."""
        self.cleaner.tick()
        self.scheduler.run_until(lambda: self.cleaner.log_being_cleaned is None)

    def clean(self, passes_max: int = 100) -> int:
        """As many passes as are due; returns how many."""
        for number in range(passes_max):
            cleanings = self.cleaner.statistics.cleanings
            self.clean_once()
            assert not self.cleaner.statistics.uncleanable, self.cleaner.statistics.uncleanable
            if self.cleaner.statistics.cleanings == cleanings:
                return number
        raise AssertionError(f"still due after {passes_max} passes")

    # -- reading ---------------------------------------------------------------------------------------------------------------

    def batches(self, log: PartitionLog | None = None) -> list[FoundBatch]:
        return list(batches_of(log or self.log))

    def records(self, log: PartitionLog | None = None) -> list[Record]:
        """All records of data batches, aborted ones too."""
        return [record for header, records in self.batches(log) if not header.is_control for record in records]

    def committed(self, log: PartitionLog | None = None) -> list[Record]:
        """What a read_committed consumer sees up to the last stable offset, told by the transaction index as it would be."""
        log = log or self.log
        aborted = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
        return [
            record
            for header, records in self.batches(log)
            if not header.is_control
            and not any(
                header.is_transactional
                and header.producer_id == entry.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            for record in records
        ]


def batches_of(log: PartitionLog) -> Iterator[FoundBatch]:
    for segment in log.segments:
        for _, header, batch in scan_batches(segment.file(), 0, segment.size):
            assert crc_is_valid(batch, 0, header)
            yield FoundBatch(header, list(read_records(batch, 0, header, size_max=1 << 24, count_max=1 << 20)))


def latest(records: Iterable[Record]) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The newest value of each key that has one, with its offset. A deleted key is not there, tombstone or not."""
    newest = {record.key: (record.offset, record.value) for record in records}
    return {key: found for key, found in newest.items() if found[1] is not None}
