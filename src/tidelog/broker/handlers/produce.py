"""Produce: appends each partition's records, and answers when they are as durable as the client asked.

acks=0 gets no answer at all. acks=1 is answered when the leader has written the records, and acks=-1 (all) when the high
watermark has passed them on every partition, or after the request's timeout. A duplicate of an idempotent batch waits like its
original, which may not be durable yet. While the disk is far behind, requests that do not wait for it are answered later too
(``DiskBacklog``).

Every batch is validated before anything is written (``log.append_check``). Most are validated at once, and then nothing keeps
the request's frame. If that would take too long, the request waits in the ``ValidationQueue`` with copies of its records, and no
later request of its connection is handled. Partitions and settings are looked up again afterwards. The batches of a transaction
are then verified by its coordinator (``transactional_produce``), which may take time too.

What an idempotent producer has on the wire behind a batch that is refused for a passing reason is refused for the same reason
(``RefusedBatches``).

A request with many partitions (``LargeProduce``) is split into parts, which are handled one after the other as if each were a
request, and answered together.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any

from tidelog.broker.api import DECODED_ELEMENT_BYTES, Api, Pace, RequestContext, count_topics_and_partitions
from tidelog.broker.partitions import Partitions
from tidelog.broker.refused_batches import PartitionKey, is_refusal
from tidelog.broker.request_metrics import RequestTiming
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.broker.timers import Timer
from tidelog.broker.transactions.verification import PartitionCodes
from tidelog.broker.validation_queue import ValidationJob
from tidelog.controller.errors import ApiError
from tidelog.log.append_check import BatchValidation, ValidatedBatch, WorkBudget
from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.errors import OutOfOrderSequence, RecordsRefused
from tidelog.ports.steps import Steps, run_to_end
from tidelog.records.compression import CompressionType
from tidelog.records.header import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_MASK,
    BatchHeader,
    read_header,
)
from tidelog.replication.partition import AppendTracker, Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.primitives import ELEMENTS_MAX, ZERO_UUID
from tidelog.wire.produce import (
    ELEMENTS_PER_STEP,
    LEADER_HINTS_SINCE,
    RECORDS_BYTES_MIN,
    VERSIONS,
    NodeEndpoint,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    ProduceTopicResult,
    decode_produce_in_slices,
    decode_produce_request,
    encode_produce_response,
    encode_produce_response_in_slices,
)
from tidelog.wire.protocol import ApiKey

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
# The partitions and topics of a part of a large request, and the bytes of their records: some three milliseconds.
PARTITIONS_PER_PART = 64
BYTES_PER_PART = 2 * 1024 * 1024
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes two.
_new_tuple = tuple.__new__


def handle(context: RequestContext, request: ProduceRequest) -> Steps[None] | None:
    if context.usage is not None:
        context.broker.throttling.received(context)
    if context.is_large:
        return LargeProduce(context, request).start()
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        error = _unknown_acks(request.acks)
        context.count_error(error.code)
        _reply_topics(context, [_failed_topic(topic, error) for topic in request.topics])
        return None
    topics = request.topics
    is_single = len(topics) == 1 and len(topics[0].partitions) == 1
    _handle_part(context, request, _finish, () if is_single else _named_twice(topics))
    return None


def _unknown_acks(acks: int) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; only 0, 1 and -1 (all) are known")


def _named_twice(topics: list[ProduceTopic]) -> Collection[PartitionKey]:
    """Return the partitions that a request names more than once. A client could not tell which of their results is whose."""
    seen: set[PartitionKey] = set()
    twice: set[PartitionKey] = set()
    for topic in topics:
        identity = topic.name or topic.topic_id
        for data in topic.partitions:
            key = identity, data.partition
            (twice if key in seen else seen).add(key)
    return twice


def _handle_part(
    context: RequestContext, request: ProduceRequest, on_appended: "OnAppended", named_twice: Collection[PartitionKey]
) -> None:
    """Validate and append the records of a whole request, or of a part of a large one."""
    batches = _validate(context, request, named_twice)
    for batch in batches:
        if batch.validation is not None:
            _validate_later(context, request, batches, on_appended)
            return
    _submit(context, request, batches, on_appended)


_NO_TOPIC = ProduceTopic(None, None, [])


class _ProducedBatch:
    """One partition's records in a request: their validation, or the error that refused them, and then their result."""

    __slots__ = ("data", "end_offset", "error", "header", "partition", "result", "topic", "validated", "validation", "waiting")

    def __init__(self, topic: ProduceTopic, data: ProducePartition) -> None:
        self.topic = topic
        self.data = data
        self.partition: Partition | None = None
        self.validation: BatchValidation | None = None
        """None unless the records need more than a look and their validation is not complete."""
        self.validated: ValidatedBatch | None = None
        self.error: Exception | None = None
        self.header: BatchHeader | None = None
        """The header of a batch with an error, unless it cannot be read."""
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
        if self.validated is not None:
            self.header = self.validated.header
        elif self.validation is None:
            # Nothing was validated yet, so the records still lie in the frame.
            self.header = _header_of(self.data.records)
        self.validation = self.validated = None

    def keep(self) -> None:
        """Keep what is still needed of the request's frame, which is about to be overwritten."""
        if self.validation is not None:
            self.validation.keep()
        elif self.validated is not None and not isinstance(self.validated.view.obj, bytes):
            self.validated = self.validated._replace(view=memoryview(bytes(self.validated.view)))

    def forget_records(self) -> None:
        """The result is known, and the batch may have to wait for its replication."""
        self.topic, self.data = _NO_TOPIC, ProducePartition(self.data.partition, None)
        self.validated = self.error = self.header = None

    @property
    def key(self) -> PartitionKey:
        return self.topic.name or self.topic.topic_id, self.data.partition

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


