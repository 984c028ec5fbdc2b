"""Letters: the story grows by what happened, a letter that waits keeps its own."""

from tests.worker.fakes import assigned, job
from tidelog.worker.attempt import Failure
from tidelog.worker.failures import InProgress, Retry
from tidelog.worker.job import Job, Lane
from tidelog.worker.letters import failed_letter, foreign_letter, waiting_letter


def fail(of: Job, error: Exception, retry: Retry | None, tries: int = 1, now_ms: int = 100) -> Job:
    letter = failed_letter(Failure(of, error, tries, True), retry, group="email", application_version="v1", now_ms=now_ms)
    return job(Lane(), 70, assigned(level=0, partition=3), letter)


def test_the_story_of_two_failures() -> None:
    first = job(Lane(), 42, assigned(partition=3))
    second = fail(first, OSError("one"), Retry(0, 500), tries=2)
    letter = second.letter
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset, letter.timestamp_ms) == ("orders", 3, 42, 5)
    assert (letter.attempts, letter.level, letter.due_ms, letter.group) == (2, 0, 500, "email")
    dead = fail(second, ValueError("two"), None, now_ms=900).letter
    assert dead is not None
    assert (dead.offset, dead.attempts, dead.level, dead.due_ms) == (42, 3, None, None)
    assert (dead.first_failure_ms, dead.last_failure_ms) == (100, 900)
    assert (dead.exception_class, dead.exception_message, dead.application_version) == ("ValueError", "two", "v1")
    assert second.origin == 42
    assert second.message().offset == 42


def test_one_that_waits_has_no_attempt_and_keeps_its_own_story() -> None:
    fresh = waiting_letter(job(Lane(), 43), 2, 700, group="email", now_ms=100)
    assert (fresh.offset, fresh.attempts, fresh.level, fresh.due_ms) == (43, 0, 2, 700)
    tried = fail(job(Lane(), 44), OSError("x"), Retry(1, 300))
    again = waiting_letter(tried, 3, 800, group="email", now_ms=200)
    assert tried.letter is not None
    assert again == tried.letter._replace(level=3, due_ms=800)
    # Its first failure is the first that it had itself.
    waited = job(Lane(), 80, assigned(level=2), fresh)
    letter = fail(waited, OSError("x"), Retry(0, 900), now_ms=600).letter
    assert letter is not None
    assert (letter.attempts, letter.first_failure_ms) == (1, 600)


def test_what_is_in_progress_elsewhere_is_no_attempt() -> None:
    letter = fail(job(Lane(), 1), InProgress("x"), Retry(0, 1), tries=0).letter
    assert letter is not None
    assert letter.attempts == 0


def test_a_letter_that_somebody_wrote_by_hand_is_due() -> None:
    letter = foreign_letter("orders", 1, 2, 9, None, "email")
    assert (letter.attempts, letter.due_ms, letter.level) == (0, 0, 2)
