"""Letters: the story grows with each failure, and a letter that waits keeps its own."""

from tests.worker.fakes import assigned, work_item
from tidelog.worker.dispatch import Lane
from tidelog.worker.failures import InProgress, ScheduledRetry
from tidelog.worker.handler import HandlerFailure
from tidelog.worker.partitions import WorkItem
from tidelog.worker.settlement import failed_letter, waiting_letter


def fail(of: WorkItem, error: Exception, retry: ScheduledRetry | None, tries: int = 1, now_ms: int = 100) -> WorkItem:
    letter = failed_letter(HandlerFailure(of, error, tries, True), retry, group="email", application_version="v1", now_ms=now_ms)
    return work_item(Lane(), 70, assigned(level=0, partition=3), letter)


def test_the_story_of_two_failures() -> None:
    first = work_item(Lane(), 42, assigned(partition=3))
    second = fail(first, OSError("one"), ScheduledRetry(0, 500), tries=2)
    letter = second.letter
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp_ms) == ("orders", 3, 42, 5)
    assert (letter.attempts, letter.level, letter.due_ms, letter.group) == (2, 0, 500, "email")
    dead = fail(second, ValueError("two"), None, now_ms=900).letter
    assert dead is not None
    assert (dead.offset, dead.attempts, dead.level, dead.due_ms) == (42, 3, None, None)
    assert (dead.first_failure_ms, dead.last_failure_ms) == (100, 900)
    assert (dead.exception_class, dead.exception_message, dead.application_version) == ("ValueError", "two", "v1")
    assert second.source_offset == 42
    assert second.handler_message().offset == 42


def test_one_that_waits_has_no_attempt_and_keeps_its_own_story() -> None:
    fresh = waiting_letter(work_item(Lane(), 43), ScheduledRetry(2, 700), group="email", now_ms=100)
    assert (fresh.offset, fresh.attempts, fresh.level, fresh.due_ms) == (43, 0, 2, 700)
    tried = fail(work_item(Lane(), 44), OSError("x"), ScheduledRetry(1, 300))
    again = waiting_letter(tried, ScheduledRetry(3, 800), group="email", now_ms=200)
    assert tried.letter is not None
    assert again == tried.letter._replace(level=3, due_ms=800)
    # Its first failure is the first that it had itself.
    waited = work_item(Lane(), 80, assigned(level=2), fresh)
    letter = fail(waited, OSError("x"), ScheduledRetry(0, 900), now_ms=600).letter
    assert letter is not None
    assert (letter.attempts, letter.first_failure_ms) == (1, 600)


def test_what_is_in_progress_elsewhere_is_no_attempt() -> None:
    letter = fail(work_item(Lane(), 1), InProgress("x"), ScheduledRetry(0, 1), tries=0).letter
    assert letter is not None
    assert letter.attempts == 0
