"""A simulated producer: it sends batches of unique values to any partitions, pipelined, with any acks, and resends when in doubt.

It is not idempotent: a batch sent again may be written twice, and the history says how often each was sent.
"""

from collections import deque
from collections.abc import Callable

from simulation.client import ClientConnection, Environment
from simulation.clock import EPOCH_MS
from simulation.history import ACKS_ALL, Attempt, Outcome, PartitionId, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import (
    VERSIONS,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey

IN_FLIGHT_MAX = 5
ATTEMPTS_MAX = 6
THINK_US = (0, 4_000)
RETRY_US = (5_000, 50_000)
TIMEOUT_MS = (5, 1_000)
TOPIC_IDS_SINCE = 13

# The batch was certainly not written.
_REFUSED = {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    # An earlier topic of that name is still leaving the disk.
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
# It is not known whether the batch was written.
_UNCLEAR = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR}
_CODECS = (CompressionType.NONE,) * 6 + (CompressionType.GZIP, CompressionType.LZ4)


class Batch:
    """Values that belong to one partition, and the number of times they were sent."""

    __slots__ = ("attempts", "partition", "records", "values")

    def __init__(self, partition: PartitionId, values: tuple[str, ...], records: bytes) -> None:
        self.partition = partition
        self.values = values
        self.records = records
        self.attempts = 0


class Producer:
    def __init__(
        self,
        name: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        targets: Callable[[], list[TopicLife]],
        acks_mix: tuple[int, ...],
        stable_names: set[str],
        think_us: tuple[int, int] = THINK_US,
    ) -> None:
        """``targets`` are the topics to write to now; those with ``stable_names`` may be addressed by name."""
        self.name = name
        self._scheduler = environment.scheduler
        self._history = environment.history
        self._randomness = randomness
        self._targets = targets
        self._acks_mix = acks_mix
        self._stable_names = stable_names
        self._think_us = think_us
        self._connection = ClientConnection(name, environment, randomness.fork("connection"), self)
        self._count = 0
        self._again: deque[Batch] = deque()
        self._is_thinking = False
        self.is_stopped = False

    def start(self) -> None:
        self._connection.connect()
        self._connection.watch()

    def stop(self) -> None:
        """Send nothing new; what is in flight may still be answered."""
        self.is_stopped = True

    def close(self) -> None:
        self._connection.close()

    @property
    def is_idle(self) -> bool:
        return not self._connection.in_flight

    # -- the connection's owner ----------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self._think()

    def lost(self) -> None:
        pass  # Each request in flight has been told.

    # -- sending -------------------------------------------------------------------------------------------------------------

    def _think(self) -> None:
        if not self._is_thinking and not self.is_stopped:
            self._is_thinking = True
            self._scheduler.schedule(self._randomness.integer(*self._think_us), f"{self.name} sends", self._send)

    def _send(self) -> None:
        self._is_thinking = False
        if self.is_stopped or not self._connection.is_ready or self._connection.in_flight >= IN_FLIGHT_MAX:
            return
        batches = self._choose()
        if batches:
            self._send_batches(batches)
        self._think()

    def _choose(self) -> list[Batch]:
        """Choose one batch for each of a few partitions; those that must be resent come first."""
        lives = {life.topic_id: life for life in self._targets()}
        chosen: dict[PartitionId, Batch] = {}
        while self._again and len(chosen) < 3 and self._again[0].partition not in chosen:
            batch = self._again.popleft()
            if batch.partition.topic_id in lives:
                chosen[batch.partition] = batch
        partitions = [PartitionId(life.topic_id, index) for life in lives.values() for index in range(life.partitions)]
        for _ in range(self._randomness.integer(1, 3)):
            if partitions and len(chosen) < 3:
                partition = partitions[self._randomness.integer(0, len(partitions) - 1)]
                if partition not in chosen:
                    chosen[partition] = self._new_batch(partition)
        return list(chosen.values())

    def _new_batch(self, partition: PartitionId) -> Batch:
        values = []
        for _ in range(self._randomness.integer(1, 4)):
            self._count += 1
            values.append(f"{self.name}:{self._count}")
        now_ms = EPOCH_MS + self._scheduler.now_us // 1000
        filler = b" " + b"." * self._randomness.integer(0, 200)
        records = [Record(number, now_ms, None, value.encode() + filler) for number, value in enumerate(values)]
        codec = _CODECS[self._randomness.integer(0, len(_CODECS) - 1)]
        return Batch(partition, tuple(values), build_batch(records, compression=codec))

    def _send_batches(self, batches: list[Batch]) -> None:
        history = self._history
        acks = self._acks_mix[self._randomness.integer(0, len(self._acks_mix) - 1)]
        topics: dict[bytes, ProduceTopic] = {}
        attempts: dict[PartitionId, tuple[Batch, Attempt]] = {}
        by_name = True
        for batch in batches:
            batch.attempts += 1
            topic_id, index = batch.partition
            name = history.topics[topic_id].name
            by_name = by_name and name in self._stable_names
            topic = topics.setdefault(topic_id, ProduceTopic(name, topic_id, []))
            topic.partitions.append(ProducePartition(index, memoryview(batch.records)))
            attempt = history.sent(self.name, self._connection.number, batch.partition, batch.values, acks)
            attempts[batch.partition] = batch, attempt
        version = self._randomness.integer(VERSIONS[0], VERSIONS[1]) if by_name else TOPIC_IDS_SINCE
        request = ProduceRequest(None, acks, self._randomness.integer(*TIMEOUT_MS), list(topics.values()))
        body = encode_produce_request(version, request)
        ids = {history.topics[topic_id].name: topic_id for topic_id in topics}

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is None:
                for batch, attempt in attempts.values():
                    self._unclear(batch, attempt)
                return
            for topic in decode_produce_response(version, frame, position).topics:
                topic_id = ids[topic.name] if topic.name is not None else topic.topic_id
                for result in topic.partitions:
                    batch, attempt = attempts.pop(PartitionId(topic_id or b"", result.partition))
                    self._answered(batch, attempt, result)
            if attempts:
                history.problem("partition without an answer", f"{self.name}: {[history.name_of(key) for key in attempts]}")
            self._think()

        if acks:
            self._connection.request(ApiKey.PRODUCE, version, body, replied)
        else:
            self._connection.request(ApiKey.PRODUCE, version, body, None)
            for _, attempt in attempts.values():
                history.answered(attempt, Outcome.UNKNOWN)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def _answered(self, batch: Batch, attempt: Attempt, result: ProduceResult) -> None:
        if result.error is ErrorCode.NONE:
            self._history.answered(attempt, Outcome.ACKED, result.base_offset)
        elif result.error in _REFUSED:
            # A deletion during a wait gives the same answer for records that were written.
            is_sure = result.error is ErrorCode.NOT_ENOUGH_REPLICAS
            self._history.answered(attempt, Outcome.FAILED if is_sure else Outcome.UNKNOWN)
            self._send_again(batch)
        elif result.error in _UNCLEAR:
            self._unclear(batch, attempt)
        else:
            self._history.answered(attempt, Outcome.UNKNOWN)
            where = self._history.name_of(batch.partition)
            self._history.problem("unexpected error", f"{self.name}: Produce to {where}: {result.error!r} {result.error_message}")

    def _unclear(self, batch: Batch, attempt: Attempt) -> None:
        self._history.answered(attempt, Outcome.UNKNOWN)
        if self._randomness.fraction() < 0.7:
            self._send_again(batch)

    def _send_again(self, batch: Batch) -> None:
        if batch.attempts < ATTEMPTS_MAX and not self.is_stopped:
            delay_us = self._randomness.integer(*RETRY_US)
            self._scheduler.schedule(delay_us, f"{self.name} tries again", lambda: self._queue(batch))

    def _queue(self, batch: Batch) -> None:
        self._again.append(batch)
        self._think()


ACKS_MIXES = ((ACKS_ALL,), (ACKS_ALL, ACKS_ALL, ACKS_ALL, 1), (ACKS_ALL, ACKS_ALL, 1, 0))