def _header_of(records: memoryview | None) -> BatchHeader | None:
    """The header of records that may be anything."""
    if records is None or len(records) < HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
        return None
    return read_header(records)


OnAppended = Callable[[RequestContext, ProduceRequest, list[_ProducedBatch], int], None]
"""Gets the batches with their results, and the bytes that were not synced before they were appended."""


def _validate(context: RequestContext, request: ProduceRequest, named_twice: Collection[PartitionKey]) -> list[_ProducedBatch]:
    """Validate the batches as far as the budget of a request allows."""
    budget: WorkBudget | None = None
    partitions, version = context.broker.partitions, context.header.api_version
    batches = []
    for topic in request.topics:
        for data in topic.partitions:
            batch = _ProducedBatch(topic, data)
            batches.append(batch)
            try:
                if named_twice and (topic.name or topic.topic_id, data.partition) in named_twice:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the request names this partition more than once")
                batch.begin(partitions, version)
                if batch.validation is not None:
                    budget = budget or WorkBudget(RECORDS_AT_ONCE_MAX, CODEC_BYTES_AT_ONCE_MAX)
                    batch.advance(budget)
            except Exception as error:
                batch.refuse(error)
    return batches


def _validate_later(
    context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], on_appended: OnAppended
) -> None:
    """Validate the rest in slices and in a helper thread. Until then the connection is held: neither its later records nor their
    answers may overtake these."""
    for batch in batches:
        batch.keep()
    context.session.hold()
    _LaterValidation(context, request, batches, on_appended).begin()


class _LaterValidation:
    """A request whose batches are validated in the ``ValidationQueue``, while its connection is held."""

    __slots__ = ("_batches", "_context", "_job", "_on_appended", "_open_batches", "_request")

    def __init__(
        self, context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], on_appended: OnAppended
    ) -> None:
        self._context = context
        self._request = request
        self._batches = batches
        self._on_appended = on_appended
        self._open_batches = {batch.validation: batch for batch in batches if batch.validation is not None}
        self._job: ValidationJob | None = None

    def begin(self) -> None:
        context = self._context
        self._job = context.broker.validations.submit(list(self._open_batches), self._refused, self._validated)
        context.session.add_delayed(self._job)

    def _refused(self, validation: BatchValidation, error: Exception) -> None:
        self._open_batches[validation].refuse(error)

    def _validated(self) -> None:
        context, session = self._context, self._context.session
        try:
            _append_or_repeat(context, self._request, self._batches, self._on_appended)
        except Exception as error:
            _fail(context, error)
        finally:
            # The job refers to this.
            job, self._job = self._job, None
            assert job is not None
            session.remove_delayed(job)
            session.release()


