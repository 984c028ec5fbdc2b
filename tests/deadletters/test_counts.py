"""Letters counted by group, error and age, in bounded memory."""

from tests.deadletters.plain import TOPIC, dead_letter
from tidelog.deadletters.counts import DAY_MS, HOUR_MS, OTHER, ROWS_MAX, UNKNOWN_GROUP, Counter

NOW_MS = 100 * DAY_MS


def test_each_letter_is_counted_once_by_its_age() -> None:
    counter = Counter(NOW_MS)
    for age_ms in (0, HOUR_MS - 1, HOUR_MS, DAY_MS, 7 * DAY_MS, 50 * DAY_MS):
        counter.add(dead_letter(failed_ms=NOW_MS - age_ms))
    (count,) = counter.counts()
    assert (count.letters, count.by_age) == (6, (2, 1, 1, 2))
    assert (count.oldest_ms, count.newest_ms) == (50 * DAY_MS, NOW_MS)


def test_the_most_frequent_error_of_a_group_comes_first() -> None:
    counter = Counter(NOW_MS)
    for group, error in (("email", "A"), ("email", "B"), ("email", "B"), ("audit", "C")):
        counter.add(dead_letter(group=group, error=error))
    assert [(count.group, count.error, count.letters) for count in counter.counts()] == [
        ("audit", "C", 1),
        ("email", "B", 2),
        ("email", "A", 1),
    ]


def test_a_message_without_story_or_time_is_counted_as_old() -> None:
    counter = Counter(NOW_MS)
    counter.add(dead_letter(letter=None, timestamp_ms=None))
    (count,) = counter.counts()
    assert (count.topic, count.group, count.error) == (TOPIC, UNKNOWN_GROUP, "(no story)")
    assert (count.oldest_ms, count.by_age) == (None, (0, 0, 0, 1))


def test_made_up_errors_do_not_fill_the_memory() -> None:
    counter = Counter(NOW_MS)
    for number in range(ROWS_MAX + 50):
        counter.add(dead_letter(error=f"Error{number}"))
    counts = counter.counts()
    assert len(counts) == ROWS_MAX + 1
    assert sum(count.letters for count in counts) == ROWS_MAX + 50
    assert [count.letters for count in counts if count.error == OTHER] == [50]
