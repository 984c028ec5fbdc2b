"""A simulated consumer: it fetches its partitions with sessions and long polls, and now and then rereads everything or asks where
the partitions begin and end.

What it receives goes into the history as polls, with records decoded and checksums checked. It starts at another offset, which
counts as another assignment, only when it rereads from the start or when retention has passed it by.

The answers of ListOffsets must agree with those of fetches. An end offset goes into the history as a poll without records: it is
a high watermark that a client was told. The start of a topic without retention is offset 0, by name and by a time before all of
its records.
"""

from collections.abc import Callable, Sequence

from simulation.client import ClientConnection, Environment
from simulation.history import History, PartitionId, Poll, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.records.batch import read_records
from tidelog.records.errors import RecordError
from tidelog.records.header import HEADER_SIZE, crc_is_valid, read_header
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

VERSIONS = (2, 9)
LATEST = -1
EARLIEST = -2
BEFORE_ALL = 0
QUESTIONS = (LATEST, EARLIEST, BEFORE_ALL)
NO_OFFSET = -1
# The disk fails, or the topic is being created.
_NO_ANSWER = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class OffsetQuestion:
    def __init__(self, consumer: str, history: History, randomness: SimulatedRandomness) -> None:
        # This is not the consumer's own name, because the question is not a poll of any assignment.
        self._name = f"{consumer} asks"
        self._history = history
        self._randomness = randomness

    def ask(self, connection: ClientConnection, partitions: Sequence[PartitionId], on_answered: Callable[[], None]) -> None:
        """Ask about partitions whose topics keep their names. ``on_answered`` is not called when the connection is lost."""
        version = self._randomness.integer(*VERSIONS)
        timestamp = QUESTIONS[self._randomness.integer(0, len(QUESTIONS) - 1)]
        topics: dict[str, list[dict[str, int]]] = {}
        asked = {}
        for partition in partitions:
            name = self._history.topics[partition.topic_id].name
            fields = {"partition_index": partition.number, "current_leader_epoch": -1, "timestamp": timestamp}
            topics.setdefault(name, []).append(fields)
            asked[name, partition.number] = partition
        body = encode_request(
            ApiKey.LIST_OFFSETS,
            version,
            {
                "replica_id": -1,
                "isolation_level": self._randomness.integer(0, 1),
                "topics": [{"name": name, "partitions": fields} for name, fields in topics.items()],
            },
        )
        sent_at = self._history.now()

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is not None:
                response = decode_response(ApiKey.LIST_OFFSETS, version, frame, position)
                for topic in response.topics:
                    for result in topic.partitions:
                        self._take(asked[topic.name, result.partition_index], timestamp, result, sent_at)
                on_answered()

        connection.request(ApiKey.LIST_OFFSETS, version, body, replied)

    def _take(self, partition: PartitionId, timestamp: int, result: DecodedMessage, sent_at: int) -> None:
        history = self._history
        where = f"{self._name}: {history.name_of(partition)}"
        if result.error_code != ErrorCode.NONE:
            if result.error_code not in _NO_ANSWER:
                history.problem("unexpected error", f"{where}: ListOffsets: {ErrorCode(result.error_code)!r}")
            return
        high_watermark = result.offset
        if timestamp != LATEST:
            if history.topics[partition.topic_id].has_retention:
                return
            is_empty = timestamp == BEFORE_ALL and result.offset == NO_OFFSET
            if result.offset != 0 and not is_empty:
                history.problem("wrong beginning", f"{where}: ListOffsets for {timestamp} says {result.offset}")
            if not is_empty:
                return
            high_watermark = 0
        history.polls.append(Poll(self._name, 0, partition, 0, [], high_watermark, 0, sent_at, history.now()))


NAME_VERSIONS = (5, 12)
ID_VERSIONS = (13, 17)
SESSIONS_SINCE = 7
THINK_US = (0, 5_000)
READ_AGAIN_LIKELIHOOD = 0.004
QUESTION_LIKELIHOOD = 0.05
WAIT_MS = (0, 20, 200)
BYTES_MIN = (1, 1, 700)
# This is longer than it may take to learn of a write.
PATIENT_WAIT_MS = 30_000
RECORDS_BYTES_MAX = 1 << 20

