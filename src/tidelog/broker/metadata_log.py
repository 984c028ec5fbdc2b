"""The metadata log on the data directory, and how decisions get into it.

The log is the partition ``__cluster_metadata-0`` under Kafka's fixed id, and only the quorum writes to it. Its records count only
once they are on disk. Retention never deletes any of it: it is the whole history until there are snapshots.

``SlicedProposals`` writes each decision as one batch, and a large one in slices. Encoding, writing, reading back and replaying a
thousand records takes tens of milliseconds, in which nobody is served. So a decision of more than ``RECORDS_PER_SLICE`` records
becomes several batches within one transaction of the metadata log (BeginTransaction, EndTransaction: KIP-868), and the loop is
free while each is synced. Readers of the image see all of it or nothing, and so does a start after a crash, which aborts a
transaction without an end. A slice that cannot be written ends the decision: the transaction is aborted, with the next decision
at the latest. Other proposals wait in the meantime, because everything that is written within a transaction belongs to it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tidelog.log.append_check import AppendOrigin, whole_batches_bytes
from tidelog.log.data_directory import DataDirectory
from tidelog.log.errors import LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, read
from tidelog.log.settings import UNLIMITED, LogSettings
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord, MetadataRecord
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.records.header import iterate_headers

METADATA_TOPIC_ID = bytes(15) + b"\1"
# The data directory must be opened with these settings for METADATA_TOPIC.
METADATA_LOG_SETTINGS = LogSettings(delete=False, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
_READ_BYTES = 1 << 20


class PartitionMetadataLog:
    """``tidelog.raft.single_voter.MetadataLog`` on a partition log."""

    __slots__ = ("_directory", "log")

    def __init__(self, directory: DataDirectory) -> None:
        """Create the log if it does not exist. Raises LogOffline if it exists and cannot be used."""
        self._directory = directory
        key = METADATA_TOPIC, 0
        if key in directory.offline:
            raise LogOffline(f"{METADATA_TOPIC}-0", directory.offline[key])
        log = directory.logs.get(key)
        if log is None:
            log = directory.create(METADATA_TOPIC, 0, METADATA_TOPIC_ID, METADATA_LOG_SETTINGS)
        self.log: PartitionLog = log

    @property
    def latest_epoch(self) -> int:
        return self.log.epochs.latest_epoch

    def append(self, batch: bytes, epoch: int) -> tuple[int, int]:
        result = self.log.append_as_leader(batch, epoch, AppendOrigin.COORDINATOR)
        return result.first_offset, result.last_offset

    def wait_durable(self, end_offset: int, on_durable: Callable[[Exception | None], None]) -> None:
        def durable(error: Exception | None) -> None:
            if error is None:
                self.log.advance_high_watermark(end_offset)
            on_durable(error)

        self._directory.commit.wait(self.log, end_offset, durable)
        # Decisions are rare and somebody waits for each, so each is synced at once and not at the end of a burst of appends.
        self._directory.kick()

    def committed_batches(self) -> Iterator[bytes]:
        log = self.log
        log.advance_high_watermark(log.durable.offset)
        offset = log.log_start_offset
        while offset < log.high_watermark:
            found = read(log, offset, _READ_BYTES, Isolation.HIGH_WATERMARK).records
            if found is None:
                return
            data = found.file.read(found.position, found.length)
            data = data[: whole_batches_bytes(memoryview(data))]
            yield data
            offset = _next_offset(data)


def _next_offset(data: bytes) -> int:
    *_, (_, last) = iterate_headers(data)
    return last.next_offset


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
