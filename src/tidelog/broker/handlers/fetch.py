"""Fetch: sends slices of segment files up to the limits, or waits until there is something to send.

The client listener serves consumers only: a request that claims to be a replica is refused, so that nobody moves a high watermark
by pretending. The debugging replica, a tool that compares copies, is a consumer that may also read what this broker only follows,
as far as the leader has told it to be committed. On the listener between brokers a follower reads up to the log end, and its
request tells the leader how far its own copy is durable (``Partition.read_as_follower``). It waits for the log end and not for
the high watermark.

Consumers that wait for records send the same bytes again and again, often the same as other consumers, and get the same bytes
back. So small requests for a few partitions are decoded once, and empty responses about one partition are encoded once.

A fetch that waits (``DelayedFetch``) is answered when there are enough bytes, when its time is up, or when one of its partitions
has an error. While it waits it costs nothing: each of its partitions calls it when its watermark moves. A fetch that wants many
bytes from a thousand partitions is called a thousand times before it has them, so then it reads only the partition that moved,
until there may be enough.

A fetch of many partitions (``LargeFetch``) is read and answered in slices (``WorkSlices``). While it waits, it keeps the results
that have no records, and reads a partition again only when that moves.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.api import LARGE_WAIT_MS_MAX, Api, RequestContext, count_topics_and_partitions
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.fetch_sessions import NO_SESSION, FetchSession, PartitionKey, SessionChoice
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.config.listeners import ListenerRole
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import Isolation, LogRead, cold_read, read
from tidelog.ports.steps import Steps
from tidelog.replication.partition import FetchWaiter, Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    LEADER_HINTS_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopic,
    FetchTopicResult,
    decode_fetch_in_slices,
    decode_fetch_request,
    encode_fetch_in_slices,
    encode_fetch_response,
)
from tidelog.wire.primitives import ELEMENTS_MAX, ZERO_UUID
from tidelog.wire.produce import NodeEndpoint
from tidelog.wire.protocol import ApiKey, RequestHeader

if TYPE_CHECKING:
    from tidelog.broker.timers import Timer

READ_COMMITTED = 1
# Requests and empty responses that are cached: those of a few partitions.
CACHED_BYTES_MAX = 256
CACHED_MAX = 1024
# Thousands of long polls end all the time. Those that end within a few milliseconds of each other end together, because waking up
# for each of them would cost as much as answering it.
COARSE_WAIT_MS_MIN = 100
COARSE_STEP_MS = 10
# A fetch session with more partitions is read in slices.
SMALL_SESSION_PARTITIONS_MAX = 256
PARTITIONS_PER_STEP = 32
# Where to read is found in at most so many trips to a helper thread: for the index, for the batch, and for what was evicted
# meanwhile.
COLD_READS_MAX = 3
# The partitions with records in one response. Each may hold a file open until the client has read them.
SLICES_MAX = 1_000
# Who reads without being a replica.
READERS = (CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID)
# Calls tuple's own constructor: the one that NamedTuple generates is Python code, and every request makes three.
_new_tuple = tuple.__new__


class RequestedPartition(NamedTuple):
    """One partition of a fetch request, with the partition that was found or the error."""

    topic: str | None
    topic_id: bytes | None
    partition_index: int
    wanted: FetchPartition
    partition: Partition | None
    error: tuple[ErrorCode, str] | None
    follower: tuple[int, int] | None
    """(broker id, broker epoch) of the follower that fetches; None for a consumer."""
    copy: PartitionLog | None = None
    """For the debugging replica: the log of a partition that another broker leads."""

    @property
    def bytes_max(self) -> int:
        return self.wanted.bytes_max

    def add_waiter(self, waiter: FetchWaiter) -> None:
        if self.partition is not None:
            add = self.partition.add_fetch_waiter if self.follower is None else self.partition.add_follower_waiter
            add(waiter)

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        if self.partition is not None:
            remove = self.partition.remove_fetch_waiter if self.follower is None else self.partition.remove_follower_waiter
            remove(waiter)


class ReadSet(NamedTuple):
    results: list[FetchResult]
    """The results, in the order of the request."""
    bytes_read: int
    has_error: bool
    """Whether a partition has an error, or a follower must hear that its history differs: the answer does not wait."""


def read_partitions(
    wanted: list[RequestedPartition], bytes_max: int, isolation: Isolation, on_unexpected: Callable[[Exception], None]
) -> ReadSet:
    """Read each partition once. The first one with data may exceed the limits by its first batch, so that a reader always makes
    progress."""
    results = []
    remaining = bytes_max
    bytes_read = 0
    has_error = False
    for want in wanted:
        result, length = _read_one(want, min(remaining, want.bytes_max), isolation, bytes_read == 0, on_unexpected)
        results.append(result)
        bytes_read += length
        remaining = max(0, remaining - length)
        has_error = has_error or _is_urgent(result)
    return _new_tuple(ReadSet, (results, bytes_read, has_error))


def _read_one(
    want: RequestedPartition, bytes_max: int, isolation: Isolation, at_least_one: bool, on_unexpected: Callable[[Exception], None]
) -> tuple[FetchResult, int]:
    partition = want.partition
    log = partition.log if partition is not None else want.copy
    if log is None:
        code = want.error[0] if want.error is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return FetchResult(want.partition_index, code), 0
    wanted = want.wanted
    try:
        if partition is not None:
            if want.follower is not None:
                return _read_as_follower(partition, want.follower, wanted, bytes_max, at_least_one)
            partition.check_epoch(wanted.current_leader_epoch)
        found: LogRead = read(log, wanted.fetch_offset, bytes_max, isolation, at_least_one)
    except Exception as error:
        code, _ = error_code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            on_unexpected(error)
        return FetchResult(want.partition_index, code, log_start_offset=log.log_start_offset), 0
    aborted = None
    if isolation is Isolation.LAST_STABLE:
        aborted = [(producer_id, first_offset) for producer_id, first_offset, _, _ in found.aborted]
    records = found.records
    result = FetchResult(
        want.partition_index,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        records,
    )
    return result, records.length if records is not None else 0


def _read_as_follower(
    partition: Partition, follower: tuple[int, int], wanted: FetchPartition, bytes_max: int, at_least_one: bool
) -> tuple[FetchResult, int]:
    found = partition.read_as_follower(follower, wanted, bytes_max, at_least_one)
    log = partition.log
    result = FetchResult(
        wanted.partition,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        records=found.records,
        diverging_epoch=found.diverging_epoch,
    )
    return result, found.records.length if found.records is not None else 0


def _is_urgent(result: FetchResult) -> bool:
    return result.error is not ErrorCode.NONE or result.diverging_epoch is not None


class FetchLimits(NamedTuple):
    bytes_min: int
    bytes_max: int
    isolation: Isolation


def handle(context: RequestContext, request: FetchRequest) -> Steps[None] | None:
    if request.replica_id not in READERS and context.session.listener.role is not ListenerRole.INTER_BROKER:
        _reply_error(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return None
    if context.is_large:
        return _handle_large(context, request)
    broker = context.broker
    choice = broker.fetch_sessions.choose(request, context.header.api_version >= TOPIC_IDS_SINCE)
    if choice.error is not ErrorCode.NONE:
        _reply_error(context, choice.error)
        return None
    if choice.session is not None and len(choice.session.partitions) > SMALL_SESSION_PARTITIONS_MAX:
        return LargeFetch(context, choice, _limits(context, request)).steps(request)
    wanted = _wanted(context, request, choice)
    if request.replica_id == DEBUGGING_REPLICA_ID:
        wanted = [_with_copy(context, want) for want in wanted]
    cold = _cold_reads(wanted)
    if cold is not None:
        return _read_cold(context, request, choice, wanted, cold)
    _read_and_answer(context, request, choice, wanted)
    return None


def _read_cold(
    context: RequestContext,
    request: FetchRequest,
    choice: SessionChoice,
    wanted: list[RequestedPartition],
    cold: Callable[[], object],
) -> Steps[None]:
    """Find where to read in a helper thread: first the indexes, then the batches that they lead to."""
    reads: Callable[[], object] | None = cold
    for _ in range(COLD_READS_MAX):
        if reads is None:
            break
        with suppress(OSError):  # Reading again reports it.
            yield reads
        reads = _cold_reads(wanted)
    _read_and_answer(context, request, choice, wanted)


def _cold_reads(wanted: list[RequestedPartition]) -> Callable[[], object] | None:
    """Return a call that brings into memory whatever reading these partitions would wait for; None if nothing is missing."""
    found = [read for want in wanted if (read := _cold_read(want)) is not None]
    return partial(_call_all, found) if found else None


def _cold_read(want: RequestedPartition) -> Callable[[], object] | None:
    log = want.partition.log if want.partition is not None else want.copy
    try:
        return None if log is None else cold_read(log, want.wanted.fetch_offset)
    except Exception:
        return None  # Whatever is wrong with the log, reading it finds out and reports it.


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        with suppress(OSError):
            call()


def _read_and_answer(
    context: RequestContext, request: FetchRequest, choice: SessionChoice, wanted: list[RequestedPartition]
) -> None:
    limits = _limits(context, request)
    found = read_partitions(wanted, limits.bytes_max, limits.isolation, context.broker.on_unexpected_error)
    is_enough = found.bytes_read >= limits.bytes_min or found.has_error
    if is_enough or request.wait_ms_max <= 0 or not wanted:
        _reply(context, choice, wanted, found)
    else:
        DelayedFetch(context, choice, wanted, limits, found).start(request.wait_ms_max)


def _handle_large(context: RequestContext, request: FetchRequest) -> Steps[None]:
    sessions = context.broker.fetch_sessions
    choice = yield from sessions.choose_in_slices(request, context.header.api_version >= TOPIC_IDS_SINCE)
    if choice.error is not ErrorCode.NONE:
        _reply_error(context, choice.error)
    else:
        yield from LargeFetch(context, choice, _limits(context, request)).steps(request)


def _limits(context: RequestContext, request: FetchRequest) -> FetchLimits:
    bytes_max = min(request.bytes_max, context.broker.config.fetch_bytes_max)
    if context.usage is not None:
        bytes_max = context.broker.throttling.fetch_bytes_max(context, bytes_max)
    isolation = Isolation.LAST_STABLE if request.isolation_level == READ_COMMITTED else Isolation.HIGH_WATERMARK
    if request.replica_id not in READERS:
        isolation = Isolation.LOG_END
    # A minimum above what the response can hold would never be reached.
    return _new_tuple(FetchLimits, (min(request.bytes_min, bytes_max), bytes_max, isolation))


def _wanted(context: RequestContext, request: FetchRequest, choice: SessionChoice) -> list[RequestedPartition]:
    """A partition that is named twice is read once, as in Kafka, and the last entry counts."""
    if choice.is_incremental and choice.session is not None:
        partitions = choice.session.partitions
        follower = _follower(request)
        return [_find(context, name, topic_id, known.wanted, follower) for (name, topic_id, _), known in partitions.items()]
    topics, follower = request.topics, _follower(request)
    if not _has_repeats(topics):
        return [_find(context, topic.name, topic.topic_id, want, follower) for topic in topics for want in topic.partitions]
    wanted = {
        (topic.name, topic.topic_id, want.partition): (topic.name, topic.topic_id, want)
        for topic in topics
        for want in topic.partitions
    }
    return [_find(context, *which, follower) for which in wanted.values()]


def _has_repeats(topics: list[FetchTopic]) -> bool:
    if len(topics) == 1:
        partitions = topics[0].partitions
        return len(partitions) > 1 and len({want.partition for want in partitions}) < len(partitions)
    if len({(topic.name, topic.topic_id) for topic in topics}) < len(topics):
        return True
    return any(len({want.partition for want in topic.partitions}) < len(topic.partitions) for topic in topics)


def _follower(request: FetchRequest) -> tuple[int, int] | None:
    return None if request.replica_id in READERS else (request.replica_id, request.replica_epoch)


def _find(
    context: RequestContext, name: str | None, topic_id: bytes | None, want: FetchPartition, follower: tuple[int, int] | None
) -> RequestedPartition:
    partition, error = None, None
    try:
        partition = context.broker.partitions.find(name, topic_id, want.partition)
    except Exception as failure:
        error = context.code_of(failure)
    return _new_tuple(RequestedPartition, (name, topic_id, want.partition, want, partition, error, follower, None))


def _with_copy(context: RequestContext, want: RequestedPartition) -> RequestedPartition:
    if want.partition is not None:
        return want
    copy = context.broker.partitions.find_copy(want.topic, want.topic_id, want.partition_index)
    return want if copy is None else want._replace(error=None, copy=copy)


def _named_once(request: FetchRequest) -> Steps[dict[PartitionKey, FetchPartition]]:
    named: dict[PartitionKey, FetchPartition] = {}
    number = 0
    for topic in request.topics:
        for want in topic.partitions:
            named[topic.name, topic.topic_id, want.partition] = want
            number += 1
            if not number % (8 * PARTITIONS_PER_STEP):
                yield
    return named


class DelayedFetch:
    """A fetch that waits. It is registered with its partitions from ``start`` until it is answered or cancelled. It drops its
    references afterwards, so that nothing is left for the cycle collector."""

    __slots__ = (
        "_bytes_found",
        "_choice",
        "_context",
        "_found",
        "_is_done",
        "_lengths",
        "_limits",
        "_places",
        "_timer",
        "_wanted",
    )

    def __init__(
        self,
        context: RequestContext,
        choice: SessionChoice,
        wanted: list[RequestedPartition],
        limits: FetchLimits,
        found: ReadSet,
    ) -> None:
        """``found`` is what there was when the request arrived, which was not enough."""
        self._context = context
        self._choice = choice
        self._wanted = wanted
        self._limits = limits
        # The response to send if time runs out and nothing has moved; None if the partitions have to be read again. A response
        # with records is not kept: its slices keep files open, and a deletion does not move a watermark.
        self._found: ReadSet | None = None if found.bytes_read else found
        self._is_done = False
        self._timer: Timer | None = None
        # The bytes that each requested partition has by itself, and each partition's positions in the request. Filled when
        # needed.
        self._lengths: list[int] = []
        self._places: dict[Partition, list[int]] = {}
        self._bytes_found = 0

    def start(self, wait_ms_max: int) -> None:
        broker = self._context.broker
        self._context.session.add_delayed(self)
        for want in self._wanted:
            want.add_waiter(self)
        if wait_ms_max >= COARSE_WAIT_MS_MIN:
            # This fires a few milliseconds late, together with others.
            wait_ms_max += -(broker.clock.monotonic_ms() + wait_ms_max) % COARSE_STEP_MS
        self._timer = broker.timers.schedule(wait_ms_max, self._time_out)

    def on_data(self, partition: Partition) -> None:
        """Answer if there is enough now. A partition that has gone away is an error, which the reader should get at once."""
        self._found = None
        if self._is_done or (self._limits.bytes_min > 1 and not self._may_be_enough(partition)):
            return
        found = self._read()
        if found.bytes_read >= self._limits.bytes_min or found.has_error:
            self._complete(found)

    def _may_be_enough(self, partition: Partition) -> bool:
        """A cheap upper bound: False is certain, True needs a full read in the order of the request and within the limits."""
        if not self._lengths:
            self._lengths = [0] * len(self._wanted)
            for place, want in enumerate(self._wanted):
                if want.partition is not None:
                    self._places.setdefault(want.partition, []).append(place)
            moved: Iterable[int] = range(len(self._wanted))
        else:
            moved = self._places.get(partition, ())
        for place in moved:
            want = self._wanted[place]
            bytes_max = min(self._limits.bytes_max, want.bytes_max)
            result, length = _read_one(want, bytes_max, self._limits.isolation, True, self._context.broker.on_unexpected_error)
            if _is_urgent(result):
                return True
            self._bytes_found += length - self._lengths[place]
            self._lengths[place] = length
        return self._bytes_found >= self._limits.bytes_min

    def cancel(self) -> None:
        """Called when nobody waits for the response any more."""
        if not self._is_done:
            self._leave()

    def _read(self) -> ReadSet:
        return read_partitions(
            self._wanted, self._limits.bytes_max, self._limits.isolation, self._context.broker.on_unexpected_error
        )

    def _time_out(self) -> None:
        self._complete(self._found if self._found is not None else self._read())

    def _complete(self, found: ReadSet) -> None:
        self._leave()
        self._context.session.remove_delayed(self)
        _reply(self._context, self._choice, self._wanted, found)

    def _leave(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        for want in self._wanted:
            want.remove_waiter(self)


class LargeFetch:
    """A fetch of many partitions. All of its work is done in slices: the first read, every read after a partition moved, and the
    response. Like a ``DelayedFetch`` it drops its references when it is done."""

    __slots__ = (
        "_bytes_found",
        "_choice",
        "_context",
        "_has_error",
        "_is_done",
        "_is_time_up",
        "_is_working",
        "_lengths",
        "_limits",
        "_moved",
        "_places",
        "_results",
        "_timer",
        "_wanted",
    )

    def __init__(self, context: RequestContext, choice: SessionChoice, limits: FetchLimits) -> None:
        self._context = context
        self._choice = choice
        self._limits = limits
        self._wanted: list[RequestedPartition] = []
        # The result for each requested partition, without records while the fetch waits, and the bytes that it has by itself.
        self._results: list[FetchResult] = []
        self._lengths: dict[int, int] = {}
        self._bytes_found = 0
        self._has_error = False
        # The positions of each partition in the request, and the partitions that moved since they were read.
        self._places: dict[Partition, int] = {}
        self._moved: dict[Partition, None] = {}
        self._is_working = True
        self._is_time_up = False
        self._is_done = False
        self._timer: Timer | None = None

    def steps(self, request: FetchRequest) -> Steps[None]:
        yield from self._find_all(request)
        yield from self._read_in_order(range(len(self._wanted)))
        wait_ms = min(request.wait_ms_max, LARGE_WAIT_MS_MAX)
        if self._is_enough() or wait_ms <= 0 or not self._wanted:
            yield from self._answer()
            return
        # Slices keep files open, so records are read again when there is enough.
        for place in self._lengths:
            self._results[place] = self._results[place]._replace(records=None)
        context = self._context
        context.session.add_delayed(self)
        self._timer = context.broker.timers.schedule(wait_ms, self.answer_now)
        if self._choice.session is not None:
            self._choice.session.wait(self)
        for place, want in enumerate(self._wanted):
            if want.partition is not None:
                self._places[want.partition] = place
                want.add_waiter(self)
                # It may have moved before it had a waiter.
                self._moved[want.partition] = None
            if not place % PARTITIONS_PER_STEP:
                yield
        yield from self._go_on()

    def on_data(self, partition: Partition) -> None:
        if not self._is_done:
            self._moved[partition] = None
            self._wake()

    def answer_now(self) -> None:
        """Answer with what there is: the time is up, or a later fetch of the same session has arrived."""
        self._is_time_up = True
        self._wake()

    def cancel(self) -> None:
        """Called when nobody waits for the response any more."""
        self._is_done = True
        self._leave()
        for place in self._places.values():
            self._wanted[place].remove_waiter(self)

    def _wake(self) -> None:
        if not self._is_working and not self._is_done:
            self._is_working = True
            self._context.continue_in_slices(self._go_on())

    def _go_on(self) -> Steps[None]:
        # What moves meanwhile must not keep an answer from leaving that is due.
        while self._moved and not (self._is_enough() or self._is_time_up):
            moved, self._moved = self._moved, {}
            for number, partition in enumerate(moved):
                self._read_alone(self._places[partition])
                if not number % PARTITIONS_PER_STEP:
                    yield
        if not (self._is_enough() or self._is_time_up):
            self._is_working = False
            return
        self._is_done = True
        self._leave()
        self._context.session.remove_delayed(self)
        for number, place in enumerate(self._places.values()):
            self._wanted[place].remove_waiter(self)
            if not number % PARTITIONS_PER_STEP:
                yield
        places = sorted(self._lengths)
        self._bytes_found = 0
        yield from self._read_in_order(places)
        yield from self._answer()

    def _is_enough(self) -> bool:
        return self._has_error or self._bytes_found >= self._limits.bytes_min

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._choice.session is not None:
            self._choice.session.stop_waiting(self)

    def _find_all(self, request: FetchRequest) -> Steps[None]:
        if self._choice.is_incremental and self._choice.session is not None:
            which = {key: known.wanted for key, known in self._choice.session.partitions.items()}
        else:
            which = yield from _named_once(request)
        for number, key in enumerate(list(which)):
            wanted = which.pop(key)
            found = _find(self._context, key[0], key[1], wanted, _follower(request))
            self._wanted.append(_with_copy(self._context, found) if request.replica_id == DEBUGGING_REPLICA_ID else found)
            self._results.append(FetchResult(wanted.partition, ErrorCode.NONE))
            if not number % PARTITIONS_PER_STEP:
                yield

    def _read_in_order(self, places: Iterable[int]) -> Steps[None]:
        """Read within the limits of the response, like ``read_partitions``."""
        remaining = self._limits.bytes_max
        for number, place in enumerate(places):
            want = self._wanted[place]
            if len(self._lengths) >= SLICES_MAX and place not in self._lengths:
                # The others have their turn with the next fetch, as if there were no bytes left.
                remaining = 0
            for _ in range(COLD_READS_MAX if remaining else 0):
                cold = _cold_read(want)
                if cold is None:
                    break
                with suppress(OSError):  # Reading again reports it.
                    yield cold
            length = self._read(place, min(remaining, want.bytes_max), at_least_one=self._bytes_found == 0)
            if length:
                self._lengths[place] = length
                self._bytes_found += length
                remaining = max(0, remaining - length)
            else:
                self._lengths.pop(place, None)
            if not number % PARTITIONS_PER_STEP:
                yield

    def _read_alone(self, place: int) -> None:
        """Read a partition that moved, as if it were the only one."""
        self._bytes_found -= self._lengths.pop(place, 0)
        length = self._read(place, min(self._limits.bytes_max, self._wanted[place].bytes_max), at_least_one=True)
        self._results[place] = self._results[place]._replace(records=None)
        if length:
            self._lengths[place] = length
            self._bytes_found += length

    def _read(self, place: int, bytes_max: int, at_least_one: bool) -> int:
        on_unexpected = self._context.broker.on_unexpected_error
        result, length = _read_one(self._wanted[place], bytes_max, self._limits.isolation, at_least_one, on_unexpected)
        self._results[place] = result
        self._has_error = self._has_error or _is_urgent(result)
        return length

    def _answer(self) -> Steps[None]:
        context, choice = self._context, self._choice
        if _is_throttled(context, choice, self._bytes_found):
            return
        topics: Topics = {}
        leaders: set[int] = set()
        for start in range(0, len(self._wanted), PARTITIONS_PER_STEP):
            end = start + PARTITIONS_PER_STEP
            leaders |= _add_results(context, choice, self._wanted[start:end], self._results[start:end], topics)
            yield
        results = _topic_results(topics)
        body = yield from encode_fetch_in_slices(
            context.header.api_version,
            results,
            session_id=choice.session.id if choice.session is not None else NO_SESSION,
            node_endpoints=_endpoints(context, leaders),
        )
        context.reply_parts(body)
        # Freeing all of this takes as long as a slice does.
        requested: list[list[Any]] = [topic.partitions for topic in context.request.topics]
        lists: list[list[Any]] = [self._wanted, self._results, *requested, *[topic.partitions for topic in results]]
        for freed in lists:
            while freed:
                del freed[-8 * PARTITIONS_PER_STEP :]
                yield


def _is_throttled(context: RequestContext, choice: SessionChoice, bytes_read: int) -> bool:
    """Whether the client's quota is used up. Then this has answered."""
    if context.usage is None:
        return False
    throttle_time_ms = context.broker.throttling.answer_fetch(context, bytes_read)
    if throttle_time_ms:
        _reply_throttled(context, choice, throttle_time_ms)
    return bool(throttle_time_ms)


