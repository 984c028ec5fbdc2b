"""Produce: appends each partition's records, and answers when they are as durable as the client asked.

acks=0 gets no answer at all. acks=1 is answered when the leader has written the records, and acks=-1 (all) when the high
watermark has passed them on every partition, or after the request's timeout. A duplicate of an idempotent batch waits like its
original, which may not be durable yet. While the disk is far behind, requests that do not wait for it are answered later too
(``DiskBacklog``).

The records are views of the request's frame and are written before the handler returns. Nothing keeps them, except when a
transaction's coordinator has to be asked first (``transactional_produce``).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.request_metrics import RequestTiming
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.broker.timers import Timer
from tidelog.broker.transactions.verification import PartitionCodes
from tidelog.controller.errors import ApiError
from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.errors import RecordsRefused
from tidelog.replication.partition import AppendTracker, Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.produce import (
    LEADER_HINTS_SINCE,
    VERSIONS,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    ProduceTopicResult,
    decode_produce_request,
    encode_produce_response,
)
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.api import RequestContext
    from tidelog.broker.timers import Timer


ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
NO_ERROR = ErrorCode.NONE
# The position of the low byte of a batch's attributes, and its transactional flag.
ATTRIBUTES_POSITION = 22
TRANSACTIONAL = 0x10
# Reporting each refused record takes microseconds, and much more room than the record takes in the request, and a request must
# not hold the loop for that. A partition whose records are not reported fails as a whole, with the same error.
NAMED_RECORDS_MAX = 10_000


def handle(context: RequestContext, request: ProduceRequest) -> None:
    if context.usage is not None:
        context.broker.throttling.received(context)
    acks = request.acks
    if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        code = ErrorCode.INVALID_REQUIRED_ACKS
        context.count_error(code)
        _reply(
            context, [_failed_topic(topic, code, f"acks is {acks}; only 0, 1 and -1 (all) are known") for topic in request.topics]
        )
        return
    if request.transactional_id is None:
        _append_all(context, request, None)
        return

    def append(verified: ProduceRequest, codes: PartitionCodes) -> None:
        try:
            _append_all(context, verified, codes)
        except Exception as error:
            context.fail(error)  # The request may have waited, and then an exception would reach nobody else.

    context.broker.transactional_produce.submit(request, context.header.api_version, append)


def _append_all(context: RequestContext, request: ProduceRequest, codes: PartitionCodes | None) -> None:
    acks = request.acks
    waiting = _Waiting(context, request.timeout_ms) if acks == ACKS_ALL else None
    topics = []
    appends = context.broker.partitions.appends
    unsynced_before = appends.unsynced_bytes
    for topic in request.topics:
        results: list[ProduceResult] = []
        for data in topic.partitions:
            results.append(_append(context, topic, data, acks, waiting, results, codes))
        topics.append(ProduceTopicResult(topic.name, topic.topic_id, results))
    if waiting is not None:
        waiting.start(topics)
    elif appends.unsynced_bytes > max(unsynced_before, context.broker.backlog.bytes_max):
        context.broker.backlog.hold(context, request.timeout_ms, partial(_answer, context, acks, topics))
    else:
        _answer(context, acks, topics)


def _answer(context: RequestContext, acks: int, topics: list[ProduceTopicResult]) -> None:
    """Answer a request with acks=0 or acks=1."""
    if acks == ACKS_NONE:
        if any(result.error is not NO_ERROR for topic in topics for result in topic.partitions):
            # This is the only way to tell a client that expects no answer: it refreshes its metadata when the connection ends.
            context.session.end("a produce request with acks=0 failed")
        context.reply_nothing()
    else:
        _reply(context, topics)
        if context.timing is not None:
            _note_acknowledged(context, context.timing, topics)


def _append(
    context: RequestContext,
    topic: ProduceTopic,
    data: ProducePartition,
    acks: int,
    waiting: "_Waiting | None",
    results: list[ProduceResult],
    codes: PartitionCodes | None,
) -> ProduceResult:
    index = data.partition
    try:
        partition = context.broker.partitions.find(topic.name, topic.topic_id, index)
        if partition.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: clients may not write to it")
        records = data.records
        if records is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "a produce request without records")
        if len(records) > ATTRIBUTES_POSITION and records[ATTRIBUTES_POSITION] & TRANSACTIONAL:
            _check_verdict(partition, codes)
        result = partition.append(records, acks == ACKS_ALL)
    except Exception as error:
        code, message = context.code_of(error)
        context.count_error(code)
        leader = None
        if code in HINTED_ERRORS and context.header.api_version >= LEADER_HINTS_SINCE:
            leader = current_leader(context.broker.image, topic.name, topic.topic_id, index)
        record_errors = _record_errors(context.request, error) if isinstance(error, RecordsRefused) else ()
        return ProduceResult(index, code, error_message=message, record_errors=record_errors, current_leader=leader)
    if waiting is not None:
        waiting.add(partition, result.last_offset + 1, results, len(results))
    return ProduceResult(index, NO_ERROR, result.first_offset, result.append_time_ms, partition.log.log_start_offset)


def _record_errors(request: ProduceRequest, error: RecordsRefused) -> list[tuple[int, str]]:
    """The refused records. All partitions of the request share one budget of records to examine."""
    return error.record_errors(NAMED_RECORDS_MAX // sum(len(topic.partitions) for topic in request.topics))


def _check_verdict(partition: Partition, codes: PartitionCodes | None) -> None:
    """Raise if the coordinator did not confirm the transaction: nobody would ever end it, and read_committed readers would wait
    forever."""
    if codes is None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        raise ApiError(code, "records of a transaction in a request without a transactional id")
    code = codes.get((partition.topic, partition.index), NO_ERROR)
    if code is not NO_ERROR:
        raise ApiError(code, f"{partition.log.name} could not be verified as part of the transaction: {code.message}")


def _failed_topic(topic: ProduceTopic, code: ErrorCode, message: str) -> ProduceTopicResult:
    results = [ProduceResult(data.partition, code, error_message=message) for data in topic.partitions]
    return ProduceTopicResult(topic.name, topic.topic_id, results)


def _reply(context: RequestContext, topics: list[ProduceTopicResult]) -> None:
    leaders = {result.current_leader[0] for topic in topics for result in topic.partitions if result.current_leader is not None}
    endpoints = leader_endpoints(context.broker.image, leaders) if leaders else ()
    context.reply_parts([encode_produce_response(context.header.api_version, topics, context.throttle_time_ms(), endpoints)])


def _note_acknowledged(context: RequestContext, timing: RequestTiming, topics: list[ProduceTopicResult]) -> None:
    """With acks=1 the records are acknowledged as soon as they are written."""
    for topic in topics:
        known = context.broker.image.topic_by_id(topic.topic_id or b"") if topic.name is None else None
        name = topic.name if known is None else known.name
        for result in topic.partitions:
            if result.error is NO_ERROR and name is not None:
                context.broker.request_metrics.acknowledged(name, result.partition, timing)


class _Waiting:
    """A request with acks=all that waits for its partitions' high watermarks."""

    __slots__ = ("_context", "_open", "_timeout_ms", "_timer", "_topics", "_waits")

    def __init__(self, context: RequestContext, timeout_ms: int) -> None:
        self._context = context
        self._timeout_ms = timeout_ms
        self._waits: list[tuple[Partition, int, list[ProduceResult], int]] = []
        # Maps the number of a wait to the position of its result.
        self._open: dict[int, tuple[list[ProduceResult], int]] = {}
        self._timer: Timer | None = None
        self._topics: list[ProduceTopicResult] = []

    def add(self, partition: Partition, offset: int, results: list[ProduceResult], position: int) -> None:
        self._waits.append((partition, offset, results, position))

    def start(self, topics: list[ProduceTopicResult]) -> None:
        self._topics = topics
        self._open = {number: wait[2:] for number, wait in enumerate(self._waits)}
        for number, (partition, offset, _, _) in enumerate(self._waits):
            partition.wait_replicated(offset, partial(self._replicated, number))
        if not self._waits:
            _reply(self._context, topics)
        elif self._open:
            self._timer = self._context.broker.timers.schedule(max(self._timeout_ms, 0), self._time_out)

    def _replicated(self, number: int, error: Exception | None) -> None:
        place = self._open.pop(number, None)
        if place is None:
            return  # The request has timed out already.
        if error is not None:
            self._set_error(place, *self._context.code_of(error))
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
            _reply(self._context, self._topics)
            if self._context.timing is not None:
                self._note_acknowledged(number, self._context.timing)

    def _note_acknowledged(self, last: int, timing: RequestTiming) -> None:
        """``last`` is the wait that completed the answer; only its partition may be among the slowest."""
        metrics = self._context.broker.request_metrics
        for number, (partition, _, results, position) in enumerate(self._waits):
            if results[position].error is NO_ERROR:
                metrics.acknowledged(partition.topic, partition.index, timing, is_last=number == last)

    def _time_out(self) -> None:
        for place in self._open.values():
            self._set_error(place, ErrorCode.REQUEST_TIMED_OUT, f"not replicated within {self._timeout_ms} ms; it still may be")
        self._open = {}
        _reply(self._context, self._topics)

    def _set_error(self, place: tuple[list[ProduceResult], int], code: ErrorCode, message: str) -> None:
        self._context.count_error(code)
        results, position = place
        results[position] = ProduceResult(results[position].partition, code, error_message=message)