def _fail(context: RequestContext, error: Exception) -> None:
    """Something unexpected went wrong in a callback that belongs to nobody else. The parts of a large request have been
    taken apart by then, so there is nothing left to answer for each partition."""
    if context.is_large:
        context.broker.report_unexpected(context.api.name, error)
        context.session.end("a large produce request failed")
    else:
        context.fail(error)


def _append_or_repeat(
    context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], on_appended: OnAppended
) -> None:
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
        _validate_later(context, request, batches, on_appended)
    else:
        _submit(context, request, batches, on_appended)


def _submit(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], on_appended: OnAppended) -> None:
    """All batches are validated or refused: append them."""
    if request.transactional_id is None:
        _append_all(context, request, batches, None, on_appended)
    else:
        _append_verified(context, request, batches, on_appended)


def _append_verified(
    context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], on_appended: OnAppended
) -> None:
    """Append the batches of a transaction once its coordinator has verified the partitions."""
    for batch in batches:
        batch.keep()
    remaining = iter(batches)
    topics = [
        topic._replace(partitions=[batch.kept_data for batch in islice(remaining, len(topic.partitions))])
        for topic in request.topics
    ]
    append = partial(_append_or_fail, context, request, batches, on_appended)
    context.broker.transactional_produce.submit(request._replace(topics=topics), context.header.api_version, append)


def _append_or_fail(
    context: RequestContext,
    request: ProduceRequest,
    batches: list[_ProducedBatch],
    on_appended: OnAppended,
    codes: PartitionCodes,
) -> None:
    """The request may have waited for its coordinator, and then an exception would reach nobody else."""
    try:
        _append_all(context, request, batches, codes, on_appended)
    except Exception as error:
        _fail(context, error)


def _append_all(
    context: RequestContext,
    request: ProduceRequest,
    batches: list[_ProducedBatch],
    codes: PartitionCodes | None,
    on_appended: OnAppended,
) -> None:
    unsynced_before = 0 if request.acks == ACKS_ALL else context.broker.partitions.appends.unsynced_bytes
    for batch in batches:
        batch.result = _append(context, batch, codes)
    on_appended(context, request, batches, unsynced_before)


def _finish(context: RequestContext, request: ProduceRequest, batches: list[_ProducedBatch], unsynced_before: int) -> None:
    """The records of the whole request are appended: answer, now or later."""
    if request.acks == ACKS_ALL:
        waiting = _Waiting(context, request, batches)
        waiting.add(batches)
        waiting.wait()
        return
    appends = context.broker.partitions.appends
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
        refused = context.session.refused_batches
        if refused is not None and refused.follows_refused(batch.key, validated.header):
            _check_known(partition, validated.header)
        result = partition.append(validated, context.request.acks == ACKS_ALL)
    except Exception as error:
        return _failed(context, batch, error)
    if refused is not None:
        refused.note_appended(batch.key, validated.header)
    batch.end_offset = result.last_offset + 1
    log_start_offset = partition.log.log_start_offset
    index = batch.data.partition
    return _new_tuple(
        ProduceResult, (index, NO_ERROR, result.first_offset, result.append_time_ms, log_start_offset, None, (), None)
    )


def _failed(context: RequestContext, batch: _ProducedBatch, error: Exception) -> ProduceResult:
    """The result of a batch that was not appended."""
    code, message = context.code_of(error)
    header = batch.header if batch.validated is None else batch.validated.header
    if header is not None and header.producer_id >= 0:
        told = _code_in_order(context, batch, header, code)
        if told is not code:
            code, message = told, f"an earlier batch of the producer was refused on this connection; send both again ({message})"
    context.count_error(code)
    topic, index = batch.topic, batch.data.partition
    leader = None
    if code in HINTED_ERRORS and context.header.api_version >= LEADER_HINTS_SINCE:
        leader = current_leader(context.broker.image, topic.name, topic.topic_id, index)
    record_errors: list[tuple[int, str]] = []
    if isinstance(error, RecordsRefused) and not context.is_large:
        # All partitions of the request share the records that may be named.
        partition_count = sum(len(topic.partitions) for topic in context.request.topics)
        if len(error.record_errors) <= NAMED_RECORDS_MAX // partition_count:
            record_errors = error.record_errors
    return ProduceResult(index, code, error_message=message, record_errors=record_errors, current_leader=leader)