def _reply(context: RequestContext, choice: SessionChoice, wanted: list[RequestedPartition], found: ReadSet) -> None:
    if context.usage is not None and _is_throttled(context, choice, found.bytes_read):
        return
    version = context.header.api_version
    if choice.session is None and len(wanted) == 1 and not (found.bytes_read or found.has_error or found.results[0].aborted):
        result = found.results[0]
        if result.aborted is not None:
            result = result._replace(aborted=())  # A list is not hashable.
        context.reply_parts([_encode_empty(version, wanted[0].topic, wanted[0].topic_id, result)])
        return
    topics: Topics = {}
    leaders = _add_results(context, choice, wanted, found.results, topics)
    session_id = choice.session.id if choice.session is not None else NO_SESSION
    endpoints = _endpoints(context, leaders)
    context.reply_parts(encode_fetch_response(version, _topic_results(topics), session_id=session_id, node_endpoints=endpoints))


Topics = dict[tuple[str | None, bytes | None], list[FetchResult]]


def _add_results(
    context: RequestContext, choice: SessionChoice, wanted: list[RequestedPartition], results: list[FetchResult], topics: Topics
) -> set[int]:
    """Add to ``topics`` the results that the response mentions. Returns the leaders that it hints at."""
    session, is_incremental, _ = choice
    version = context.header.api_version
    leaders: set[int] = set()
    for want, result in zip(wanted, results, strict=True):
        if result.records is not None and want.partition is not None:
            if want.follower is None:
                want.partition.count_fetched(result.records.length)
            else:
                want.partition.count_replicated(want.follower[0], result.records.length)
        elif result.error is not ErrorCode.NONE:
            context.count_error(result.error)
        if result.error in HINTED_ERRORS and version >= LEADER_HINTS_SINCE:
            result = _with_leader(context, want, result, leaders)
        if session is None or _must_tell(session, want, result) or not is_incremental:
            topics.setdefault((want.topic, want.topic_id), []).append(result)
    return leaders


