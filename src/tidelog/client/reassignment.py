"""Moves of partitions to other brokers (KIP-455), which librdkafka knows nothing about.

The calls go through ``client.wire``, in plaintext only, on Tidelog and on any Kafka since 2.4. A move takes as long as copying
takes, and goes on without this client; ``ongoing`` tells what is left. Each move is accepted or refused by itself: ``alter``
raises ``ReassignmentsRefused`` with all refusals, and the other moves have begun nevertheless.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.client.wire.brokers import Brokers, by_topic
from tidelog.client.wire.errors import ClientError, check_code, error_of
from tidelog.client.wire.retries import is_worth_another_attempt, retried
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000

_TOPIC = 2
_MINIMUM = "min.insync.replicas"

Replica = tuple[TopicPartition, int]
"""A partition, and the broker that holds a copy of it."""


class MovingPartition(NamedTuple):
    """A partition that is being moved, with the brokers of both assignments."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReassignmentRefusal(NamedTuple):
    topic: str
    partition: int
    code: ErrorCode
    message: str | None


class ReassignmentsRefused(ClientError):
    """Some of the moves were refused. The others have begun."""

    def __init__(self, refusals: Sequence[ReassignmentRefusal]) -> None:
        super().__init__(
            "; ".join(f"{refusal.topic}-{refusal.partition}: {refusal.message or refusal.code.message}" for refusal in refusals)
        )
        self.refusals = tuple(refusals)


class ReassignmentAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-reassignment",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call."""
        self._request_timeout_ms = request_timeout_ms
        self._brokers = Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, request_timeout_ms / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._brokers.close()

    def alter(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Move each partition to these brokers, in order of preference; None cancels a move that is in progress.

        Asking again for the same replicas changes nothing, so the request is repeated while there is no controller."""
        if not wanted:
            return
        topics: dict[str, list[dict[str, object]]] = {}
        for (topic, index), replicas in wanted.items():
            topics.setdefault(topic, []).append({"partition_index": index, "replicas": None if replicas is None else [*replicas]})
        fields = {
            "timeout_ms": self._request_timeout_ms,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        answer = self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields, "the partitions were not moved")
        refusals = [
            ReassignmentRefusal(topic.name, partition.partition_index, error_of(partition.error_code), partition.error_message)
            for topic in answer.responses
            for partition in topic.partitions
            if partition.error_code != ErrorCode.NONE
        ]
        if refusals:
            raise ReassignmentsRefused(refusals)

    def ongoing(self) -> dict[TopicPartition, MovingPartition]:
        """All moves that have not ended, sorted by topic and partition."""
        fields = {"timeout_ms": self._request_timeout_ms, "topics": None}
        answer = self._ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, fields, "the moves cannot be listed")
        found = {
            (topic.name, partition.partition_index): MovingPartition(
                tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
            )
            for topic in answer.topics
            for partition in topic.partitions
        }
        return dict(sorted(found.items()))

    def sizes(self, brokers: Iterable[int], topics: Mapping[str, Sequence[int]] | None = None) -> dict[Replica, int]:
        """The bytes of each replica of these partitions, or of all, on these brokers. A broker that does not answer is taken to
        have nothing."""
        wanted = None if topics is None else [{"topic": name, "partitions": [*indexes]} for name, indexes in topics.items()]
        found: dict[Replica, int] = {}
        for broker in sorted(brokers):
            with suppress(ClientError):
                answer = self._brokers.request(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": wanted})
                for directory in answer.results:
                    for topic in directory.topics:
                        for partition in topic.partitions:
                            found[(topic.name, partition.partition_index), broker] = partition.partition_size
        return found

    def bytes_left(self, moving: Mapping[TopicPartition, MovingPartition]) -> dict[TopicPartition, int]:
        """How many bytes the added brokers have yet to copy, as their directories and those of the others show."""
        brokers = {replica for each in moving.values() for replica in each.replicas}
        sizes = self.sizes(brokers, by_topic(moving))
        left = {}
        for key, move in moving.items():
            whole = max(sizes.get((key, replica), 0) for replica in move.replicas)
            left[key] = sum(whole - sizes.get((key, replica), 0) for replica in move.adding)
        return left

    def min_insync_replicas(self, topics: Collection[str]) -> dict[str, int]:
        """``min.insync.replicas`` of each topic, with one request. A topic that does not exist is left out."""
        if not topics:
            return {}
        resources = [{"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": [_MINIMUM]} for topic in topics]
        fields = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        answer = self._brokers.patiently(partial(self._brokers.request_any, ApiKey.DESCRIBE_CONFIGS, fields))
        found = {}
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            check_code(result.error_code, f"{_MINIMUM} of {result.resource_name}", result.error_message)
            found[result.resource_name] = next((int(each.value or 1) for each in result.configs), 1)
        return found

    def _ask(self, api: ApiKey, fields: Fields, failed: str) -> DecodedMessage:
        return retried(partial(self._ask_once, api, fields, failed), self._request_timeout_ms / 1000, is_worth_another_attempt)

    def _ask_once(self, api: ApiKey, fields: Fields, failed: str) -> DecodedMessage:
        """Ask the active controller. Where it does not serve clients, the broker that is named for it passes the request on."""
        controller_id = self._brokers.ask_metadata([]).controller_id
        answer = self._brokers.request(controller_id, api, fields)
        check_code(answer.error_code, failed, answer.error_message)
        return answer
