"""Share sessions: which partitions a member fetches from this broker, and the order of its requests.

A session belongs to one member of a group and to its connection. Its first request has epoch 0, each later one the next epoch,
whether it fetches or acknowledges, and the last one -1. When it ends, in whatever way, everything that the member holds is
released. A session that was opened again over another connection survives the end of the first, and whatever arrives late over
that: it says nothing about this session, though its epoch may fit by chance.

The number of sessions is bounded, and so are their partitions, because a request may name any number of partitions that do not
exist; a member beyond that is refused.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.session import ClientSession
from tidelog.broker.share_dead_letters import DeadLetterWriter
from tidelog.broker.share_partitions import ShareCounters, ShareEnvironment, SharePartitions
from tidelog.broker.share_settings import ShareSettings
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
# A session's partitions are all looked at for each of its fetches, at a few microseconds each.
PARTITIONS_PER_SESSION_MAX = 5_000
# The limit for all sessions together. Each partition takes some 200 bytes.
PARTITIONS_MAX = 250_000
# The connections of one member that it may have left and that are not closed yet. It loses one after the other.
LEFT_MAX = 8


class ShareSessionKey(NamedTuple):
    group_id: str
    member_id: str


TopicIndex = tuple[bytes, int]
"""A topic id, and a partition."""


class ShareSession:
    __slots__ = ("_connection", "_left", "_opened_over", "_sessions", "epoch", "key", "partitions")

    def __init__(
        self, key: ShareSessionKey, sessions: "ShareSessions", connection: ClientSession, earlier: "ShareSession | None"
    ) -> None:
        """``earlier`` is the session that the member has not closed."""
        self.key = key
        self.epoch = 1
        """The epoch of the next request."""
        self.partitions: dict[TopicIndex, None] = {}
        self._sessions = sessions
        # Requests may come over several connections of the member. It ends with the one that was used last.
        self._connection = connection
        self._opened_over = connection
        self._left: list[ClientSession] = [] if earlier is None else earlier.left_for(connection)
        connection.add_delayed(self)

    def left_for(self, connection: ClientSession) -> list[ClientSession]:
        """The connections over which the member opened sessions, and which it has left when it opens one over ``connection``."""
        left = [each for each in (*self._left, self._opened_over) if each is not connection and not each.is_closed]
        return left[-LEFT_MAX:]

    def is_left(self, connection: ClientSession) -> bool:
        return any(each is connection for each in self._left)

    def advance(self, connection: ClientSession) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
        if connection is not self._connection:
            self._connection.remove_delayed(self)
            self._connection = connection
            connection.add_delayed(self)

    def leave_connection(self) -> None:
        self._connection.remove_delayed(self)

    def cancel(self) -> None:
        """The connection is gone."""
        self._sessions.close(self)

    def change(self, added: Iterable[TopicIndex], forgotten: Iterable[TopicIndex]) -> None:
        """Raises ApiError, and changes nothing, when there would be too many."""
        new = {each: None for each in added if each not in self.partitions}
        old = {each: None for each in forgotten if each in self.partitions or each in new}
        self._sessions.count_partitions(len(self.partitions), len(new) - len(old))
        self.partitions.update(new)
        for each in old:
            del self.partitions[each]

    def in_turn(self) -> list[TopicIndex]:
        """The partitions, beginning with another one each time, so that none is always the last."""
        partitions = list(self.partitions)
        first = self.epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]


class ShareSessions:
    __slots__ = ("_by_key", "_members_of", "_partition_count", "_sessions_max", "share_partitions")

    def __init__(self, share_partitions: SharePartitions, sessions_max: int) -> None:
        self.share_partitions = share_partitions
        self._sessions_max = sessions_max
        self._by_key: dict[ShareSessionKey, ShareSession] = {}
        # The number of sessions of each group.
        self._members_of: dict[str, int] = {}
        # Counted over all sessions.
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def open(self, key: ShareSessionKey, connection: ClientSession) -> ShareSession:
        """A member that opens a session again keeps what it holds."""
        earlier = self._by_key.pop(key, None)
        if earlier is not None:
            earlier.leave_connection()
            self._partition_count -= len(earlier.partitions)
        elif len(self._by_key) >= self._sessions_max:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        else:
            self._members_of[key.group_id] = self._members_of.get(key.group_id, 0) + 1
        session = self._by_key[key] = ShareSession(key, self, connection, earlier)
        return session

    def count_partitions(self, had: int, added: int) -> None:
        """A session that had some partitions gets more of them, or loses some. Raises ApiError if these are too many."""
        if added > 0 and (had + added > PARTITIONS_PER_SESSION_MAX or self._partition_count + added > PARTITIONS_MAX):
            message = f"A session has at most {PARTITIONS_PER_SESSION_MAX} partitions, and all sessions {PARTITIONS_MAX}."
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)
        self._partition_count += added

    def advance(self, key: ShareSessionKey, epoch: int, connection: ClientSession) -> ShareSession:
        session = self.find(key, connection)
        if epoch != session.epoch:
            message = f"The session epoch is {epoch}, and {session.epoch} was expected."
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session.advance(connection)
        return session

    def find(self, key: ShareSessionKey, connection: ClientSession) -> ShareSession:
        session = self._by_key.get(key)
        if session is None or session.is_left(connection):
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def close(self, session: ShareSession) -> None:
        """Release everything that the member holds."""
        key = session.key
        session.leave_connection()
        if self._by_key.get(key) is not session:
            return
        del self._by_key[key]
        self._partition_count -= len(session.partitions)
        self._members_of[key.group_id] -= 1
        if not self._members_of[key.group_id]:
            del self._members_of[key.group_id]
        self.share_partitions.release_member(key.group_id, key.member_id, lambda: key.group_id in self._members_of)

    def is_open(self, session: ShareSession) -> bool:
        return self._by_key.get(session.key) is session


def make_share_sessions(broker: "BrokerNode") -> ShareSessions:
    values = broker.config.values
    settings = ShareSettings(broker.image, values, broker.settings)
    states = broker.coordinators.share_states
    letters = DeadLetterWriter(broker, settings)
    slices = broker.work_slices
    environment = ShareEnvironment(broker.clock, broker.timers, states, settings, letters, ShareCounters(), slices, broker.report)
    return ShareSessions(SharePartitions(broker.partitions, environment), int(values["group.share.max.share.sessions"]))
