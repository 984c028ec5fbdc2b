"""Producers with acks=0 and acks=1 wait for a disk that is too far behind.

Producers with acks=all wait for the disk anyway. The others do not, and could write to the page cache as fast as it takes it:
every commit pass would take longer than the one before, and everybody who waits for one would wait ever longer. So while more
than ``BYTES_MAX`` are not synced, their requests are answered only when their records are synced. Until then their connections
are full of unanswered requests and are not read from.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.durability.group_commit import GroupCommit
from tidelog.replication.partition import AppendTracker

if TYPE_CHECKING:
    from tidelog.broker.api import RequestContext
    from tidelog.broker.timers import Timer

# What a slow disk writes in a second.
BYTES_MAX = 64 * 1024 * 1024


class DiskBacklog:
    __slots__ = ("_appends", "_commit", "bytes_max", "held")

    def __init__(self, commit: GroupCommit, appends: AppendTracker) -> None:
        self._commit = commit
        self._appends = appends
        self.bytes_max = BYTES_MAX
        self.held = 0
        """Requests that were answered later because of the backlog, since the start."""

    def hold(self, context: "RequestContext", timeout_ms: int, answer: Callable[[], None]) -> None:
        """For a request that has just appended: call ``answer`` when its records are synced, or when its time is up, since it did
        not ask for a sync. One pass covers all logs, so the last log stands for all of the request's."""
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
