"""Incremental fetch sessions (KIP-227): a client says once what it reads, and after that only what changed.

A session keeps a reader's partitions and what the reader was last told about each. An incremental response contains only
partitions with records, with an error, or with watermarks that moved. Partitions that had records go to the end of the session's
order, so that a limit on the size of the response does not starve the others.

Sessions are a bounded cache: a new one replaces the one that has been unused for longest, if it has been idle for
``EVICTION_IDLE_MS``; otherwise the reader gets no session and sends full requests. A lost session costs one full request. The
number of partitions in all sessions is bounded too, because a request may name a hundred thousand partitions that do not exist.
"""

from typing import NamedTuple, Protocol

from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.ports.steps import Steps, run_to_end
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchPartition, FetchRequest, FetchResult

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
SESSION_ID_MAX = 2**31 - 1
EPOCH_MAX = 2**31 - 1
EVICTION_IDLE_MS = 120_000
# The limit for all sessions together. Each partition takes some 400 bytes.
PARTITIONS_MAX = 250_000

# A large request pauses after this many partitions.
PARTITIONS_PER_STEP = 256

# A topic is identified by its name or its id, depending on the request's version.
TopicKey = tuple[str | None, bytes | None]
PartitionKey = tuple[str | None, bytes | None, int]


class SessionPartition:
    """One partition of a session: what the reader wants from it, and what the reader was last told."""

    __slots__ = ("high_watermark", "last_stable_offset", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    def change(self, wanted: FetchPartition) -> None:
        self.wanted = wanted

    def update_told(self, result: FetchResult) -> bool:
        """Return whether the result holds anything that the reader does not know, and remember it as told."""
        is_new = (
            result.error is not ErrorCode.NONE
            or result.diverging_epoch is not None
            or (result.records is not None and result.records.length > 0)
            or result.high_watermark != self.high_watermark
            or result.last_stable_offset != self.last_stable_offset
            or result.log_start_offset != self.log_start_offset
        )
        if is_new:
            self.high_watermark = result.high_watermark
            self.last_stable_offset = result.last_stable_offset
            self.log_start_offset = result.log_start_offset
        if result.error is not ErrorCode.NONE:
            # This makes the session mention the partition again once the error is gone.
            self.high_watermark = -1
        return is_new


class WaitingFetch(Protocol):
    """A fetch of many partitions that waits for records."""

    def answer_now(self) -> None: ...


class FetchSession:
    __slots__ = ("_waiting", "epoch", "id", "last_used_ms", "partitions", "partitions_counted", "uses_topic_ids")

    def __init__(self, identifier: int, now_ms: int, uses_topic_ids: bool) -> None:
        self.id = identifier
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.partitions_counted = 0
        """How many of them count towards the limit of all sessions."""
        self._waiting: WaitingFetch | None = None

    def count_partitions(self) -> int:
        """Count the partitions as they are now; returns how many more that are than before."""
        added = len(self.partitions) - self.partitions_counted
        self.partitions_counted += added
        return added

    def update(self, request: FetchRequest) -> Steps[None]:
        """Yields after every few partitions."""
        updated = 0
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.name, topic.topic_id, wanted.partition)
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = SessionPartition(wanted)
                else:
                    known.change(wanted)
                updated += 1
                if not updated % PARTITIONS_PER_STEP:
                    yield
        for forgotten in request.forgotten:
            for index in forgotten.partitions:
                self.partitions.pop((forgotten.name, forgotten.topic_id, index), None)
                updated += 1
                if not updated % PARTITIONS_PER_STEP:
                    yield

    def wait(self, fetch: WaitingFetch) -> None:
        """Let a fetch of many partitions wait. It is the only one: an earlier one is answered now, because each keeps a result
        for every partition."""
        earlier, self._waiting = self._waiting, fetch
        if earlier is not None:
            earlier.answer_now()

    def stop_waiting(self, fetch: WaitingFetch) -> None:
        if self._waiting is fetch:
            self._waiting = None

    def rotate(self, key: PartitionKey) -> None:
        """Move a partition that had records to the end, so that the others come first next time."""
        self.partitions[key] = self.partitions.pop(key)


class SessionChoice(NamedTuple):
    """How to treat a fetch request."""

    session: FetchSession | None
    is_incremental: bool
    error: ErrorCode = ErrorCode.NONE


WITHOUT_SESSION = SessionChoice(None, False)


class FetchSessions:
    __slots__ = ("_clock", "_partitions", "_partitions_max", "_randomness", "_sessions", "_slots_max")

    def __init__(self, clock: Clock, randomness: Randomness, slots_max: int, partitions_max: int = PARTITIONS_MAX) -> None:
        self._clock = clock
        self._randomness = randomness
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._partitions = 0
        # Least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def choose(self, request: FetchRequest, uses_topic_ids: bool) -> SessionChoice:
        if request.session_epoch == FINAL_EPOCH:
            self.drop(request.session_id)
            return WITHOUT_SESSION
        return run_to_end(self.choose_in_slices(request, uses_topic_ids))

    def choose_in_slices(self, request: FetchRequest, uses_topic_ids: bool) -> Steps[SessionChoice]:
        """Like ``choose``, for a request with many partitions."""
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.drop(session_id)
            session = self._create(uses_topic_ids) if epoch == INITIAL_EPOCH and request.topics else None
            if session is not None and not (yield from self._update(session, request)):
                session = None
            return SessionChoice(session, False)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionChoice(None, True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionChoice(None, True, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            # The client was upgraded or downgraded in between: names and ids cannot be mixed.
            return SessionChoice(None, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.last_used_ms = self._clock.monotonic_ms()
        del self._sessions[session_id]
        self._sessions[session_id] = session
        if not (yield from self._update(session, request)):
            # After this error the reader sends a full request, which is answered without a session.
            return SessionChoice(None, True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return SessionChoice(session, True)

    def _update(self, session: FetchSession, request: FetchRequest) -> Steps[bool]:
        """Returns False, and drops the session, when the sessions would hold too many partitions."""
        try:
            yield from session.update(request)
        finally:
            # A reader that disconnects in the middle leaves the session with what was taken until then, and that counts too.
            is_kept = self._sessions.get(session.id) is session
            if is_kept:
                self._partitions += session.count_partitions()
        if not is_kept:
            return False  # Another request took its place in the meantime.
        while self._partitions > self._partitions_max:
            evictable = self._evictable()
            if evictable is None:
                self.drop(session.id)
                return False
            self.drop(evictable.id)
        return True

    def _evictable(self) -> FetchSession | None:
        """The session that has been unused for longest, if that is long enough."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or self._clock.monotonic_ms() - oldest.last_used_ms < EVICTION_IDLE_MS:
            return None
        return oldest

    def drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.partitions_counted

    def _create(self, uses_topic_ids: bool) -> FetchSession | None:
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self._slots_max:
            evictable = self._evictable()
            if evictable is None:
                return None
            self.drop(evictable.id)
        identifier = self._randomness.integer(1, SESSION_ID_MAX)
        while identifier in self._sessions:
            identifier = self._randomness.integer(1, SESSION_ID_MAX)
        session = self._sessions[identifier] = FetchSession(identifier, now_ms, uses_topic_ids)
        return session