def _topic_results(topics: Topics) -> list[FetchTopicResult]:
    return [FetchTopicResult(name, topic_id, partitions) for (name, topic_id), partitions in topics.items()]


def _endpoints(context: RequestContext, leaders: set[int]) -> Sequence[NodeEndpoint]:
    return leader_endpoints(context.broker.image, leaders, context.session.listener.name) if leaders else ()


@lru_cache(CACHED_MAX)
def _encode_empty(version: int, name: str | None, topic_id: bytes | None, result: FetchResult) -> bytes:
    parts = encode_fetch_response(version, [FetchTopicResult(name, topic_id, [result])])
    return b"".join(parts)  # type: ignore[arg-type]  # without records there are only buffers


def _decode(header: RequestHeader, frame: memoryview) -> FetchRequest:
    if len(frame) - header.body_position > CACHED_BYTES_MAX:
        return decode_fetch_request(header, frame)
    return _decode_cached(header.api_version, bytes(frame[header.body_position :]))


@lru_cache(CACHED_MAX)
def _decode_cached(version: int, body: bytes) -> FetchRequest:
    return decode_fetch_request(RequestHeader(ApiKey.FETCH, version, 0, None, 0), memoryview(body))


def _reply_throttled(context: RequestContext, choice: SessionChoice, throttle_time_ms: int) -> None:
    """Reply without records. A client whose first request gets this reply starts another session."""
    session_id = NO_SESSION
    if choice.session is not None:
        if choice.is_incremental:
            session_id = choice.session.id
        else:
            context.broker.fetch_sessions.drop(choice.session.id)
    version = context.header.api_version
    context.reply_parts(encode_fetch_response(version, [], throttle_time_ms=throttle_time_ms, session_id=session_id))


