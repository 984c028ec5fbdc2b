"""ShareFetch (KIP-932): settles records that a member has, locks others for it and sends them, or waits until there are some.

The acknowledgements of a request take effect before it fetches. The answer waits for them to be committed, and for records: at
least one, unless the time is up. A request that renews locks fetches nothing, because a lock might end before the answer.

Records that have to be read from the disk first are read by a helper thread, also if the request does not want to wait. If there
are others, the answer has those, and the next request finds the rest in memory.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.api import LARGE_WAIT_MS_MAX, Api, Pace, RequestContext
from tidelog.broker.response_fields import HINTED_ERRORS, current_leader, leader_endpoints
from tidelog.broker.share_partitions import COLD_TRIPS_MAX, ColdRead, ColdReads, FetchBudget, ShareFetched, ShareLeader
from tidelog.broker.share_requests import (
    AcknowledgeErrors,
    Acknowledgements,
    acknowledgements_of,
    check_member,
    check_share_groups_enabled,
    settle,
)
from tidelog.broker.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, ShareSessionKey, TopicIndex
from tidelog.controller.errors import ApiError
from tidelog.ports.steps import Steps
from tidelog.queues.share_partition import AcquireRequest
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey
from tidelog.wire.share_fetch import NO_LEADER, ShareFetchResponse, ShareFetchResult, encode_share_fetch_response

if TYPE_CHECKING:
    from tidelog.broker.timers import Timer

RECORD_LIMIT_MODE = 1


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None]:
    broker = context.broker
    check_share_groups_enabled(broker)
    check_member(request.group_id, request.member_id)
    if request.is_renew_ack and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms):
        raise ApiError(ErrorCode.INVALID_REQUEST, "A request that renews locks fetches nothing: all its limits must be 0.")
    key = ShareSessionKey(request.group_id, request.member_id)
    acknowledgements = acknowledgements_of(request)
    try:
        session = _session(context, request, key, acknowledgements)
    except ApiError as error:
        wait_ms = _wait_ms(context, request)
        if error.code is not ErrorCode.SHARE_SESSION_LIMIT_REACHED or wait_ms <= 0:
            raise
        # Answered late, so that the member does not try again at once.
        refusal = error
        context.session.add_delayed(broker.timers.schedule(wait_ms, lambda: context.fail(refusal)))
        return
    fetch = ShareFetch(context, request, key, session, acknowledgements)
    yield from settle(context, key.group_id, key.member_id, acknowledgements, fetch.settled)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share_sessions.close(session)
        fetch.fetched()
    else:
        yield from fetch.start()


def _wait_ms(context: RequestContext, request: DecodedMessage) -> int:
    wait_ms: int = request.max_wait_ms
    return min(wait_ms, LARGE_WAIT_MS_MAX) if context.is_large else wait_ms


def _session(
    context: RequestContext, request: DecodedMessage, key: ShareSessionKey, acknowledgements: Acknowledgements
) -> ShareSession:
    sessions, epoch = context.broker.share_sessions, request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        if acknowledgements:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The first request of a session cannot acknowledge anything.")
        session = sessions.open(key, context.session)
    elif epoch == FINAL_EPOCH:
        return sessions.find(key, context.session)
    else:
        session = sessions.advance(key, epoch, context.session)
    added = [(topic.topic_id, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
    session.change(added, forgotten)
    return session


class ShareFetch:
    """One request. It is registered with its partitions while it waits, and drops its references when it is answered."""

    __slots__ = (
        "_acknowledged",
        "_bytes_min",
        "_cold_reads",
        "_context",
        "_delayed",
        "_errors",
        "_fetched",
        "_is_fetched",
        "_is_first",
        "_is_reading",
        "_key",
        "_leaders",
        "_partition_errors",
        "_request",
        "_session",
        "_timer",
        "_unwritten",
        "_write_errors",
    )

    def __init__(
        self,
        context: RequestContext,
        request: DecodedMessage,
        key: ShareSessionKey,
        session: ShareSession,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._context = context
        self._request = request
        self._key = key
        self._session = session
        self._is_first = request.share_session_epoch == INITIAL_EPOCH
        self._bytes_min = min(request.min_bytes, request.max_bytes)
        self._acknowledged = list(acknowledgements)
        self._errors: AcknowledgeErrors | None = None
        self._fetched: dict[TopicIndex, ShareFetched] = {}
        self._partition_errors: dict[TopicIndex, tuple[ErrorCode, str]] = {}
        self._leaders: dict[TopicIndex, ShareLeader] = {}
        self._is_fetched = False
        # What has to be read from the disk before the next attempt, and whether that is being done while the request waits.
        self._cold_reads = ColdReads()
        self._is_reading = False
        self._timer: Timer | None = None
        # How many partitions have locked records, and not written that yet; and those that failed to.
        self._unwritten = 0
        self._write_errors: dict[TopicIndex, Exception] = {}
        # The partitions whose records were not handed out until that was written, which may have taken longer than a lock lasts.
        self._delayed: list[TopicIndex] = []

    # -- acknowledgements ----------------------------------------------------------------------------------------------------

    def settled(self, errors: AcknowledgeErrors) -> None:
        self._errors = errors
        self._reply_if_done()

    # -- records -------------------------------------------------------------------------------------------------------------

    def start(self) -> Steps[None]:
        """Find the leaders of the session's partitions, which are begun if they are new, and then fetch."""
        context, request = self._context, self._request
        if request.is_renew_ack or request.max_records <= 0 or request.max_bytes <= 0:
            self.fetched()
            return
        pace = Pace()
        # Settling may have paused as well.
        self._check_session()
        for which in self._session.in_turn():
            self._find(which)
            if pace.is_pause_due():
                yield
                self._check_session()
        is_answered = self._try()
        for _ in range(COLD_TRIPS_MAX):
            if is_answered or not self._cold_reads:
                break
            yield self._cold_reads.take()
            self._check_session()
            is_answered = self._try()
        wait_ms = _wait_ms(context, request)
        if is_answered or wait_ms <= 0:
            self.fetched()
            return
        context.session.add_delayed(self)
        self._timer = context.broker.timers.schedule(wait_ms, self._time_out)
        for leader in self._leaders.values():
            leader.add_waiter(self)
        if self._cold_reads:
            # There is much that nobody may have, such as expired messages. From here on, it does not hold the connection.
            self._read_cold()

    @property
    def _is_session_open(self) -> bool:
        return self._context.broker.share_sessions.is_open(self._session)

    def _check_session(self) -> None:
        if not self._is_session_open:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The session has ended while this request was handled.")

    def _try(self) -> bool:
        """Lock what there is in memory, unless it is too little to answer with. Returns whether there is an answer. If there is
        none, ``_cold_reads`` are to be done first, if there are any."""
        self._cold_reads.begin()
        order = self._session.in_turn()
        for which in order:
            self._find(which)
        if not self._leaders:
            return bool(self._partition_errors)
        bytes_each = max(1, min(self._request.max_bytes, self._context.broker.config.fetch_bytes_max) // len(self._leaders))
        if self._bytes_min > 1 and not self._are_enough(bytes_each):
            return bool(self._partition_errors)
        budget = FetchBudget(self._cold_reads)
        self._acquire(order, bytes_each, budget)
        return bool(self._fetched or self._partition_errors) or budget.is_spent

    def _find(self, which: TopicIndex) -> None:
        """Find the leader of a partition, or what is wrong with it."""
        if which in self._partition_errors:
            return
        leader = self._leaders.get(which)
        try:
            if leader is None:
                leader = self._context.broker.share_sessions.share_partitions.find(self._key.group_id, *which)
            leader.check()
        except Exception as error:
            self._partition_errors[which] = self._context.code_of(error)
            self._leaders.pop(which, None)
        else:
            self._leaders[which] = leader

    def _are_enough(self, bytes_each: int) -> bool:
        """Whether there are as many bytes as the request wants, or in so many partitions that one answer cannot have them all."""
        budget = FetchBudget(self._cold_reads)
        readable = 0
        for leader in self._leaders.values():
            readable += leader.readable_bytes(bytes_each, budget)
            if readable >= self._bytes_min or budget.is_spent:
                return True
        return False

    def _acquire(self, order: list[TopicIndex], bytes_each: int, budget: FetchBudget) -> None:
        request = self._request
        records_left = request.max_records
        for which in order:
            leader = self._leaders.get(which)
            if leader is None:
                continue
            if records_left <= 0 or budget.is_spent:
                return
            acquire = AcquireRequest(
                self._key.member_id,
                records_left,
                max(1, request.batch_size),
                is_limit_strict=request.share_acquire_mode == RECORD_LIMIT_MODE,
            )
            self._unwritten += 1
            try:
                fetched = leader.fetch(acquire, bytes_each, budget, partial(self._written, which))
            except Exception as error:
                self._unwritten -= 1
                self._partition_errors[which] = self._context.code_of(error)
                continue
            if fetched.acquired:
                self._fetched[which] = fetched
                records_left -= sum(each.last_offset - each.first_offset + 1 for each in fetched.acquired)

    def _written(self, which: TopicIndex, error: Exception | None) -> None:
        self._unwritten -= 1
        if error is not None:
            self._write_errors[which] = error
        elif which in self._fetched:
            self._delayed.append(which)
        self._reply_if_done()

    def on_available(self) -> None:
        if self._is_fetched or self._is_reading:
            return
        # A request that has outlived its session locks nothing: nobody would release it.
        if not self._is_session_open or self._try():
            self.fetched()
        elif self._cold_reads:
            self._read_cold()

    def _read_cold(self) -> None:
        self._is_reading = True
        on_read = partial(self._on_read, list(self._leaders.values()))
        self._context.broker.work_slices.run(_in_helper_thread(self._cold_reads.take()), on_read)

    def _on_read(self, leaders: Sequence[ShareLeader], error: Exception | None) -> None:  # noqa: ARG002 - the next attempt finds out
        self._is_reading = False
        self.on_available()
        if not self._is_reading:
            # Those that would have waited for the same.
            for leader in leaders:
                leader.wake_later()

    def _time_out(self) -> None:
        # One that is content with a byte has looked whenever there was one. Looking again would cost as much as the request.
        is_content = self._bytes_min <= 1
        self._bytes_min = 0
        if not is_content and self._is_session_open:
            self._try()
        self.fetched()

    def cancel(self) -> None:
        """The connection is gone; the session releases what was locked."""
        self._is_fetched = True
        self._leave()

    def fetched(self) -> None:
        self._is_fetched = True
        if self._cold_reads and not self._is_reading:
            # For the next request, and for others who wait.
            self._read_cold()
        self._leave()
        self._context.session.remove_delayed(self)
        self._reply_if_done()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for leader in self._leaders.values():
            leader.remove_waiter(self)
        self._leaders = {}

    # -- the response --------------------------------------------------------------------------------------------------------

    def _reply_if_done(self) -> None:
        if not self._is_fetched or self._errors is None or self._unwritten or self._context.session.is_closed:
            return
        context, errors = self._context, self._errors
        for which, error in self._write_errors.items():
            # The leader was dropped, and its locks with it: nobody may work on what it handed out.
            self._fetched.pop(which, None)
            self._partition_errors[which] = context.code_of(error)
        self._keep_what_is_held()
        mentioned = dict.fromkeys((*self._acknowledged, *self._fetched, *self._partition_errors))
        if self._is_first:
            mentioned = dict.fromkeys((*self._session.partitions, *mentioned))
        topics: dict[bytes, list[ShareFetchResult]] = {}
        leaders: set[int] = set()
        for which in mentioned:
            topics.setdefault(which[0], []).append(self._result(which, errors, leaders))
        lock_ms = context.broker.share_sessions.share_partitions.settings.lock_duration_ms(self._key.group_id)
        endpoints = leader_endpoints(context.broker.image, leaders, context.session.listener.name) if leaders else ()
        response = ShareFetchResponse(
            list(topics.items()),
            lock_timeout_ms=lock_ms,
            throttle_time_ms=context.throttle_time_ms(),
            node_endpoints=endpoints,
        )
        context.reply_parts(encode_share_fetch_response(response))

    def _keep_what_is_held(self) -> None:
        """Locks may have ended while the deliveries were written: others may have these records by now."""
        shares = self._context.broker.share_sessions.share_partitions
        for which in self._delayed:
            leader = shares.find_existing(self._key.group_id, *which)
            acquired, records = self._fetched.pop(which)
            held = [] if leader is None else leader.held_by(self._key.member_id, acquired)
            if held:
                self._fetched[which] = ShareFetched(held, records)

    def _result(self, which: TopicIndex, errors: AcknowledgeErrors, leaders: set[int]) -> ShareFetchResult:
        topic_id, index = which
        error, message = self._partition_errors.get(which, (ErrorCode.NONE, None))
        refusal, why = errors.get(which, (ErrorCode.NONE, None))
        leader = NO_LEADER
        if error in HINTED_ERRORS or refusal in HINTED_ERRORS:
            leader = current_leader(self._context.broker.image, None, topic_id, index) or NO_LEADER
            leaders.add(leader[0])
        for code in (error, refusal):
            if code is not ErrorCode.NONE:
                self._context.count_error(code)
        fetched = self._fetched.get(which, ShareFetched())
        return ShareFetchResult(index, error, message, refusal, why, leader, fetched.records, fetched.acquired)


def _in_helper_thread(call: ColdRead) -> Steps[None]:
    yield call


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - for the whole request
    return {"error_code": code, "error_message": message, "responses": (), "node_endpoints": ()}


API = Api(key=ApiKey.SHARE_FETCH, name="ShareFetch", versions=(1, 2), handle=handle, failure=_failure)
