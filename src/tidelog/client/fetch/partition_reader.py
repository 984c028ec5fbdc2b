"""One partition from one offset to another: fetch, look at the headers, ask for what follows, and decode what came meanwhile.

What ends a read is its position, the offset after the last batch that was seen, whatever became of that batch: markers, aborted
transactions and what compaction removed count as read. When a broker has nothing at the position although it has released
offsets up to the end, there is nothing left to read either: compaction removed the last of them.

Failures that may pass (no leader, a broker that restarts, a lost connection) are tried again, with the leader looked up anew,
until nothing new was read for the time-out: from the first request on, because whoever knows offsets has met the cluster. An
offset out of range is looked into: before the log's start it is lost.

Held at a time: one answer, one chunk of opened batches, one Arrow batch.
"""

import time
from collections.abc import Iterator

import pyarrow as pa

from tidelog.client.errors import TimedOut
from tidelog.client.fetch.cluster import ISOLATION_LEVELS, UNKNOWN_TOPIC_SECONDS, Cluster, is_unknown, may_pass
from tidelog.client.fetch.columns import OpenedBatch, record_batches
from tidelog.client.fetch.constant_columns import ConstantColumns
from tidelog.client.fetch.errors import BrokenBatch, OffsetsLost, OffsetsMissing
from tidelog.client.fetch.leader_link import LeaderLink
from tidelog.client.fetch.opening import PlacedHeader, opened_batches, whole_batches
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import Isolation, OldFormat, Range
from tidelog.client.topic_partition import Partition
from tidelog.client.transactions.errors import BrokerError, BrokerUnreachable, ClientError
from tidelog.client.transactions.retries import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN
from tidelog.records.errors import RecordError, UnsupportedMagic
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch_client import FetchedPartition

