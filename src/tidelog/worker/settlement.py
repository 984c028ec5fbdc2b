"""Decides what becomes of messages that were attempted: it finishes offsets, writes letters, and informs circuit breakers.

Runs in the polling thread only. A failure is, in this order: ignored when its partition was taken away; put back when the circuit
breaker is open; a letter to the next retry level, behind which the waiting messages of its key follow (``order="key"``); or a
dead letter. Its offset is finished when the outbox says that the letter is safe.

The settlement calls the outbox and nothing before it. What the execution has to do afterwards (put a message back, free a lane)
is returned as values, which the ``MessagePipeline`` passes on.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.deadletters.letter import Letter
from tidelog.deadletters.topics import dead_letter_topic, retry_topic
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.worker.breaker import Breaker, BreakerState
from tidelog.worker.execution import BundleReport
from tidelog.worker.failures import FailurePolicy, InProgress, Retry, ScheduledRetry
from tidelog.worker.handler import HandlerFailure
from tidelog.worker.metrics import WorkerCounts
from tidelog.worker.options import WorkerOptions
from tidelog.worker.outbox import Outbox, OutgoingLetter
from tidelog.worker.partitions import AssignedPartition, PartitionFamily, ReadAhead, WorkItem

log = logging.getLogger("tidelog.worker")


class SettledFailure(NamedTuple):
    """A failed message whose lane waits for the decision."""

    item: WorkItem
    is_put_back: bool = False
    """Whether the message itself is to be attempted again, first in its lane."""
    is_retried: bool = False
    """Whether a letter of it waits in a retry topic, and later messages of its key wait behind it."""


class Settlement:
    def __init__(
        self,
        options: WorkerOptions,
        policy: FailurePolicy,
        counts: WorkerCounts,
        read_ahead: ReadAhead,
        outbox: Outbox,
        *,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._options = options
        self._policy = policy
        self._counts = counts
        self._read_ahead = read_ahead
        self._outbox = outbox
        self._clock = clock
        self._randomness = randomness
        self._keeps_key_order = options.order == "key"

    def settle(self, report: BundleReport) -> list[SettledFailure]:
        """Settle one report. The execution then follows its circuit breaker, and does what is returned."""
        self._settle_handled(report)
        settled = [self._settle_failure(failure, report.execution.breaker) for failure in report.failures]
        return [each for each in settled if each.is_put_back or self._keeps_key_order]

    def settle_letters(self) -> None:
        """Finish the messages whose letters were acknowledged."""
        for item in self._outbox.poll():
            if not item.assigned.is_closed:
                item.assigned.finish((item,))

    def skip(self, items: Sequence[WorkItem]) -> None:
        """Finish messages of one partition that were handled before, in another run or as another copy."""
        self._counts.add("skipped", len(items))
        items[0].assigned.finish(items)

    def hold(self, item: WorkItem, retry: ScheduledRetry) -> None:
        """Hold a message, because an earlier one of its key waits for ``retry``: park it in memory, or write it behind the
        other."""
        key, assigned = item.message.key, item.assigned
        assert key is not None, "a message without a key waits for nothing"
        family = assigned.family
        if family.blocked.has(key, item.source_offset) or family.parked.has(key, item.source_offset):
            # Another copy of it, from a worker that died: one is enough.
            self.skip((item,))
            return
        self._counts.add("waited")
        if self._read_ahead.may_park(assigned):
            assigned.park(item)
            family.parked.add(key, item)
        else:
            family.blocked.add(key, item.source_offset, retry)
            letter = waiting_letter(item, retry, group=self._options.group, now_ms=self._clock.now_ms())
            self._send(item, retry_topic(family.source, self._options.group, retry.level), letter)

    def hold_behind(self, failed: SettledFailure, waiting: Iterable[WorkItem]) -> list[WorkItem]:
        """Hold the waiting messages of a failed message's lane that are blocked by its letter; returns the others."""
        alive = [item for item in waiting if not item.assigned.is_stopping]
        key = failed.item.message.key
        if not failed.is_retried or key is None:
            return alive
        continuing = []
        for item in alive:
            blocker = item.assigned.family.blocked.blocker(key, item.source_offset)
            if blocker is None:
                continuing.append(item)
            else:
                self.hold(item, blocker)
        return continuing

    def release(self, family: PartitionFamily, key: bytes) -> list[WorkItem]:
        """The parked messages of the key that need not wait any more, in order."""
        items = family.parked.take(key, family.blocked.lowest(key))
        for item in items:
            item.assigned.unpark(item)
        return items

    # -- reports -------------------------------------------------------------------------------------------------------------

    def _settle_handled(self, report: BundleReport) -> None:
        items = report.handled
        if not items:
            return
        self._counts.add("handled", len(items) - report.duplicates)
        self._counts.add("duplicates", report.duplicates)
        begin = 0
        for end in range(1, len(items) + 1):
            if end < len(items) and items[end].assigned is items[begin].assigned:
                continue
            assigned: AssignedPartition = items[begin].assigned
            if not assigned.is_closed:
                assigned.finish(items[begin:end])
            begin = end
        breaker = report.execution.breaker
        if breaker is not None:
            was_probing = breaker.state is BreakerState.PROBING
            breaker.succeeded(len(items), self._clock.monotonic_ms())
            if was_probing:
                log.warning("%s: the circuit breaker is closed, because a probe was handled", report.execution.name)

    def _settle_failure(self, failure: HandlerFailure, breaker: Breaker | None) -> SettledFailure:
        item = failure.item
        if item.assigned.is_closed:
            return SettledFailure(item)
        if breaker is not None and self._is_taken_back(failure, breaker):
            self._counts.add("put_back")
            return SettledFailure(item, is_put_back=not item.assigned.is_stopping)
        self._counts.add("failed")
        retry = self._decide(failure)
        letter = failed_letter(
            failure,
            retry,
            group=self._options.group,
            application_version=self._options.application_version,
            now_ms=self._clock.now_ms(),
        )
        family = item.assigned.family
        if retry is None:
            self._counts.add("dead")
            log.error(
                "%s[%d]@%d is a dead letter after %d attempts: %s: %s",
                *(letter.topic, letter.partition, letter.offset, letter.attempts),
                *(letter.exception_class, letter.exception_message),
            )
            self._send(item, dead_letter_topic(family.source, self._options.group), letter)
        else:
            self._counts.add("retried")
            if self._keeps_key_order and item.message.key is not None:
                family.blocked.add(item.message.key, item.source_offset, retry)
            self._send(item, retry_topic(family.source, self._options.group, retry.level), letter)
        return SettledFailure(item, is_retried=retry is not None)

    def _is_taken_back(self, failure: HandlerFailure, breaker: Breaker) -> bool:
        """Whether the circuit breaker is open, so that the failure does not count."""
        if isinstance(failure.error, InProgress):
            # The handler was not called.
            return False
        now_ms = self._clock.monotonic_ms()
        was_closed = breaker.state is BreakerState.CLOSED
        if failure.item.attempts and was_closed:
            # A message that failed before says more about itself than about what it depends on.
            return False
        # A handler that chose to wait has spoken about its message, and not about what it depends on.
        if isinstance(failure.error, Retry) or not breaker.counts(failure.error, failure.is_retriable):
            breaker.failed_otherwise(now_ms)
            return False
        is_taken_back = breaker.failed(now_ms)
        if was_closed and breaker.state is BreakerState.OPEN:
            name = failure.item.assigned.execution.name
            log.warning("%s: the circuit breaker is open: %s", name, failure.story.exception_message)
        return is_taken_back

    def _decide(self, failure: HandlerFailure) -> ScheduledRetry | None:
        item, now_ms, fraction = failure.item, self._clock.now_ms(), self._randomness.fraction()
        if isinstance(failure.error, InProgress):
            return self._policy.look_again(item.attempts, now_ms, fraction)
        if isinstance(failure.error, Retry) and failure.error.delay is not None:
            return self._policy.decide_delay(item.attempts + failure.tries, failure.error.delay, now_ms)
        return self._policy.decide(item.attempts + failure.tries, failure.is_retriable, now_ms, fraction)

    def _send(self, item: WorkItem, topic: str, letter: Letter) -> None:
        if self._outbox.send(OutgoingLetter(topic, letter, item)) and not item.assigned.is_closed:
            item.assigned.finish((item,))


