"""A transactional producer (v1) by single requests, which can leave transactions behind as no real client does."""

import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

SECONDS_MAX = 30.0
TIMEOUT_MS = 60_000
TRANSACTION_KEY_TYPE = 1
_RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    # A topic that was created a moment ago.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


class WireProducer:
    """``init`` gives it a producer id; without it the one given here is used, which no coordinator knows."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, producer_id: int = -1, producer_epoch: int = 0) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._sequences: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def init(self) -> None:
        self._until_done(ApiKey.FIND_COORDINATOR, 3, {"key": self.transactional_id, "key_type": TRANSACTION_KEY_TYPE})
        fields = {"transactional_id": self.transactional_id, "transaction_timeout_ms": TIMEOUT_MS}
        answer = self._until_done(ApiKey.INIT_PRODUCER_ID, 4, {**fields, "producer_id": -1, "producer_epoch": -1})
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def add_partition(self, topic: str, partition: int) -> None:
        self._until_done(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            {
                "v3_and_below_transactional_id": self.transactional_id,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.producer_epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
            },
        )

    def produce(self, topic: str, partition: int, value: bytes, timestamp_ms: int | None = None) -> int:
        """Its offset. Of version 11: the broker does not add the partition to a transaction."""
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        sequence = self._sequences.get((topic, partition), 0)
        batch = build_batch(
            [Record(0, timestamp_ms, None, value)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        topics = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        fields = {"transactional_id": self.transactional_id, "acks": -1, "timeout_ms": TIMEOUT_MS, "topic_data": topics}
        answer = self._until_done(ApiKey.PRODUCE, 11, fields)
        self._sequences[topic, partition] = sequence + 1
        return int(answer.responses[0].partition_responses[0].base_offset)

    def end(self, *, is_commit: bool) -> None:
        fields: dict[str, Any] = {"transactional_id": self.transactional_id, "committed": is_commit}
        self._until_done(ApiKey.END_TXN, 3, {**fields, "producer_id": self.producer_id, "producer_epoch": self.producer_epoch})

    def _until_done(self, api: ApiKey, version: int, fields: dict[str, Any]) -> DecodedMessage:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            answer = self._request(api, version, fields)
            code = _code(answer)
            if code is ErrorCode.NONE:
                return answer
            if code not in _RETRIABLE or time.monotonic() > deadline:
                raise AssertionError(f"{api.name}: {code.name}")
            time.sleep(0.02)

    def _request(self, api: ApiKey, version: int, fields: dict[str, Any]) -> DecodedMessage:
        message = request_header(api, version, 1, "wire-producer") + encode_request(api, version, fields)
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", self._read(4))
        frame = memoryview(self._read(size))
        return decode_response(api, version, frame, parse_response_header(api, version, frame)[1])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker ended the connection"
            data += part
        return data


def _code(answer: DecodedMessage) -> ErrorCode:
    """The first error in it."""
    fields = vars(answer)
    codes = [fields.get("error_code", 0)]
    for topic in fields.get("responses", ()):
        codes += [partition.error_code for partition in topic.partition_responses]
    for topic in fields.get("results_by_topic_v3_and_below", ()):
        codes += [partition.partition_error_code for partition in topic.results_by_partition]
    return next((ErrorCode(code) for code in codes if code), ErrorCode.NONE)
