"""Reads ranges of partitions: it fetches, finds the batches, sends the next request, and decodes meanwhile.

**Turns.** A request names as many ranges of one leader as its response has room for, so that a thousand small ranges take a few
requests. A large range is in a request by itself. A broker serves partitions in the order of the request until the response is
full, so the first of them always makes progress, and one that comes back empty behind others is asked for again. The rows of a
partition come in the order of their offsets.

**Ends.** A range is read when its position, the offset after the last batch that was seen, reaches its end, whatever the batch
held: markers, aborted transactions and offsets that compaction removed count as read. If a broker has nothing at the position
although it has released offsets up to the end, there is nothing left to read either, because compaction removed the last of them.

**Failures** that may pass (no leader, a broker that restarts, a lost connection) are retried with a fresh lookup of the leader,
until nothing new was read of that range for the time-out. That holds from the first request on, because a caller who knows
offsets has reached the cluster before. An offset out of range before the log's start is lost.

Requests name topics by id where broker and topic have one (Fetch v13), so that a topic which was deleted and created again under
its name is never mistaken for the one that was asked for. With older brokers the id is compared when a read begins, and whenever
the leader is looked up.

At any time one response, one chunk of decompressed batches and a few Arrow batches are in memory.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from tidelog.client.errors import TimedOut
from tidelog.client.fetch.columns import FetchedBatches, HeldRows, decoded_batches, whole_batches
from tidelog.client.fetch.errors import BrokenBatch, OffsetsLost, OffsetsMissing, TopicRecreated
from tidelog.client.fetch.lookup import PartitionLookup
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.fetch.types import FetchRange, Isolation, OnLoss
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
from tidelog.records.header import read_header
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

# A request names further ranges until it has this many offsets: about as many small messages as a response has room for.
OFFSETS_PER_REQUEST = 50_000
RANGES_PER_REQUEST = 500
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class _Cursor:
    """How far one range is read."""

    __slots__ = ("deadline", "position", "topic_id", "unknown_deadline", "wanted")

    def __init__(self, wanted: FetchRange, seconds_max: float) -> None:
        self.wanted = wanted
        self.position = wanted.start
        self.topic_id = wanted.expected_topic_id or ZERO_UUID
        self.progressed(seconds_max)

    def progressed(self, seconds_max: float) -> None:
        self.deadline = time.monotonic() + seconds_max
        self.unknown_deadline = 0.0

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.wanted.topic, self.wanted.partition)


class _Turn(NamedTuple):
    """A request that is under way."""

    cursors: list[_Cursor]
    connection: BrokerConnection
    version: int


class RangesReader:
    """All ranges have the same ``max_rows_per_batch`` and ``include_headers``."""

    def __init__(
        self,
        lookup: PartitionLookup,
        ranges: Sequence[FetchRange],
        settings: OwnSettings,
        isolation: Isolation,
        on_loss: OnLoss | None = None,
    ) -> None:
        self._lookup = lookup
        self._brokers = lookup.brokers
        self._settings = settings
        self._is_committed_only = isolation == "read_committed"
        self._on_loss = on_loss
        self._seconds_max = settings.timeout_ms / 1000
        self._waiting = [_Cursor(wanted, self._seconds_max) for wanted in ranges if wanted.start < wanted.end]
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._turn: _Turn | None = None
        self._connections: dict[int, BrokerConnection] = {}
        self._looked_up: set[str] = set()
        """The topics that were looked up in the cluster during this read."""
        self._trusts_memory = True
        self.old_formats: list[FetchRange] = []
        """What is left of ranges whose messages are in a format from before Kafka 0.11, which only librdkafka can read."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        held = HeldRows()
        try:
            while self._waiting:
                fetched = self._fetch()
                self._waiting = [cursor for cursor in self._waiting if cursor.position < cursor.wanted.end]
                # The next request is under way while this response is decoded.
                self._send_ahead()
                if fetched:
                    for batch in decoded_batches(fetched, checks_crcs=self._settings.checks_crcs):
                        yield from held.add(batch, fetched[0].wanted.max_rows_per_batch)
            yield from held.flush()
        except BrokenBatch:
            yield from held.flush()
            raise
        finally:
            self._close()

    # -- fetching -------------------------------------------------------------------------------------------------------------

    def _fetch(self) -> list[FetchedBatches]:
        """The batches of one response; none if something has to be asked for again."""
        turn = None
        try:
            turn, self._turn = self._turn or self._send(), None
            response = self._receive(turn)
        except ClientError as error:
            self._drop_connections()
            cursors = turn.cursors if turn is not None else self._waiting[:1]
            for cursor in cursors:
                self._judge(cursor, error)
            self._rest()
            return []
        return self._taken(turn, response)

    def _taken(self, turn: _Turn, response: FetchResponse) -> list[FetchedBatches]:
        by_place = {
            (topic.topic_id if turn.version >= TOPIC_IDS_SINCE else topic.name, each.partition): each
            for topic in response.topics
            for each in topic.partitions
        }
        taken: list[FetchedBatches] = []
        problems: list[tuple[_Cursor, ClientError]] = []
        for cursor in turn.cursors:
            name = cursor.topic_id if turn.version >= TOPIC_IDS_SINCE else cursor.wanted.topic
            fetched = by_place.get((name, cursor.wanted.partition))
            try:
                if fetched is not None:
                    check_code(fetched.error, cursor.wanted.name)
                    self._take(cursor, fetched, taken)
                elif not response.throttle_time_ms:
                    raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, cursor.wanted.name)
            except ClientError as error:
                problems.append((cursor, error))
        if taken:
            self._pause_seconds = PAUSE_SECONDS_MIN
        if response.throttle_time_ms and not by_place:
            self._throttled(turn, response.throttle_time_ms)
        for cursor, problem in problems:
            self._judge(cursor, problem)
        if problems:
            self._drop_connections()
            # Others first, so that one partition without a leader does not hold them up.
            failed = [cursor for cursor, _ in problems]
            self._waiting = [cursor for cursor in self._waiting if cursor not in failed] + failed
            self._rest()
        return taken

    def _take(self, cursor: _Cursor, fetched: FetchedPartition, taken: list[FetchedBatches]) -> None:
        """Move the cursor to where its records end. What comes behind others may be missing, or cut off, for lack of room."""
        wanted = cursor.wanted._replace(start=cursor.position)
        records = fetched.records or memoryview(b"")
        if not records:
            if not taken:
                self._judge_empty(cursor, fetched)
            return
        try:
            positions = whole_batches(records)
        except UnsupportedMagic:
            self.old_formats.append(wanted)
            cursor.position = wanted.end
            return
        except RecordError as error:
            raise BrokenBatch(f"{wanted.name} at offset {cursor.position}: {error}") from error
        following = read_header(records, positions[-1]).next_offset if positions else 0
        if following <= cursor.position:
            if taken and not positions:
                return
            raise BrokenBatch(
                f"{wanted.name}: {len(records)} bytes arrived for offset {cursor.position}, without a batch that has it"
            )
        taken.append(FetchedBatches(wanted, records, positions, fetched.aborted))
        cursor.position = following
        cursor.progressed(self._seconds_max)

    def _judge_empty(self, cursor: _Cursor, fetched: FetchedPartition) -> None:
        readable = fetched.last_stable_offset if self._is_committed_only else fetched.high_watermark
        if readable >= cursor.wanted.end:
            cursor.position = cursor.wanted.end
        elif time.monotonic() > cursor.deadline:
            raise self._missing(cursor, readable)

    def _send_ahead(self) -> None:
        if self._waiting:
            try:
                self._turn = self._send()
            except ClientError:
                self._drop_connections()  # The next request meets the same problem and judges it.

    def _send(self) -> _Turn:
        """Request the next records of the first range, and of others that have the same leader."""
        first = self._waiting[0]
        node_id = self._leader_of(first)
        connection = self._connections.get(node_id)
        if connection is None:
            connection = self._connections[node_id] = self._brokers.borrow(node_id)
        version = connection.version_of(ApiKey.FETCH)
        if version < TOPIC_IDS_SINCE and self._trusts_memory:
            # A broker that does not know ids would serve another topic of the same name.
            self._trusts_memory = False
            return self._send()
        cursors = [first]
        offsets = first.wanted.end - first.position
        partitions = {first.partition}
        for cursor in self._waiting[1:]:
            if offsets >= OFFSETS_PER_REQUEST or len(cursors) >= RANGES_PER_REQUEST:
                break
            if cursor.partition not in partitions and self._is_led_by(node_id, cursor):
                cursors.append(cursor)
                partitions.add(cursor.partition)
                offsets += cursor.wanted.end - cursor.position
        if any(cursor.topic_id == ZERO_UUID for cursor in cursors):
            version = min(version, TOPIC_IDS_SINCE - 1)
        request = self._request(cursors)
        connection.send(ApiKey.FETCH, version, encode_fetch_request(version, request), self._seconds_max)
        return _Turn(cursors, connection, version)

    def _request(self, cursors: Sequence[_Cursor]) -> FetchRequest:
        bytes_max = self._settings.fetch_bytes_max
        topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for cursor in cursors:
            wanted = FetchPartition(cursor.wanted.partition, cursor.position, bytes_max)
            topics.setdefault((cursor.wanted.topic, cursor.topic_id), []).append(wanted)
        return FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            wait_ms_max=self._settings.wait_ms_max,
            bytes_min=1,
            bytes_max=bytes_max,
            isolation_level=self._lookup.isolation_level,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            topics=[FetchTopic(name, topic_id, partitions) for (name, topic_id), partitions in topics.items()],
            forgotten=[],
            rack_id="",
        )

    def _receive(self, turn: _Turn) -> FetchResponse:
        frame, position = turn.connection.receive(ApiKey.FETCH, turn.version, self._seconds_max)
        try:
            response = decode_fetch_response(turn.version, frame, position)
        except MalformedRequest as error:
            raise InvalidAnswer(f"{turn.connection.address} sent an invalid response to FETCH: {error}") from error
        check_code(response.error, turn.cursors[0].wanted.name)
        return response

    # -- leaders and connections ----------------------------------------------------------------------------------------------

    def _leader_of(self, cursor: _Cursor) -> int:
        topic = cursor.wanted.topic
        # What is remembered counts only if it is the very topic that was asked for, and the broker will check that, too.
        is_certain = self._trusts_memory and self._lookup.remembers(topic, cursor.topic_id)
        if not is_certain and topic not in self._looked_up:
            self._lookup.forget(topic)
            self._lookup.known_topic(topic)
            self._looked_up.add(topic)
        topic_id = self._lookup.known_topic(topic).topic_id
        if topic_id != ZERO_UUID:
            if cursor.topic_id not in (topic_id, ZERO_UUID):
                raise TopicRecreated(
                    f"{topic} was deleted and created again: it has the id {topic_id.hex()} now, and {cursor.topic_id.hex()} was "
                    "asked for; offsets of the old topic mean nothing in the new one"
                )
            cursor.topic_id = topic_id
        return self._lookup.leader(cursor.partition)

    def _is_led_by(self, node_id: int, cursor: _Cursor) -> bool:
        try:
            return self._leader_of(cursor) == node_id
        except (ClientError, TopicRecreated):
            return False  # Its own turn meets the same problem and judges it.

    def _drop_connections(self) -> None:
        """Called after a failure: the next request looks up the leader again."""
        for connection in self._connections.values():
            self._brokers.discard(connection)
        self._brokers.close_idle()
        self._connections.clear()
        self._turn = None

    def _close(self) -> None:
        """Give the connections back, without the one that a request is under way on."""
        for node_id, connection in self._connections.items():
            if self._turn is not None and self._turn.connection is connection:
                self._brokers.discard(connection)
            else:
                self._brokers.give_back(node_id, connection)
        self._connections.clear()
        self._turn = None

    # -- failures -------------------------------------------------------------------------------------------------------------

    def _judge(self, cursor: _Cursor, error: ClientError) -> None:
        """Return if the error may pass; raise it otherwise."""
        self._lookup.forget(cursor.wanted.topic)
        now = time.monotonic()
        if isinstance(error, BrokerError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._judge_range(cursor, now)
            return
        if isinstance(error, UnknownPartition) or (isinstance(error, BrokerError) and error.code in _UNKNOWN):
            cursor.unknown_deadline = cursor.unknown_deadline or now + UNKNOWN_TOPIC_SECONDS
            if now > min(cursor.unknown_deadline, cursor.deadline):
                raise error
            return
        if not is_worth_another_attempt(error) or (now > cursor.deadline and isinstance(error, BrokerUnreachable)):
            raise error
        if now > cursor.deadline:
            raise TimedOut(
                f"read {cursor.wanted.name}: nothing arrived for {self._seconds_max:g} s at offset {cursor.position}: {error}"
            ) from error

    def _judge_range(self, cursor: _Cursor, now: float) -> None:
        partition = cursor.partition
        log_start = self._lookup.offsets([partition], "earliest")[partition]
        if log_start > cursor.position:
            if self._on_loss is None:
                raise OffsetsLost(*partition, cursor.position, log_start)
            self._on_loss(partition, cursor.position, min(log_start, cursor.wanted.end))
            cursor.position = log_start
            cursor.progressed(self._seconds_max)
        # Beyond the end: perhaps a leader has just taken over and does not know its high watermark yet.
        elif now > cursor.deadline:
            raise self._missing(cursor, self._lookup.offsets([partition], "latest")[partition])

    def _missing(self, cursor: _Cursor, readable: int) -> OffsetsMissing:
        first = max(cursor.position, min(readable, cursor.wanted.end - 1))
        kind = "the last stable offset is" if self._is_committed_only else "the log ends at"
        return OffsetsMissing(
            f"{cursor.wanted.name}: offsets {first} to {cursor.wanted.end - 1} are missing: {kind} {readable}, and nothing "
            f"arrived for {self._seconds_max:g} s (an open transaction, or a log that was cut back)"
        )

    def _rest(self) -> None:
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)

    def _throttled(self, turn: _Turn, throttle_ms: int) -> None:
        """Wait while a quota of the broker mutes the connection. That does not count as a standstill."""
        time.sleep(throttle_ms / 1000)
        for cursor in turn.cursors:
            cursor.progressed(self._seconds_max)