def _with_leader(context: RequestContext, want: RequestedPartition, result: FetchResult, leaders: set[int]) -> FetchResult:
    leader = current_leader(context.broker.image, want.topic, want.topic_id, want.partition_index)
    if leader is not None:
        leaders.add(leader[0])
    return result._replace(current_leader=leader)


def _must_tell(session: FetchSession, want: RequestedPartition, result: FetchResult) -> bool:
    key = (want.topic, want.topic_id, want.partition_index)
    known = session.partitions.get(key)
    if known is None:
        return True
    if result.records is not None:
        session.rotate(key)
    return known.update_told(result)


def _reply_error(context: RequestContext, code: ErrorCode) -> None:
    context.count_error(code)
    context.reply_parts(
        encode_fetch_response(context.header.api_version, [], error=code, throttle_time_ms=context.throttle_time_ms())
    )


def _failure(request: FetchRequest, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no message field
    """Put the code into each partition: before version 7 the response has no code for the whole request."""
    return {
        "error_code": code,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id or ZERO_UUID,
                "partitions": [
                    {"partition_index": wanted.partition, "error_code": code, "high_watermark": -1} for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


API = Api(
    key=ApiKey.FETCH,
    name="Fetch",
    versions=VERSIONS,
    handle=handle,
    failure=_failure,
    decode=_decode,
    count_elements=count_topics_and_partitions,
    # A partition takes sixteen bytes in the frame; a topic without partitions takes three, and is forgotten when it is decoded.
    decoded_bytes_per_byte_max=48,
    decode_in_slices=decode_fetch_in_slices,
    elements_max=ELEMENTS_MAX,
)