def _failure(request: ProduceRequest, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "responses": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id or ZERO_UUID,
                "partition_responses": [
                    {"index": data.partition, "error_code": code, "error_message": message, "base_offset": -1}
                    for data in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


API = Api(
    key=ApiKey.PRODUCE,
    name="Produce",
    versions=VERSIONS,
    handle=handle,
    failure=_failure,
    decode=decode_produce_request,
    # Older librdkafka assumes that a broker that does not list version 0 cannot compress.
    advertised_versions=(0, VERSIONS[1]),
)


# About as much as a slow disk writes in a second.
BYTES_MAX = 64 * 1024 * 1024


class DiskBacklog:
    """Producers with acks=0 and acks=1 wait for a disk that is too far behind.

    Producers with acks=all wait for the disk anyway. The others do not, and could write to the page cache as fast as it takes it:
    every commit pass would take longer than the one before, and everybody who waits for one would wait ever longer. So while more
    than ``BYTES_MAX`` are not synced, their requests are answered only when their records are synced. Until then their
    connections are full of unanswered requests and are not read from."""

    __slots__ = ("_appends", "_commit", "bytes_max", "held")

    def __init__(self, commit: GroupCommit, appends: AppendTracker) -> None:
        self._commit = commit
        self._appends = appends
        self.bytes_max = BYTES_MAX
        self.held = 0
        """Requests that were answered later because of the backlog, since the start."""

    def hold(self, context: "RequestContext", timeout_ms: int, answer: Callable[[], None]) -> None:
        """Hold a request that has just appended: call ``answer`` when its records are synced, or when it times out, since it did
        not ask for a sync. One pass syncs all logs, so the request's last log stands for all of them."""
        log = self._appends.last_log
        assert log is not None, "the request has appended"
        self.held += 1
        timer: Timer | None = None
        is_answered = False

        def done(error: Exception | None = None) -> None:  # noqa: ARG001 - if the log went offline, the next request gets the error
            nonlocal is_answered
            if is_answered:
                return
            is_answered = True
            if timer is not None:
                timer.cancel()
            answer()
            context.session.resume()

        self._commit.wait(log, log.log_end_offset, done)
        if not is_answered:
            timer = context.broker.timers.schedule(max(timeout_ms, 0), done)
