"""Where do partitions begin and end? ListOffsets, whose answers must agree with what fetches say.

The end goes into the history as a poll without records: it is a high watermark that somebody was told. The beginning of a topic
without retention is offset 0, by name and by a time that lies before all its records.
"""

from collections.abc import Callable, Sequence

from simulation.client import ClientConnection
from simulation.history import History, PartitionId, Poll
from simulation.randomness import SimulatedRandomness
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

VERSIONS = (2, 9)
LATEST = -1
EARLIEST = -2
BEFORE_ALL = 0
QUESTIONS = (LATEST, EARLIEST, BEFORE_ALL)
NO_OFFSET = -1
# The disk fails, or the topic is being made.
_NO_ANSWER = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class OffsetQuestion:
    def __init__(self, consumer: str, history: History, randomness: SimulatedRandomness) -> None:
        # Not the consumer's own name: a question is no poll of any assignment.
        self._name = f"{consumer} asks"
        self._history = history
        self._randomness = randomness

    def ask(self, connection: ClientConnection, partitions: Sequence[PartitionId], on_answered: Callable[[], None]) -> None:
        """Of partitions whose topics keep their names. ``on_answered`` does not come when the connection is lost."""
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