def _code_in_order(context: RequestContext, batch: _ProducedBatch, header: BatchHeader, code: ErrorCode) -> ErrorCode:
    """The code for a batch of an idempotent producer that failed with ``code``: what was refused before it is missing."""
    session = context.session
    refused = session.refused_batches
    if refused is None:
        if session.is_closed or not is_refusal(code):
            return code
        refused = session.remember_refused_batches()
    return refused.note_failed(batch.key, header, code)


def _check_known(partition: Partition, header: BatchHeader) -> None:
    """Raise if the log would take the batch for the producer's first one."""
    if partition.log.producers.entry(header.producer_id) is None:
        raise OutOfOrderSequence(
            f"{partition.log.name} does not have the batch of producer {header.producer_id} that comes before sequence "
            f"{header.base_sequence}"
        )


def _check_verdict(partition: Partition, codes: PartitionCodes | None) -> None:
    """Raise if the coordinator did not confirm the transaction: nobody would ever end it, and read_committed readers would wait
    forever."""
    if codes is None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        raise ApiError(code, "records of a transaction in a request without a transactional id")
    code = codes.get((partition.topic, partition.index), NO_ERROR)
    if code is not NO_ERROR:
        raise ApiError(code, f"{partition.log.name} could not be verified as part of the transaction: {code.message}")


def _failed_topic(topic: ProduceTopic, error: ApiError) -> ProduceTopicResult:
    results = [ProduceResult(data.partition, error.code, error_message=str(error)) for data in topic.partitions]
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
    endpoints = _endpoints(context, leaders)
    throttle_time_ms = 0 if context.usage is None else context.throttle_time_ms()
    context.reply_parts([encode_produce_response(context.header.api_version, topics, throttle_time_ms, endpoints)])


def _endpoints(context: RequestContext, leaders: set[int] | None) -> Sequence[NodeEndpoint]:
    return leader_endpoints(context.broker.image, leaders, context.session.listener.name) if leaders else ()


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

    __slots__ = ("_batches", "_context", "_is_over", "_large", "_open_count", "_request", "_timer")

    def __init__(
        self,
        context: RequestContext,
        request: ProduceRequest,
        batches: list[_ProducedBatch],
        large: "LargeProduce | None" = None,
    ) -> None:
        """A large request adds to ``batches`` until ``wait`` is called, and answers by itself."""
        self._context = context
        self._request = request
        self._batches = batches
        self._large = large
        # The batches that are not replicated, and one more until all are appended.
        self._open_count = 1
        self._is_over = False
        self._timer: Timer | None = None

    def add(self, batches: list[_ProducedBatch]) -> None:
        """Wait for those that were just appended."""
        for batch in batches:
            if batch.result.error is NO_ERROR:
                self._open_count += 1
                batch.waiting = self
                assert batch.partition is not None
                batch.partition.wait_replicated(batch.end_offset, batch.replicated)

    def wait(self) -> None:
        """All records of the request are appended."""
        self._open_count -= 1
        if self._open_count:
            self._timer = self._context.broker.timers.schedule(max(self._request.timeout_ms, 0), self._time_out)
        else:
            self._answer(None)

    def replicated(self, batch: _ProducedBatch, error: Exception | None) -> None:
        if error is not None:
            self._set_error(batch, *self._context.code_of(error))
        self._open_count -= 1
        if not self._open_count and not self._is_over:
            if self._timer is not None:
                self._timer.cancel()
            self._answer(batch)

    def _answer(self, last: _ProducedBatch | None) -> None:
        self._is_over = True
        context = self._context
        if self._large is not None:
            self._large.reply(last)
            return
        _reply(context, self._request, self._batches)
        if context.timing is not None:
            _note_acknowledged(context, context.timing, self._batches, last)

    def _time_out(self) -> None:
        self._is_over = True
        if self._large is not None:
            self._context.continue_in_slices(self._give_up())
        else:
            run_to_end(self._give_up())

    def _give_up(self) -> Steps[None]:
        message = f"not replicated within {self._request.timeout_ms} ms; it still may be"
        pace = Pace()
        for batch in self._batches:
            if batch.waiting is not None:
                batch.waiting = None
                self._set_error(batch, ErrorCode.REQUEST_TIMED_OUT, message)
            if pace.is_pause_due():
                yield
        if self._large is not None:
            self._large.reply(None)
        else:
            _reply(self._context, self._request, self._batches)

    def _set_error(self, batch: _ProducedBatch, code: ErrorCode, message: str) -> None:
        self._context.count_error(code)
        batch.result = ProduceResult(batch.data.partition, code, error_message=message)


