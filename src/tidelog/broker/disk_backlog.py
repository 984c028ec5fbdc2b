"""How far the disk is behind: bytes that producers wrote and no pass of group commit covers yet.

Producers with acks=all wait for the disk by themselves. Those with acks=0 and acks=1 do not, and could write to the page cache as
fast as it takes it: every pass would be longer than the one before, and everybody who waits for one would wait for ever longer.
So while more than ``BYTES_MAX`` are not synced they are answered later, when what they wrote is: then their connections are
full of unanswered requests and are not read from.

Counted by passes, not by logs: what was written after the last pass but one had ended may be unsynced, what was written before is
not. Topics with relaxed durability do not count: nobody waits for their syncs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.durability.group_commit import GroupCommit
from tidelog.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog.broker.api import RequestContext
    from tidelog.broker.timers import Timer

# A second of a disk of the slower kind.
BYTES_MAX = 64 * 1024 * 1024


class DiskBacklog:
    __slots__ = ("_before_pass", "_commit", "_last_log", "_since_pass", "bytes_max", "held")

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._last_log: PartitionLog | None = None
        self.bytes_max = BYTES_MAX
        self._before_pass = 0
        self._since_pass = 0
        self.held = 0
        """Requests that were answered later because of it, in all."""

    @property
    def bytes(self) -> int:
        """At most so many are not synced."""
        return self._before_pass + self._since_pass

    def appended(self, log: PartitionLog, length: int) -> None:
        self._since_pass += length
        self._last_log = log

    def pass_ended(self) -> None:
        self._before_pass, self._since_pass = self._since_pass, 0

    def hold(self, context: "RequestContext", timeout_ms: int, answer: Callable[[], None]) -> None:
        """For a request that has just appended: call ``answer`` when what it wrote is synced, or when its time is up, since it
        asked for less than that. One pass covers all logs, so the last one stands for all."""
        log = self._last_log
        assert log is not None, "something was appended"
        self.held += 1
        timer: Timer | None = None
        is_answered = False

        def done(error: Exception | None = None) -> None:  # noqa: ARG001 - a log that went offline answers the next request
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
