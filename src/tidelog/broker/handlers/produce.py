"""Produce: appends each partition's records, and answers when they are as durable as the client asked.

acks=0 gets no answer at all. acks=1 is answered when the leader has written the records, and acks=-1 (all) when the high
watermark has passed them on every partition, or after the request's timeout. A duplicate of an idempotent batch waits like its
original, which may not be durable yet. While the disk is far behind, requests that do not wait for it are answered later too
(``DiskBacklog``).

Every batch is validated before anything is written (``log.append_check``). Most are validated at once, and then nothing keeps
the request's frame. If that would take too long, the request waits in the ``ValidationQueue`` with copies of its records, and no
later request of its connection is handled. Partitions and settings are looked up again afterwards. The batches of a transaction
are then verified by its coordinator (``transactional_produce``), which may take time too.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import Api, RequestContext
from tidelog.broker.partitions import Partitions
from tidelog.broker.request_metrics import RequestTiming
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.broker.timers import Timer
from tidelog.broker.transactions.verification import PartitionCodes
from tidelog.controller.errors import ApiError
from tidelog.log.append_check import BatchValidation, ValidatedBatch, WorkBudget
from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.errors import RecordsRefused
from tidelog.records.compression import CompressionType
from tidelog.records.header import COMPRESSION_MASK, TRANSACTIONAL_MASK
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
NO_RESULT = ProduceResult(-1, NO_ERROR)
# The position of the low byte of a batch's attributes.
ATTRIBUTES_POSITION = 22
ZSTD_SINCE = 7
# A named record takes much more room in the response than in the request. A partition whose records are not reported fails as a
# whole, with the same error.
NAMED_RECORDS_MAX = 10_000
# The batches of a request are validated while it is handled, as long as that takes at most two or three milliseconds. The rest
# waits in the ``ValidationQueue``.
RECORDS_AT_ONCE_MAX = 4_000
CODEC_BYTES_AT_ONCE_MAX = 256 * 1024
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes two.
_new_tuple = tuple.__new__


def handle(context: RequestContext, request: ProduceRequest) -> None:
    if context.usage is not None:
        context.broker.throttling.received(context)
    acks = request.acks
    if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        code = ErrorCode.INVALID_REQUIRED_ACKS
        context.count_error(code)
        message = f"acks is {acks}; only 0, 1 and -1 (all) are known"
        _reply_topics(context, [_failed_topic(topic, code, message) for topic in request.topics])
        return
    batches = _validate(context, request)
    for batch in batches:
        if batch.validation is not None:
            _validate_later(context, request, batches)
            return
    _submit(context, request, batches)


class _ProducedBatch:
    """One partition's records in a request: their validation, or the error that refused them, and then their result."""

    __slots__ = ("data", "end_offset", "error", "partition", "result", "topic", "validated", "validation", "waiting")

    def __init__(self, topic: ProduceTopic, data: ProducePartition) -> None:
        self.topic = topic
        self.data = data
        self.partition: Partition | None = None
        self.validation: BatchValidation | None = None
        """None unless the records need more than a look and their validation is not complete."""
        self.validated: ValidatedBatch | None = None
        self.error: Exception | None = None
        self.result = NO_RESULT
        self.end_offset = -1
        """The offset after the last record, once they are appended."""
        self.waiting: _Waiting | None = None
        """The request, while this batch waits to be replicated."""

    def find_partition(self, partitions: Partitions) -> Partition:
        """Find the partition again, which may be gone or be led elsewhere since the request arrived."""
        topic = self.topic
        self.partition = partition = partitions.find(topic.name, topic.topic_id, self.data.partition)
        return partition

    def begin(self, partitions: Partitions, version: int) -> None:
        topic = self.topic
        self.partition = partition = partitions.find(topic.name, topic.topic_id, self.data.partition)
        if partition.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: clients may not write to it")
        records = self.data.records
        if records is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "a produce request without records")
        if version < ZSTD_SINCE and _codec_of(records) == CompressionType.ZSTD:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs version {ZSTD_SINCE} of Produce, and the request has version {version}",
            )
        begun = partition.log.begin_validation(records)
        if isinstance(begun, BatchValidation):
            self.validation = begun
        else:
            self.validated = begun

    def advance(self, budget: WorkBudget) -> None:
        if self.validation is not None:
            self.validation.advance(budget)
            self.note_progress()

    def note_progress(self) -> None:
        """The validation may be complete."""
        if self.validation is not None and self.validation.is_complete:
            self.validated, self.validation = self.validation.result, None

    def find_again(self, partitions: Partitions) -> None:
        """Find the partition again after some time. If the settings of the topic have changed, the records have to be validated
        again."""
        partition = self.find_partition(partitions)
        validated = self.validated
        if validated is not None and validated.settings is not partition.log.settings:
            begun = partition.log.begin_validation(validated.view)
            if isinstance(begun, BatchValidation):
                self.validated, self.validation = None, begun
            else:
                self.validated = begun

    def refuse(self, error: Exception) -> None:
        """Keep the error without the frames that it refers to: they refer to this batch."""
        self.error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
        self.validation = self.validated = None

    def keep(self) -> None:
        """Keep what is still needed of the request's frame, which is about to be overwritten."""
        if self.validation is not None:
            self.validation.keep()
        elif self.validated is not None and not isinstance(self.validated.view.obj, bytes):
            self.validated = self.validated._replace(view=memoryview(bytes(self.validated.view)))

    @property
    def kept_data(self) -> ProducePartition:
        """The part of the request with records that outlive its frame; without records if they were refused."""
        return ProducePartition(self.data.partition, None if self.validated is None else self.validated.view)

    def replicated(self, error: Exception | None) -> None:
        """Called when the high watermark has passed the records, or never will."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:  # Otherwise the request has timed out already.
            waiting.replicated(self, error)


def _codec_of(records: memoryview) -> int:
    return records[ATTRIBUTES_POSITION] & COMPRESSION_MASK if len(records) > ATTRIBUTES_POSITION else 0


def _validate(context: RequestContext, request: ProduceRequest) -> list[_ProducedBatch]:
    """Validate the batches as far as the budget of a request allows."""
    budget: WorkBudget | None = None
    partitions, version = context.broker.partitions, context.header.api_version
    batches = []
    for topic in request.topics:
        for data in topic.partitions:
            batch = _ProducedBatch(topic, data)
            batches.append(batch)
            try:
                batch.begin(partitions, version)
                if batch.validation is not None:
                    budget = budget or WorkBudget(RECORDS_AT_ONCE_MAX, CODEC_BYTES_AT_ONCE_MAX)
                    batch.advance(budget)
            except Exception as error:
                batch.refuse(error)
    return batches


def _validate_later(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    """Validate the rest in slices and in a helper thread. Until then the connection is held: neither its later records nor their
    answers may overtake these."""
    for batch in batches:
        batch.keep()
    open_batches = {batch.validation: batch for batch in batches if batch.validation is not None}

    def refused(validation: BatchValidation, error: Exception) -> None:
        open_batches[validation].refuse(error)

    def validated() -> None:
        try:
            _append_or_repeat(context, request, batches)
        except Exception as error:
            context.fail(error)
        finally:
            session.remove_delayed(job)
            session.release()

    session = context.session
    session.hold()
    job = context.broker.validations.submit(list(open_batches), refused, validated)
    session.add_delayed(job)


def _append_or_repeat(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    """Append what was validated. Time has passed: partitions may be gone, and a topic may have other settings, under which its
    batch has to be validated again."""
    for batch in batches:
        if batch.error is not None:
            continue
        batch.note_progress()
        try:
            batch.find_again(context.broker.partitions)
        except Exception as error:
            batch.refuse(error)
    if any(batch.validation is not None for batch in batches):
        _validate_later(context, request, batches)
    else:
        _submit(context, request, batches)


def _submit(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    """All batches are validated or refused: append them."""
    if request.transactional_id is None:
        _append_all(context, request, batches, None)
    else:
        _append_verified(context, request, batches)


def _append_verified(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    """Append the batches of a transaction once its coordinator has verified the partitions."""

    def append(codes: PartitionCodes) -> None:
        try:
            _append_all(context, request, batches, codes)
        except Exception as error:
            context.fail(error)  # The request may have waited, and then an exception would reach nobody else.

    for batch in batches:
        batch.keep()
    remaining = iter(batches)
    topics = [
        topic._replace(partitions=[batch.kept_data for batch in islice(remaining, len(topic.partitions))])
        for topic in request.topics
    ]
    context.broker.transactional_produce.submit(request._replace(topics=topics), context.header.api_version, append)


def _append_all(
    context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], codes: PartitionCodes | None
) -> None:
    if request.acks == ACKS_ALL:
        for batch in batches:
            batch.result = _append(context, batch, codes)
        _Waiting(context, request, batches).start()
        return
    appends = context.broker.partitions.appends
    unsynced_before = appends.unsynced_bytes
    for batch in batches:
        batch.result = _append(context, batch, codes)
    if appends.unsynced_bytes > max(unsynced_before, context.broker.backlog.bytes_max):
        context.broker.backlog.hold(context, request.timeout_ms, partial(_answer, context, request, batches))
    else:
        _answer(context, request, batches)


def _answer(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    """Answer a request with acks=0 or acks=1."""
    if request.acks == ACKS_NONE:
        if any(batch.result.error is not NO_ERROR for batch in batches):
            # This is the only way to tell a client that expects no answer: it refreshes its metadata when the connection ends.
            context.session.end("a produce request with acks=0 failed")
        context.reply_nothing()
    else:
        _reply(context, request, batches)
        if context.timing is not None:
            _note_acknowledged(context, context.timing, batches)


def _append(context: RequestContext, batch: _ProducedBatch, codes: PartitionCodes | None) -> ProduceResult:
    if batch.error is not None:
        return _failed(context, batch, batch.error)
    try:
        # A transaction may have had to wait for its coordinator.
        partition = batch.partition if codes is None else batch.find_partition(context.broker.partitions)
        validated = batch.validated
        assert partition is not None
        assert validated is not None
        if validated.header.attributes & TRANSACTIONAL_MASK:
            _check_verdict(partition, codes)
        result = partition.append(validated, context.request.acks == ACKS_ALL)
    except Exception as error:
        return _failed(context, batch, error)
    batch.end_offset = result.last_offset + 1
    log_start_offset = partition.log.log_start_offset
    index = batch.data.partition
    return _new_tuple(
        ProduceResult, (index, NO_ERROR, result.first_offset, result.append_time_ms, log_start_offset, None, (), None)
    )


def _failed(context: RequestContext, batch: _ProducedBatch, error: Exception) -> ProduceResult:
    code, message = context.code_of(error)
    context.count_error(code)
    topic, index = batch.topic, batch.data.partition
    leader = None
    if code in HINTED_ERRORS and context.header.api_version >= LEADER_HINTS_SINCE:
        leader = current_leader(context.broker.image, topic.name, topic.topic_id, index)
    record_errors: list[tuple[int, str]] = []
    if isinstance(error, RecordsRefused):
        # All partitions of the request share the records that may be named.
        partition_count = sum(len(topic.partitions) for topic in context.request.topics)
        if len(error.record_errors) <= NAMED_RECORDS_MAX // partition_count:
            record_errors = error.record_errors
    return ProduceResult(index, code, error_message=message, record_errors=record_errors, current_leader=leader)


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


def _reply(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
    topics = []
    leaders: set[int] = set()
    remaining = iter(batches)
    for name, topic_id, partitions in request.topics:
        results = []
        for batch in islice(remaining, len(partitions)):
            result = batch.result
            results.append(result)
            if result.current_leader is not None:
                leaders.add(result.current_leader[0])
        topics.append(_new_tuple(ProduceTopicResult, (name, topic_id, results)))
    _reply_topics(context, topics, leaders)


def _reply_topics(context: RequestContext, topics: list[ProduceTopicResult], leaders: set[int] | None = None) -> None:
    """``leaders`` are the brokers that the response names as leaders."""
    endpoints = leader_endpoints(context.broker.image, leaders, context.session.listener.name) if leaders else ()
    throttle_time_ms = 0 if context.usage is None else context.throttle_time_ms()
    context.reply_parts([encode_produce_response(context.header.api_version, topics, throttle_time_ms, endpoints)])


def _note_acknowledged(
    context: RequestContext, timing: RequestTiming, batches: list[_ProducedBatch], last: _ProducedBatch | None = None
) -> None:
    """``last`` is the batch that completed the answer, and only its partition may be among the slowest; None means any."""
    metrics = context.broker.request_metrics
    for batch in batches:
        partition = batch.partition
        if batch.result.error is NO_ERROR and partition is not None:
            metrics.acknowledged(partition.topic, partition.index, timing, is_last=last is None or batch is last)


class _Waiting:
    """A request with acks=all that waits for its partitions' high watermarks."""

    __slots__ = ("_batches", "_context", "_open_count", "_request", "_timer")

    def __init__(self, context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch]) -> None:
        self._context = context
        self._request = request
        self._batches = batches
        self._open_count = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        for batch in self._batches:
            if batch.result.error is NO_ERROR:
                batch.waiting = self
                self._open_count += 1
        if not self._open_count:
            _reply(self._context, self._request, self._batches)
            return
        for batch in self._batches:
            if batch.waiting is not None:
                assert batch.partition is not None
                batch.partition.wait_replicated(batch.end_offset, batch.replicated)
        if self._open_count:
            self._timer = self._context.broker.timers.schedule(max(self._request.timeout_ms, 0), self._time_out)

    def replicated(self, batch: _ProducedBatch, error: Exception | None) -> None:
        context = self._context
        if error is not None:
            self._set_error(batch, *context.code_of(error))
        self._open_count -= 1
        if not self._open_count:
            if self._timer is not None:
                self._timer.cancel()
            _reply(context, self._request, self._batches)
            if context.timing is not None:
                _note_acknowledged(context, context.timing, self._batches, batch)

    def _time_out(self) -> None:
        message = f"not replicated within {self._request.timeout_ms} ms; it still may be"
        for batch in self._batches:
            if batch.waiting is not None:
                batch.waiting = None
                self._set_error(batch, ErrorCode.REQUEST_TIMED_OUT, message)
        _reply(self._context, self._request, self._batches)

    def _set_error(self, batch: _ProducedBatch, code: ErrorCode, message: str) -> None:
        self._context.count_error(code)
        batch.result = ProduceResult(batch.data.partition, code, error_message=message)


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
    has_records=True,
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
