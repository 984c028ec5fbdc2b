"""The next letter of a message: after a failure, or while it waits behind another of its key. Pure."""

from tidelog.deadletters.letter import Letter
from tidelog.worker.attempt import Failure
from tidelog.worker.failures import InProgress, Retry
from tidelog.worker.job import Job


def failed_letter(failure: Failure, retry: Retry | None, *, group: str, application_version: str | None, now_ms: int) -> Letter:
    """``retry`` None: it is dead."""
    job = failure.job
    before = job.letter
    attempts = job.attempts + (0 if isinstance(failure.error, InProgress) else failure.tries)
    story = failure.story
    return Letter(
        topic=job.assigned.home.source,
        partition=job.assigned.home.partition if before is None else before.partition,
        offset=job.origin,
        timestamp_ms=job.view.timestamp if before is None else before.timestamp_ms,
        group=group,
        attempts=attempts,
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


def waiting_letter(job: Job, level: int, due_ms: int, *, group: str, now_ms: int) -> Letter:
    """It did not fail: it waits behind one that did. Its own attempts stay as they are."""
    if job.letter is not None:
        return job.letter._replace(level=level, due_ms=due_ms)
    return Letter(
        topic=job.assigned.home.source,
        partition=job.assigned.home.partition,
        offset=job.offset,
        timestamp_ms=job.view.timestamp,
        group=group,
        attempts=0,
        first_failure_ms=now_ms,
        last_failure_ms=now_ms,
        exception_class="",
        exception_message="not tried yet: it waits behind an earlier message of its key",
        level=level,
        due_ms=due_ms,
    )


def foreign_letter(source: str, partition: int, level: int, offset: int, timestamp_ms: int | None, group: str) -> Letter:
    """Of a message in a retry topic that has no story: somebody put it there by hand. It is due now."""
    return Letter(
        topic=source,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        group=group,
        attempts=0,
        first_failure_ms=0,
        last_failure_ms=0,
        exception_class="",
        level=level,
        due_ms=0,
    )
