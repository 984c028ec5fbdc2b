"""A data directory of ours on the real disk, driven without an event loop, and its partitions read as a client would."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.compatibility.kafka_records import ReadRecord
from tidelog.log.data_directory import DataDirectory
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.settings import LogSettings
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.ports.real_executor import ThreadExecutor
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers

WAIT_SECONDS_MAX = 30.0
SLICE_BYTES = 700


class FixedClock:
    """Stands still at the moment when a directory was made, so that nothing in it is old."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._now_ms * 1_000_000


class OurDirectory:
    def __init__(
        self,
        path: Path,
        clock: Clock,
        cluster_id: str,
        node_id: int,
        settings_for: Callable[[str], LogSettings] = lambda topic: LogSettings(),
    ) -> None:
        self.executor = ThreadExecutor()
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.directory = DataDirectory(
            str(path),
            disk=RealDisk(),
            clock=clock,
            randomness=RealRandomness(),
            executor=self.executor,
            cluster_id=cluster_id,
            node_id=node_id,
            settings_for=settings_for,
            report=lambda event, facts: self.reports.append((event, facts)),
        )

    def __enter__(self) -> "OurDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.executor.close(wait=True)

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.directory.logs[topic, partition]

    def commit(self, log: PartitionLog) -> None:
        told: list[BaseException | None] = []
        self.directory.commit.wait(log, log.log_end_offset, told.append)
        self.directory.kick()
        self._run_until(lambda: bool(told))
        assert told == [None]
        log.advance_high_watermark(log.durable.offset)

    def close(self) -> None:
        self._run_until(lambda: self.directory.commit.is_idle)
        self.directory.close()

    def _run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.executor.run_completions(WAIT_SECONDS_MAX), "nothing ended in time"


def read_partition(log: PartitionLog, committed_only: bool) -> list[ReadRecord]:
    """Every record that a client gets, slice by slice; a reader of committed records drops what the aborted list names."""
    isolation = Isolation.LAST_STABLE if committed_only else Isolation.HIGH_WATERMARK
    found: list[ReadRecord] = []
    offset = log.log_start_offset
    while (got := read(log, offset, SLICE_BYTES, isolation)).records is not None:
        data = got.records.file.read(got.records.position, got.records.length)
        pending = sorted(got.aborted, key=lambda transaction: transaction.first_offset)
        dropped: set[int] = set()
        for position, header in iterate_headers(data):
            while pending and pending[0].first_offset <= header.last_offset:
                dropped.add(pending.pop(0).producer_id)
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                records = read_records(data, position, header, size_max=1 << 20, count_max=1 << 16)
                found += [
                    ReadRecord(
                        record.offset, record.timestamp, header.is_log_append_time, record.key, record.value, record.headers
                    )
                    for record in records
                    if record.offset >= offset
                ]
            offset = header.next_offset
    return found