class LargeProduce:
    """A request with so many partitions that it would hold the loop, and with it every other client.

    It is handled in parts of ``PARTITIONS_PER_PART``, and between two of them other clients are served. A part may have to wait
    for its validation or for the coordinator of its transaction; meanwhile the session is held, because no later request may
    overtake the parts that follow. When all are appended nothing of the frame is left, and the memory is returned: followers
    fetch these records, and their requests may need it.

    If the connection ends in the middle, the remaining parts are not appended. None of the records was acknowledged."""

    __slots__ = (
        "_batches",
        "_context",
        "_counts",
        "_is_part_open",
        "_is_waiting_for_part",
        "_named_twice",
        "_request",
        "_topics",
        "_unsynced_before",
        "_waiting",
    )

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        # What is left of the request, the next one at the end, so that the parts can be cut off without moving the rest.
        self._topics = request.topics
        # Of each topic, its name or its id, and how many partitions the request named.
        self._counts: list[tuple[str | None, bytes | None, int]] = []
        self._batches: list[_ProducedBatch] = []
        self._waiting = _Waiting(context, request, self._batches, self) if request.acks == ACKS_ALL else None
        self._named_twice: set[PartitionKey] = set()
        self._unsynced_before = 0
        # Whether the part that was begun last is not appended yet, and whether that is why no other part is begun.
        self._is_part_open = False
        self._is_waiting_for_part = False

    def start(self) -> Steps[None]:
        self._context.session.hold()
        self._unsynced_before = self._context.broker.partitions.appends.unsynced_bytes
        return self._guarded(self._begin())

    def _guarded(self, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        except Exception as error:
            _fail(self._context, error)

    def _begin(self) -> Steps[None]:
        pace = Pace()
        seen: dict[str | bytes | None, set[int]] = {}
        for topic in self._topics:
            identity = topic.name or topic.topic_id
            indexes = seen.setdefault(identity, set())
            for data in topic.partitions:
                if data.partition in indexes:
                    self._named_twice.add((identity, data.partition))
                indexes.add(data.partition)
                if pace.is_pause_due():
                    yield
            self._counts.append((topic.name, topic.topic_id, len(topic.partitions)))
            topic.partitions.reverse()
            if pace.is_pause_due():
                yield
        self._topics.reverse()
        yield
        yield from self._handle_parts()

    def _handle_parts(self) -> Steps[None]:
        while self._topics:
            part = self._request._replace(topics=self._next_topics())
            self._is_part_open = True
            if part.acks in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
                _handle_part(self._context, part, self._appended, self._named_twice)
            else:
                self._refuse(part)
            if self._is_part_open:
                self._is_waiting_for_part = True
                return
            yield
        self._finish()

    def _next_topics(self) -> list[ProduceTopic]:
        """Cut off the next part."""
        topics: list[ProduceTopic] = []
        count = size = 0
        while self._topics and count < PARTITIONS_PER_PART and size < BYTES_PER_PART:
            topic = self._topics[-1]
            partitions: list[ProducePartition] = []
            while topic.partitions and count < PARTITIONS_PER_PART and size < BYTES_PER_PART:
                data = topic.partitions.pop()
                partitions.append(data)
                count += 1
                size += 0 if data.records is None else len(data.records)
            topics.append(topic._replace(partitions=partitions))
            if not topic.partitions:
                self._topics.pop()
                count += 1
        return topics

    def _refuse(self, part: ProduceRequest) -> None:
        batches = [_ProducedBatch(topic, data) for topic in part.topics for data in topic.partitions]
        for batch in batches:
            batch.result = _failed(self._context, batch, _unknown_acks(part.acks))
        self._appended(self._context, part, batches, 0)

    def _appended(self, context: RequestContext, _: ProduceRequest, batches: list[_ProducedBatch], __: int) -> None:
        self._is_part_open = False
        self._batches += batches
        if self._waiting is not None:
            self._waiting.add(batches)
        for batch in batches:
            batch.forget_records()
        if self._is_waiting_for_part:
            self._is_waiting_for_part = False
            context.continue_in_slices(self._guarded(self._handle_parts()))

    def _finish(self) -> None:
        """All records are appended."""
        context, request = self._context, self._request
        context.session.release()
        context.return_memory()
        appends, backlog = context.broker.partitions.appends, context.broker.backlog
        if self._waiting is not None:
            self._waiting.wait()
        elif appends.unsynced_bytes > max(self._unsynced_before, backlog.bytes_max):
            backlog.hold(context, request.timeout_ms, self.reply)
        else:
            self.reply()

    def reply(self, last: _ProducedBatch | None = None) -> None:
        """``last`` is the batch whose replication the answer waited for last."""
        if self._request.acks == ACKS_NONE:
            _answer(self._context, self._request, self._batches)
        else:
            self._context.continue_in_slices(self._guarded(self._reply(last)))

    def _reply(self, last: _ProducedBatch | None) -> Steps[None]:
        context, batches = self._context, self._batches
        pace = Pace()
        leaders: set[int] = set()
        topics = []
        remaining = iter(batches)
        for name, topic_id, count in self._counts:
            results = []
            for batch in islice(remaining, count):
                results.append(batch.result)
                if batch.result.current_leader is not None:
                    leaders.add(batch.result.current_leader[0])
                if pace.is_pause_due():
                    yield
            topics.append(ProduceTopicResult(name, topic_id, results))
            if pace.is_pause_due():
                yield
        endpoints = _endpoints(context, leaders)
        pieces = yield from encode_produce_response_in_slices(
            context.header.api_version, topics, context.throttle_time_ms(), endpoints
        )
        context.reply_parts([*pieces])
        # Freeing all of this takes as long as a slice does.
        while batches:
            freed = batches[-ELEMENTS_PER_STEP:]
            del batches[-ELEMENTS_PER_STEP:]
            if context.timing is not None:
                _note_acknowledged(context, context.timing, freed, last)
            yield
        for topic in topics:
            while topic.partitions:
                del topic.partitions[-8 * ELEMENTS_PER_STEP :]
                yield


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
    decode_in_slices=decode_produce_in_slices,
    has_records=True,
    count_elements=count_topics_and_partitions,
    decoded_bytes_per_byte_max=DECODED_ELEMENT_BYTES // RECORDS_BYTES_MIN + 1,
    elements_max=ELEMENTS_MAX,
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
        held = _HeldAnswer(context, answer)
        self._commit.wait(log, log.log_end_offset, held.synced)
        held.limit(max(timeout_ms, 0))


class _HeldAnswer:
    """An answer that waits for the disk, or until its time is up."""

    __slots__ = ("_answer", "_context", "_timer")

    def __init__(self, context: "RequestContext", answer: Callable[[], None]) -> None:
        self._context = context
        self._answer: Callable[[], None] | None = answer
        self._timer: Timer | None = None

    def limit(self, timeout_ms: int) -> None:
        if self._answer is not None:
            self._timer = self._context.broker.timers.schedule(timeout_ms, self._send)

    def synced(self, error: Exception | None) -> None:  # noqa: ARG002 - if the log went offline, the next request gets the error
        self._send()

    def _send(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        answer()
        self._context.session.resume()
