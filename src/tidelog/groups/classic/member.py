"""A member of a classic group: what it asked for, what it was assigned, and which of its requests wait.

A member whose request waits need not send heartbeats: it cannot. So the session time-out does not count then, except for a member
that joins for the first time: its client may be gone and come back under another id, so it has a limit of its own.
"""

from tidelog.coordinator.machine import OnDone
from tidelog.groups.classic.requests import Protocols


class ClassicMember:
    __slots__ = (
        "answers_in_flight",
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "is_new",
        "join_answer",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_answer",
        "timer_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.join_answer: OnDone | None = None
        self.sync_answer: OnDone | None = None
        # Decided, but not given before it is committed.
        self.answers_in_flight = 0
        # Joins for the first time, and has not been answered.
        self.is_new = False
        # By the monotonic clock: when the session ends, and when the timer looks at that.
        self.deadline_ms = 0
        self.timer_ms = 0

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_waiting(self) -> bool:
        """For one of us, so that we cannot hold its silence against it."""
        if self.is_new:
            return False
        return self.join_answer is not None or self.sync_answer is not None or self.answers_in_flight > 0

    def metadata(self, protocol_name: str | None) -> bytes:
        """Empty for a protocol that the member does not have."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""
