"""A transactional producer of single records that represent a decision, by plain requests.

``begin`` takes over the transactional id: its previous owner can no longer write, and a transaction that it left open is aborted
(InitProducerId). If nobody else begins before ``commit``, the commit succeeds; otherwise it fails as fenced. So whatever is read
after ``begin`` still holds when the commit succeeds: this is compare-and-set, with the broker as the judge.

A record is durable on all in-sync replicas before the commit is requested. ``commit`` is repeated until there is an answer. If it
raises ``WriterFenced`` after an answer was lost, only the topic tells whether it was done.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tidelog.client.wire.brokers import NO_LEADER, Brokers, by_topic
from tidelog.client.wire.errors import BrokerError, ClientError, UnknownPartition, check_code
from tidelog.client.wire.retries import is_worth_another_attempt, retried
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

ALL_IN_SYNC_REPLICAS = -1
FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    # The transaction timed out and was aborted.
    ErrorCode.INVALID_TXN_STATE,
)

_Result = TypeVar("_Result")


class WriterFenced(ClientError):
    """Another producer has begun under the transactional id, or the broker has aborted this one's transaction."""


class FencedWriter:
    def __init__(self, brokers: Brokers, transactional_id: str, timeout_ms: int) -> None:
        self._brokers = brokers
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.producer_id, self.producer_epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    def begin(self) -> None:
        fields = {
            "transactional_id": self._transactional_id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self._of_coordinator(ApiKey.INIT_PRODUCER_ID, fields)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def write(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        """Write ``records``, at least one pair of key and value."""
        self.add_partitions([(topic, partition)])
        sequence = self._sequences.get((topic, partition), 0)
        batch = build_batch(
            [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self._patiently(partial(self._produce, topic, partition, batch))
        self._sequences[topic, partition] = sequence + len(records)

    def add_partitions(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Make the partitions part of the transaction, which begins with the first of them."""
        self._of_coordinator(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            {
                "v3_and_below_transactional_id": self._transactional_id,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.producer_epoch,
                "v3_and_below_topics": [
                    {"name": topic, "partitions": indexes} for topic, indexes in by_topic(partitions).items()
                ],
            },
        )

    def commit(self) -> None:
        self._of_coordinator(ApiKey.END_TXN, self._end(is_commit=True))

    def abort(self) -> None:
        """Abort at the first attempt, or not at all: if nobody ends the transaction, it times out."""
        self._ask_coordinator(ApiKey.END_TXN, self._end(is_commit=False))

    def _end(self, *, is_commit: bool) -> dict[str, Any]:
        return {
            "transactional_id": self._transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "committed": is_commit,
        }

    def _produce(self, topic: str, partition: int, batch: bytes) -> None:
        """Write the records. Sending this again after a lost answer does not write them twice, because the sequence number is the
        same."""
        leader = self._leader(topic, partition)
        fields = {
            "transactional_id": self._transactional_id,
            "acks": ALL_IN_SYNC_REPLICAS,
            "timeout_ms": int(self._brokers.request_seconds_max * 1000),
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        }
        try:
            answer = self._brokers.request(leader, ApiKey.PRODUCE, fields)
            result = answer.responses[0].partition_responses[0]
            self._check(result.error_code, f"{topic}-{partition} does not take the record", result.error_message)
        except ClientError:
            # The next attempt looks for it again: it may have moved.
            self._leaders.clear()
            raise

    def _leader(self, topic: str, partition: int) -> int:
        if (topic, partition) not in self._leaders:
            for each in self._brokers.ask_metadata([topic]).topics:
                self._leaders |= {(each.name, place.partition_index): int(place.leader_id) for place in each.partitions}
        leader = self._leaders.get((topic, partition))
        if leader is None:
            raise UnknownPartition(topic, partition)
        if leader == NO_LEADER:
            self._leaders.clear()
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return leader

    def _of_coordinator(self, api: ApiKey, fields: dict[str, Any]) -> DecodedMessage:
        return self._patiently(partial(self._ask_coordinator, api, fields))

    def _ask_coordinator(self, api: ApiKey, fields: dict[str, Any]) -> DecodedMessage:
        name = self._transactional_id
        try:
            answer = self._brokers.request(self._brokers.transaction_coordinators([name])[name], api, fields)
            for code in _codes(answer):
                self._check(code, f"{api.name} of {name}")
        except ClientError:
            # The next attempt looks for it again: it may have moved.
            self._brokers.forget()
            raise
        return answer

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        return retried(attempt, self._brokers.request_seconds_max, is_worth_another_attempt)

    def _check(self, code: int, subject: str, detail: str | None = None) -> None:
        if code in FENCED:
            raise WriterFenced(f"{subject}: {ErrorCode(code).message}")
        check_code(code, subject, detail)


def _codes(answer: DecodedMessage) -> list[int]:
    fields = vars(answer)
    codes = [int(fields.get("error_code", ErrorCode.NONE))]
    for topic in fields.get("results_by_topic_v3_and_below", ()):
        codes += [int(partition.partition_error_code) for partition in topic.results_by_partition]
    return codes
