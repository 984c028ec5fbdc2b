"""Elections of leaders that an operator asks for: preferred ones, and unclean ones where no replica in sync is left.

The calls go through ``client.wire``, in plaintext only, because confluent-kafka 2.16 fails in its own ``elect_leaders``.
"""

from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Self

from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.brokers import Brokers, by_topic
from tidelog.client.wire.errors import check_code, error_of
from tidelog.client.wire.retries import is_worth_another_attempt, retried
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import Fields
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
# The election types of the protocol.
_PREFERRED, _UNCLEAN = 0, 1
# The leader is who it should be.
_FINE = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


class LeaderElectionAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-elections",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call."""
        self._timeout_ms = request_timeout_ms
        self._brokers = Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, request_timeout_ms / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._brokers.close()

    def elect_preferred(self, partitions: Iterable[tuple[str, int]] | None) -> dict[TopicPartition, str | None]:
        """Let the preferred replicas of these partitions lead, or of all (None). Returns what went wrong with each, None where
        nothing did; of all partitions, only those where there was something to change."""
        return self._elect(_PREFERRED, partitions)

    def elect_unclean(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, str | None]:
        """Let any replica that is there lead these partitions, if they have no leader. What it lacks is lost."""
        return self._elect(_UNCLEAN, partitions)

    def _elect(self, kind: int, partitions: Iterable[tuple[str, int]] | None) -> dict[TopicPartition, str | None]:
        wanted = None
        if partitions is not None:
            wanted = [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic(partitions).items()]
        fields: Fields = {"election_type": kind, "topic_partitions": wanted, "timeout_ms": self._timeout_ms}
        return retried(partial(self._elect_once, fields), self._timeout_ms / 1000, is_worth_another_attempt)

    def _elect_once(self, fields: Fields) -> dict[TopicPartition, str | None]:
        controller_id = self._brokers.ask_metadata([]).controller_id
        answer = self._brokers.request(controller_id, ApiKey.ELECT_LEADERS, fields)
        check_code(answer.error_code, "no leader was elected")
        return {
            TopicPartition(topic.topic, each.partition_id): _problem(each.error_code, each.error_message)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }


def _problem(code: int, message: str | None) -> str | None:
    return None if code in _FINE else message or error_of(code).message
