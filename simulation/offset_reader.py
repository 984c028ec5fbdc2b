"""Reads everything that groups have committed, again and again while others work, and at the end."""

from simulation.client import ClientConnection, Environment
from simulation.group_checker import GroupHistory, OffsetRead
from simulation.history import PartitionId, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

RETRY_US = 50_000
WATCH_US = (5_000, 60_000)
VERSION = 9

_TRY_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class OffsetReader:
    def __init__(
        self,
        environment: Environment,
        randomness: SimulatedRandomness,
        history: GroupHistory,
        groups: list[str],
        topics: list[TopicLife],
        is_final: bool = True,
    ) -> None:
        self._scheduler = environment.scheduler
        self._history = history
        self._groups = groups
        self._topics = {life.name: life for life in topics}
        self._is_final = is_final
        self._randomness = randomness
        self.name = "offsets" if is_final else "watcher"
        self._connection = ClientConnection(self.name, environment, randomness.fork("connection"), self)
        self.is_done = False

    def start(self) -> None:
        self._connection.connect()

    def close(self) -> None:
        self._connection.close()

    def ready(self) -> None:
        topics = [{"name": life.name, "partition_indexes": list(range(life.partitions))} for life in self._topics.values()]
        groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics} for group in self._groups]
        sent_at = self._history.base.now()

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is not None:
                self._answered(decode_response(ApiKey.OFFSET_FETCH, VERSION, frame, position), sent_at)

        body = encode_request(ApiKey.OFFSET_FETCH, VERSION, {"groups": groups, "require_stable": True})
        self._connection.request(ApiKey.OFFSET_FETCH, VERSION, body, replied)

    def lost(self) -> None:
        pass  # ``ready`` asks again.

    def _answered(self, answer: DecodedMessage, sent_at: int) -> None:
        base = self._history.base
        reads = []
        for group in answer.groups:
            found = [(topic, each) for topic in group.topics for each in topic.partitions]
            codes = {group.error_code, *(each.error_code for _, each in found)} - {ErrorCode.NONE}
            if codes - _TRY_AGAIN:
                base.problem("unexpected error", f"OffsetFetch of {group.group_id}: {sorted(codes)}")
            if codes:
                self._scheduler.schedule(RETRY_US, "offsets asked for again", self._again)
                return
            for topic, each in found:
                partition = PartitionId(self._topics[topic.name].topic_id, each.partition_index)
                offset, metadata = each.committed_offset, each.metadata or ""
                reads.append(
                    OffsetRead(self.name, group.group_id, partition, offset, metadata, sent_at, base.now(), self._is_final)
                )
        self._history.reads += reads
        self.is_done = True
        if not self._is_final:
            self._scheduler.schedule(self._randomness.integer(*WATCH_US), "offsets watched", self._again)

    def _again(self) -> None:
        if self._connection.is_ready:
            self.ready()
