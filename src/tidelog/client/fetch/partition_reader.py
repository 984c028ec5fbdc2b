"""Reads one partition from one offset to another: it fetches, checks the headers, sends the next request, and decodes meanwhile.

A read ends by its position, the offset after the last batch that was seen, whatever the batch held: markers, aborted transactions
and offsets that compaction removed count as read. If a broker has nothing at the position although it has released offsets up to
the end, there is nothing left to read either, because compaction removed the last of them.

Failures that may pass (no leader, a broker that restarts, a lost connection) are retried with a fresh lookup of the leader, until
nothing new was read for the time-out. That holds from the first request on, because a caller who knows offsets has reached the
cluster before. An offset out of range before the log's start is lost.

At any time one response, one chunk of opened batches and one Arrow batch are in memory.
"""

import time
from collections.abc import Iterator

import pyarrow as pa

from tidelog.client.errors import TimedOut
from tidelog.client.fetch.columns import ConstantColumns, OpenedBatch, PlacedHeader, opened_batches, record_batches, whole_batches
from tidelog.client.fetch.errors import BrokenBatch, OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import FetchRange, Isolation, OldFormat
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.connection import BrokerConnection
from tidelog.client.wire.errors import BrokerError, BrokerUnreachable, ClientError, InvalidAnswer, UnknownPartition, check_code
from tidelog.client.wire.retries import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    UNKNOWN_TOPIC_SECONDS,
    is_worth_another_attempt,
)
from tidelog.records.errors import RecordError, UnsupportedMagic
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    FINAL_EPOCH,
    TOPIC_IDS_SINCE,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey

# Opened batches are decoded together once they have this many bytes, or the rows of an Arrow batch. What fits into a processor's
# cache is cheaper to copy, here and in Spark: with messages of 1 kB this takes 15 % less processor time than 8 MB.
CHUNK_BYTES = 2 << 20
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class PartitionReader:
    def __init__(self, lookup: PartitionLookup, wanted: FetchRange, settings: OwnSettings, isolation: Isolation) -> None:
        self._lookup = lookup
        self._wanted = wanted
        self._settings = settings
        self._is_committed_only = isolation == "read_committed"
        self._link = LeaderLink(lookup, wanted, settings)
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
        """Return a response with the records at the position; None if there is nothing left up to the end."""
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
        check_code(fetched.error, self._wanted.name)
        return fetched

    def _rest(self, throttle_ms: int) -> None:
        """Wait while a quota of the broker mutes the connection. That does not count as a standstill."""
        time.sleep(throttle_ms / 1000)
        self._progressed()

    def _send_ahead(self) -> None:
        try:
            self._link.send(self._position)
        except ClientError:
            self._link.drop()  # The next request meets the same problem and judges it.

    def _judge(self, error: ClientError) -> None:
        """Return if the error may pass; raise it otherwise."""
        now = time.monotonic()
        if isinstance(error, BrokerError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._judge_range(now)
            return
        if isinstance(error, UnknownPartition) or (isinstance(error, BrokerError) and error.code in _UNKNOWN):
            self._unknown_deadline = self._unknown_deadline or now + UNKNOWN_TOPIC_SECONDS
            if now > min(self._unknown_deadline, self._deadline):
                raise error
            return
        if not is_worth_another_attempt(error) or (now > self._deadline and isinstance(error, BrokerUnreachable)):
            raise error
        if now > self._deadline:
            raise TimedOut(
                f"read {self._wanted.name}: nothing arrived for {self._settings.timeout_ms / 1000:g} s "
                f"at offset {self._position}: {error}"
            ) from error

    def _judge_range(self, now: float) -> None:
        partition = TopicPartition(self._wanted.topic, self._wanted.partition)
        log_start = self._lookup.offsets([partition], "earliest")[partition]
        if log_start > self._position:
            raise OffsetsLost(*partition, self._position, log_start)
        # Beyond the end: perhaps a leader has just taken over and does not know its high watermark yet.
        if now > self._deadline:
            raise self._missing(self._lookup.offsets([partition], "latest")[partition])

    def _missing(self, readable: int) -> OffsetsMissing:
        first = max(self._position, min(readable, self._wanted.end - 1))
        kind = "the last stable offset is" if self._is_committed_only else "the log ends at"
        return OffsetsMissing(
            f"{self._wanted.name}: offsets {first} to {self._wanted.end - 1} are missing: {kind} {readable}, and nothing arrived "
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
            raise BrokenBatch(
                f"{self._wanted.name}: {len(records)} bytes arrived for offset {self._position}, without a batch that has it"
            )
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
        """Find the broken batch by decoding one at a time, because batches are decoded together."""
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
        return record_batches(opened, self._constants, self._wanted)

    def _broken(self, offset: int, error: RecordError) -> BrokenBatch:
        return BrokenBatch(f"{self._wanted.name} at offset {offset}: {error}")


class LeaderLink:
    """Sends fetch requests for one partition to its leader. One is under way while the previous response is being decoded.

    The request names the topic by its id where broker and topic have one (Fetch v13), so that a topic which was deleted and
    created again under its name is never mistaken for the one that was asked for. With older brokers the id is compared whenever
    the leader is looked up.
    """

    def __init__(self, lookup: PartitionLookup, wanted: FetchRange, settings: OwnSettings) -> None:
        self._lookup = lookup
        self._brokers = lookup.brokers
        self._topic = wanted.topic
        self._partition = wanted.partition
        self._topic_id = wanted.expected_topic_id or ZERO_UUID
        self._settings = settings
        self._connection: BrokerConnection | None = None
        self._node_id = -1
        self._version = 0
        self.is_under_way = False

    def send(self, offset: int) -> None:
        """Request the records from ``offset`` on."""
        connection = self._connection or self._connect()
        wanted = FetchPartition(self._partition, offset, self._settings.fetch_bytes_max)
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            wait_ms_max=self._settings.wait_ms_max,
            bytes_min=1,
            bytes_max=self._settings.fetch_bytes_max,
            isolation_level=self._lookup.isolation_level,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            topics=[FetchTopic(self._topic, self._topic_id, [wanted])],
            forgotten=[],
            rack_id="",
        )
        connection.send(ApiKey.FETCH, self._version, encode_fetch_request(self._version, request), self._seconds_max)
        self.is_under_way = True

    def receive(self) -> tuple[FetchedPartition | None, int]:
        """Return the partition in the response, or None if the broker left it out to throttle this client; and for how many
        milliseconds the broker throttles."""
        connection = self._connection
        if connection is None:
            raise InvalidAnswer("no request is under way")
        frame, position = connection.receive(ApiKey.FETCH, self._version, self._seconds_max)
        self.is_under_way = False
        try:
            response = decode_fetch_response(self._version, frame, position)
        except MalformedRequest as error:
            raise InvalidAnswer(f"{connection.address} sent an invalid response to FETCH: {error}") from error
        return self._own_partition(response), response.throttle_time_ms

    def close(self) -> None:
        """Give the connection back if nothing is under way on it."""
        if self._connection is not None:
            if self.is_under_way:
                self._brokers.discard(self._connection)
            else:
                self._brokers.give_back(self._node_id, self._connection)
        self._connection, self.is_under_way = None, False

    def drop(self) -> None:
        """Called after a failure: the next request looks up the leader again."""
        if self._connection is not None:
            self._brokers.discard(self._connection)
        self._brokers.close_idle()
        self._connection, self.is_under_way = None, False

    def _connect(self) -> BrokerConnection:
        leader = self._lookup.leader(self._topic, self._partition)
        if leader.topic_id != ZERO_UUID:
            if self._topic_id not in (leader.topic_id, ZERO_UUID):
                raise TopicRecreated(
                    f"{self._topic} was deleted and created again: it has the id {leader.topic_id.hex()} now, and "
                    f"{self._topic_id.hex()} was asked for; offsets of the old topic mean nothing in the new one"
                )
            self._topic_id = leader.topic_id
        connection = self._brokers.borrow(leader.node_id)
        version = connection.version_of(ApiKey.FETCH)
        self._version = version if leader.topic_id != ZERO_UUID else min(version, TOPIC_IDS_SINCE - 1)
        self._node_id, self._connection = leader.node_id, connection
        return connection

    def _own_partition(self, response: FetchResponse) -> FetchedPartition | None:
        for topic in response.topics:
            if (topic.topic_id == self._topic_id) if self._version >= TOPIC_IDS_SINCE else (topic.name == self._topic):
                for partition in topic.partitions:
                    if partition.partition == self._partition:
                        return partition
        return None

    @property
    def _seconds_max(self) -> float:
        return self._settings.timeout_ms / 1000