# -- letters -----------------------------------------------------------------------------------------------------------------


def failed_letter(
    failure: HandlerFailure, retry: ScheduledRetry | None, *, group: str, application_version: str | None, now_ms: int
) -> Letter:
    """The letter of a message that failed; a dead letter if ``retry`` is None."""
    item = failure.item
    before = item.letter
    story = failure.story
    return Letter(
        topic=item.assigned.family.source,
        partition=item.assigned.family.partition if before is None else before.partition,
        offset=item.source_offset,
        timestamp_ms=item.message.timestamp if before is None else before.timestamp_ms,
        group=group,
        attempts=item.attempts + (0 if isinstance(failure.error, InProgress) else failure.tries),
        first_failure_ms=now_ms if before is None or not before.attempts else before.first_failure_ms,
        last_failure_ms=now_ms,
        exception_class=story.exception_class,
        exception_message=story.exception_message,
        traceback=story.traceback,
        application_version=application_version,
        replays=0 if before is None else before.replays,
        level=None if retry is None else retry.level,
        due_ms=None if retry is None else retry.due_ms,
    )


def waiting_letter(item: WorkItem, retry: ScheduledRetry, *, group: str, now_ms: int) -> Letter:
    """The letter of a message that did not fail, but waits behind one that did. Its attempts stay as they are."""
    if item.letter is not None:
        return item.letter._replace(level=retry.level, due_ms=retry.due_ms)
    return Letter(
        topic=item.assigned.family.source,
        partition=item.assigned.family.partition,
        offset=item.offset,
        timestamp_ms=item.message.timestamp,
        group=group,
        attempts=0,
        first_failure_ms=now_ms,
        last_failure_ms=now_ms,
        exception_class="",
        exception_message="not tried yet: it waits behind an earlier message of its key",
        level=retry.level,
        due_ms=retry.due_ms,
    )