# Opened batches are decoded together once there are this many bytes of them, or the rows of an Arrow batch. What fits into a
# processor's cache is cheaper to copy, here and in Spark: of 1 kB messages, 15 % of all processor time less than with 8 MB.
CHUNK_BYTES = 2 << 20
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class PartitionReader:
    def __init__(self, cluster: Cluster, wanted: Range, settings: OwnSettings, isolation: Isolation) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._settings = settings
        self._is_committed_only = isolation == "read_committed"
        level = ISOLATION_LEVELS[isolation]
        self._link = LeaderLink(cluster, wanted.topic, wanted.partition, wanted.expected_topic_id, settings, level)
        self._constants = ConstantColumns(wanted.topic, wanted.partition, wanted.max_rows_per_batch)
        self._position = wanted.start
        self._deadline = self._unknown_deadline = 0.0
        self._opened: list[OpenedBatch] = []
        self._opened_rows = self._opened_bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            self._progressed()
            while self._position < self._wanted.end:
                fetched = self._fetch()
                if fetched is None:
                    break
                start = self._position
                records, placed = self._headers(fetched)
                self._position = placed[-1][1].next_offset
                self._progressed()
                if self._position < self._wanted.end:
                    self._send_ahead()
                yield from self._chunks(records, placed, fetched.aborted, start)
            yield from self._decoded()
        except (OldFormat, BrokenBatch):
            yield from self._decoded()
            raise
        finally:
            self._link.close()

    # -- fetching -------------------------------------------------------------------------------------------------------------

    def _fetch(self) -> FetchedPartition | None:
        """What is at the position, with records in it; None when there is nothing up to the end."""
        pause_seconds = PAUSE_SECONDS_MIN
        while True:
            try:
                fetched = self._ask()
            except ClientError as error:
                self._link.drop()
                self._judge(error)
                time.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
                continue
            if fetched is None:
                continue
            if fetched.records:
                return fetched
            readable = fetched.last_stable_offset if self._is_committed_only else fetched.high_watermark
            if readable >= self._wanted.end:
                return None
            if time.monotonic() > self._deadline:
                raise self._missing(readable)

    def _ask(self) -> FetchedPartition | None:
        if not self._link.is_under_way:
            self._link.send(self._position)
        fetched, throttle_ms = self._link.receive()
        if fetched is None:
            if not throttle_ms:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self._wanted.name)
            self._rest(throttle_ms)
            return None
        if fetched.error != ErrorCode.NONE:
            raise BrokerError(fetched.error, self._wanted.name)
        return fetched

    def _rest(self, throttle_ms: int) -> None:
        """A quota of the broker's: it mutes the connection for as long, and that is no standstill."""
        time.sleep(throttle_ms / 1000)
        self._progressed()

    def _send_ahead(self) -> None:
        try:
            self._link.send(self._position)
        except ClientError:
            self._link.drop()  # What this request would have met, the next one meets and judges.

    def _judge(self, error: ClientError) -> None:
        """Return when it may pass, else raise."""
        now = time.monotonic()
        if isinstance(error, BrokerError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._judge_range(now)
            return
        if is_unknown(error) or (isinstance(error, BrokerError) and error.code in _UNKNOWN):
            self._unknown_deadline = self._unknown_deadline or now + UNKNOWN_TOPIC_SECONDS
            if now > min(self._unknown_deadline, self._deadline):
                raise error
            return
        if not may_pass(error) or (now > self._deadline and isinstance(error, BrokerUnreachable)):
            raise error
        if now > self._deadline:
            raise TimedOut(
                f"read {self._wanted.name}: nothing came for {self._settings.timeout_ms / 1000:g} s "
                f"at offset {self._position}: {error}"
            ) from error

    def _judge_range(self, now: float) -> None:
        partition = Partition(self._wanted.topic, self._wanted.partition)
        log_start = self._cluster.offsets([partition], "earliest")[partition]
        if log_start > self._position:
            raise OffsetsLost(*partition, self._position, log_start)
        # Beyond the end: of a leader that has just taken over, perhaps, and does not know yet how far it may show its log.
        if now > self._deadline:
            raise self._missing(self._cluster.offsets([partition], "latest")[partition])

    def _missing(self, readable: int) -> OffsetsMissing:
        first = max(self._position, min(readable, self._wanted.end - 1))
        kind = "the last stable offset is" if self._is_committed_only else "the log ends at"
        return OffsetsMissing(
            f"{self._wanted.name}: offsets {first} to {self._wanted.end - 1} are not there: {kind} {readable}, and nothing came "
            f"for {self._settings.timeout_ms / 1000:g} s (an open transaction, or a log that was cut back)"
        )

    def _progressed(self) -> None:
        self._deadline = time.monotonic() + self._settings.timeout_ms / 1000
        self._unknown_deadline = 0.0

    # -- decoding -------------------------------------------------------------------------------------------------------------

    def _headers(self, fetched: FetchedPartition) -> tuple[memoryview, list[PlacedHeader]]:
        records = fetched.records or memoryview(b"")
        try:
            placed = whole_batches(records)
        except UnsupportedMagic as error:
            raise OldFormat(self._position) from error
        except RecordError as error:
            raise self._broken(self._position, error) from error
        if not placed or placed[-1][1].next_offset <= self._position:
            raise BrokenBatch(f"{self._wanted.name}: {len(records)} bytes came for offset {self._position}, and no batch with it")
        return records, placed

    def _chunks(
        self, records: memoryview, placed: list[PlacedHeader], aborted: list[tuple[int, int]] | None, start: int
    ) -> Iterator[pa.RecordBatch]:
        opened = opened_batches(records, placed, aborted, start, self._wanted.end, checks_crcs=self._settings.checks_crcs)
        while True:
            try:
                batch = next(opened, None)
            except RecordError as error:
                raise self._broken(start, error) from error
            if batch is None:
                return
            self._opened.append(batch)
            self._opened_rows += batch.header.record_count
            self._opened_bytes += len(batch.records)
            if self._opened_rows >= self._wanted.max_rows_per_batch or self._opened_bytes >= CHUNK_BYTES:
                yield from self._decoded()

    def _decoded(self) -> Iterator[pa.RecordBatch]:
        opened, self._opened = self._opened, []
        self._opened_rows = self._opened_bytes = 0
        try:
            yield from self._columns(opened)
        except RecordError:
            raise self._first_broken(opened) from None

    def _first_broken(self, opened: list[OpenedBatch]) -> BrokenBatch:
        """Batches are decoded together; one by one tells which it was."""
        for batch in opened:
            try:
                for _ in self._columns([batch]):
                    pass
            except RecordError as error:
                return self._broken(batch.header.base_offset, error)
        return BrokenBatch(
            f"{self._wanted.name}: the batches from offset {opened[0].header.base_offset} on do not follow each other"
        )

    def _columns(self, opened: list[OpenedBatch]) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        return record_batches(
            opened, self._constants, wanted.start, wanted.end, wanted.max_rows_per_batch, wanted.include_headers
        )

    def _broken(self, offset: int, error: RecordError) -> BrokenBatch:
        return BrokenBatch(f"{self._wanted.name} at offset {offset}: {error}")