_SESSION_LOST = {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
_GONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


class Reading:
    """How far one partition was read. ``sent_offset`` is what the fetch session knows; None when it does not know the
    partition."""

    __slots__ = ("assignment", "end_offset", "position", "sent_offset")

    def __init__(self, assignment: int) -> None:
        self.assignment = assignment
        self.position = 0
        self.sent_offset: int | None = None
        self.end_offset = -1


class Consumer:
    def __init__(
        self,
        name: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        topics: Callable[[], list[TopicLife]],
        stable_names: set[str],
        is_final: bool = False,
        is_patient: bool = False,
    ) -> None:
        """A patient consumer waits long, for whatever comes first."""
        self.name = name
        self._scheduler = environment.scheduler
        self._history = environment.history
        self._randomness = randomness
        self._topics = topics
        self._stable_names = stable_names
        self._is_final = is_final
        self._wait_ms = (PATIENT_WAIT_MS,) if is_patient else WAIT_MS
        self._bytes_min = (1,) if is_patient else BYTES_MIN
        self._question = OffsetQuestion(name, environment.history, randomness.fork("questions"))
        self._connection = ClientConnection(name, environment, randomness.fork("connection"), self)
        self._readings: dict[PartitionId, Reading] = {}
        self._forgotten: list[PartitionId] = []
        self._assignments = 0
        self._version = 0
        self._session_id = self._session_epoch = 0
        self.answers = 0

    def start(self) -> None:
        self._connection.connect()
        self._connection.watch()

    def close(self) -> None:
        self._connection.close()

    @property
    def is_caught_up(self) -> bool:
        """Whether every partition was read to its end."""
        self._follow_topics()
        return all(reading.position == reading.end_offset for reading in self._readings.values())

    def has_read(self, partition: PartitionId, end_offset: int) -> bool:
        return partition in self._readings and self._readings[partition].position >= end_offset

    def behind(self) -> str:
        name_of = self._history.name_of
        late = {key: reading for key, reading in self._readings.items() if reading.position != reading.end_offset}
        return ", ".join(f"{name_of(key)} at {reading.position} of {reading.end_offset}" for key, reading in late.items())

    # -- the connection's owner ----------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self._forget_session()
        self._think()

    def lost(self) -> None:
        pass  # The fetch in flight was told, and ``ready`` starts over.

    # -- fetching ------------------------------------------------------------------------------------------------------------

    def _think(self) -> None:
        self._scheduler.schedule(self._randomness.integer(*THINK_US), f"{self.name} fetches", self._fetch)

    def _fetch(self) -> None:
        if not self._connection.is_ready or self._connection.in_flight:
            return
        self._follow_topics()
        if not self._is_final and self._randomness.fraction() < READ_AGAIN_LIKELIHOOD:
            self._read_all_again()
        if not self._readings:
            self._think()
            return
        if self._randomness.fraction() < QUESTION_LIKELIHOOD:
            named = [one for one in self._readings if self._history.topics[one.topic_id].name in self._stable_names]
            self._question.ask(self._connection, named, self._think)
            return
        request, asked = self._request()
        version = self._version
        sent_at = self._history.now()

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is not None:
                self.answers += 1
                self._answered(decode_fetch_response(version, frame, position), asked, sent_at)
                self._think()

        self._connection.request(ApiKey.FETCH, version, encode_fetch_request(version, request), replied)

    def _follow_topics(self) -> None:
        wanted = {PartitionId(life.topic_id, index): None for life in self._topics() for index in range(life.partitions)}
        for gone in [partition for partition in self._readings if partition not in wanted]:
            self._drop(gone)
        for partition in wanted:
            if partition not in self._readings:
                self._assignments += 1
                self._readings[partition] = Reading(self._assignments)

    def _drop(self, partition: PartitionId) -> None:
        if self._readings.pop(partition).sent_offset is not None:
            self._forgotten.append(partition)

    def _read_all_again(self) -> None:
        for reading in self._readings.values():
            self._assign(reading, 0)

    def _assign(self, reading: Reading, offset: int) -> None:
        self._assignments += 1
        reading.assignment = self._assignments
        reading.position = offset

    def _forget_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._forgotten = []
        for reading in self._readings.values():
            reading.sent_offset = None

    def _request(self) -> tuple[FetchRequest, dict[PartitionId, tuple[int, int]]]:
        """Return the request, and (assignment, offset) of everything that it asks for, directly or by its session."""
        if self._session_epoch == 0:
            self._choose_version()
        draw = self._randomness.integer
        partition_bytes = draw(100, 4_000)
        has_session = self._version >= SESSIONS_SINCE and self._session_epoch >= 0
        topics: dict[bytes, FetchTopic] = {}
        asked = {}
        for partition, reading in self._readings.items():
            asked[partition] = reading.assignment, reading.position
            if self._session_epoch > 0 and reading.sent_offset == reading.position:
                continue
            topic_id, index = partition
            topic = topics.setdefault(topic_id, FetchTopic(self._history.topics[topic_id].name, topic_id, []))
            topic.partitions.append(FetchPartition(index, reading.position, partition_bytes))
            reading.sent_offset = reading.position if has_session else None
        forgotten = [
            ForgottenTopic(self._history.topics[partition.topic_id].name, partition.topic_id, [partition.number])
            for partition in self._forgotten
        ]
        self._forgotten = []
        request = FetchRequest(
            replica_id=-1,
            wait_ms_max=self._wait_ms[draw(0, len(self._wait_ms) - 1)],
            bytes_min=self._bytes_min[draw(0, len(self._bytes_min) - 1)],
            bytes_max=draw(500, 20_000),
            isolation_level=draw(0, 1),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten=forgotten if self._session_epoch > 0 else [],
            rack_id="",
        )
        return request, asked

    def _choose_version(self) -> None:
        by_name = all(self._history.topics[partition.topic_id].name in self._stable_names for partition in self._readings)
        versions = NAME_VERSIONS if by_name and self._randomness.fraction() < 0.7 else ID_VERSIONS
        self._version = self._randomness.integer(*versions)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def _answered(self, response: FetchResponse, asked: dict[PartitionId, tuple[int, int]], sent_at: int) -> None:
        if response.error in _SESSION_LOST:
            self._forget_session()
            return
        if response.error is not ErrorCode.NONE:
            self._history.problem("unexpected error", f"{self.name}: Fetch: {response.error!r}")
            return
        ids = {self._history.topics[partition.topic_id].name: partition.topic_id for partition in asked}
        for topic in response.topics:
            topic_id = ids.get(topic.name) if topic.name is not None else topic.topic_id
            for result in topic.partitions:
                partition = PartitionId(topic_id or b"", result.partition)
                if partition not in asked:
                    self._history.problem("not asked for", f"{self.name}: {self._history.name_of(partition)}")
                elif partition in self._readings:
                    self._take(partition, self._readings[partition], result, asked[partition], sent_at)
        if response.session_id:
            self._session_id = response.session_id
            self._session_epoch += 1
        else:
            self._forget_session()

    def _take(
        self, partition: PartitionId, reading: Reading, result: FetchedPartition, asked: tuple[int, int], sent_at: int
    ) -> None:
        history = self._history
        assignment, offset = asked
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if result.log_start_offset <= offset or not history.topics[partition.topic_id].has_retention:
                where = f"{history.name_of(partition)}, which starts at {result.log_start_offset}"
                history.problem("position out of range", f"{self.name}: offset {offset} of {where}")
            self._assign(reading, max(0, result.log_start_offset))
            return
        if result.error in _GONE:
            return  # The final reads tell this apart from a topic that nobody deleted.
        if result.error is not ErrorCode.NONE:
            if result.error not in _NO_ANSWER:
                history.problem("unexpected error", f"{self.name}: Fetch of {history.name_of(partition)}: {result.error!r}")
            return
        records = self._decode(partition, offset, result.records)
        history.polls.append(
            Poll(
                self.name,
                assignment,
                partition,
                offset,
                records,
                result.high_watermark,
                result.log_start_offset,
                sent_at,
                history.now(),
                self._is_final,
            )
        )
        reading.end_offset = result.high_watermark
        if records:
            reading.position = records[-1][0] + 1

    def _decode(self, partition: PartitionId, offset: int, data: memoryview | None) -> list[tuple[int, str]]:
        """Decode the records from ``offset`` on. A batch that is cut off at the end is left for the next fetch."""
        records: list[tuple[int, str]] = []
        position = 0
        try:
            while data is not None and len(data) - position >= HEADER_SIZE:
                header = read_header(data, position)
                if len(data) - position < header.size:
                    break
                if not crc_is_valid(data, position, header):
                    raise RecordError(f"the batch at offset {header.base_offset} fails its checksum")
                for record in read_records(data, position, header, size_max=RECORDS_BYTES_MAX, count_max=RECORDS_BYTES_MAX):
                    if record.offset >= offset:
                        records.append((record.offset, (record.value or b"").partition(b" ")[0].decode()))
                position += header.size
        except RecordError as error:
            self._history.problem("corrupt records", f"{self.name}: {self._history.name_of(partition)} at {offset}: {error}")
        return records
