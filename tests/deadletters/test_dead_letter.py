"""Dead letters without a broker: which may be replayed, filters, counts, and depths as Prometheus' text."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deadletters.plain import TOPIC, dead_letter
from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.dead_letter import (
    DAY_MS,
    HOUR_MS,
    OTHER,
    ROWS_MAX,
    UNKNOWN_GROUP,
    Depth,
    LetterCounter,
    LetterFilter,
    matches_error,
    prometheus_text,
)

NOW_MS = 100 * DAY_MS


def test_only_a_story_of_its_own_topic_may_be_replayed() -> None:
    dead = dead_letter()
    assert dead.is_replayable
    assert not dead._replace(letter=None).is_replayable
    assert not dead._replace(topic="payments.email.dlq").is_replayable
    assert not dead_letter(group="other").is_replayable


def test_each_letter_is_counted_once_by_its_age() -> None:
    counter = LetterCounter(NOW_MS)
    for age_ms in (0, HOUR_MS - 1, HOUR_MS, DAY_MS, 7 * DAY_MS, 50 * DAY_MS):
        counter.add(dead_letter(failed_ms=NOW_MS - age_ms))
    (count,) = counter.counts()
    assert (count.letters, count.by_age) == (6, (2, 1, 1, 2))
    assert (count.oldest_ms, count.newest_ms) == (50 * DAY_MS, NOW_MS)


def test_the_most_frequent_error_of_a_group_comes_first() -> None:
    counter = LetterCounter(NOW_MS)
    for group, error in (("email", "A"), ("email", "B"), ("email", "B"), ("audit", "C")):
        counter.add(dead_letter(group=group, error=error))
    assert [(count.group, count.error, count.letters) for count in counter.counts()] == [
        ("audit", "C", 1),
        ("email", "B", 2),
        ("email", "A", 1),
    ]


def test_a_message_without_story_or_time_is_counted_as_old() -> None:
    counter = LetterCounter(NOW_MS)
    counter.add(dead_letter(letter=None, timestamp_ms=None))
    (count,) = counter.counts()
    assert (count.topic, count.group, count.error) == (TOPIC, UNKNOWN_GROUP, "(no story)")
    assert (count.oldest_ms, count.by_age) == (None, (0, 0, 0, 1))


def test_made_up_errors_do_not_fill_the_memory() -> None:
    counter = LetterCounter(NOW_MS)
    for number in range(ROWS_MAX + 50):
        counter.add(dead_letter(error=f"Error{number}"))
    counts = counter.counts()
    assert len(counts) == ROWS_MAX + 1
    assert sum(count.letters for count in counts) == ROWS_MAX + 50
    assert [count.letters for count in counts if count.error == OTHER] == [50]


def test_nothing_asked_for_is_everything() -> None:
    assert LetterFilter().matches(dead_letter())
    assert LetterFilter().matches(dead_letter(letter=None))


@pytest.mark.parametrize(
    ("error", "wanted", "fits"),
    [
        ("app.errors.OutOfStock", "app.errors.OutOfStock", True),
        ("app.errors.OutOfStock", "OutOfStock", True),
        ("app.errors.OutOfStock", "errors.OutOfStock", True),
        ("app.errors.OutOfStock", "Stock", False),
        ("app.errors.OutOfStock", "app.errors", False),
        ("TimeoutError", "TimeoutError", True),
    ],
)
def test_errors_fit_whole_or_by_their_last_parts(error: str, wanted: str, fits: bool) -> None:
    assert matches_error(error, wanted) is fits


def test_all_that_is_given_must_fit() -> None:
    wanted = LetterFilter(
        errors=("KeyError", "OutOfStock"), key=b"k", since_ms=100, until_ms=200, partition=1, first_offset=5, last_offset=9
    )
    fields = {"key": b"k", "failed_ms": 150, "partition": 1, "offset": 5}
    assert wanted.matches(dead_letter(**fields))
    assert wanted.matches(dead_letter(**{**fields, "offset": 9, "failed_ms": 100}))
    for change in ({"key": None}, {"failed_ms": 99}, {"failed_ms": 200}, {"partition": 0}, {"offset": 4}, {"offset": 10}):
        assert not wanted.matches(dead_letter(**{**fields, **change}))
    assert not wanted._replace(errors=("KeyError",)).matches(dead_letter(**fields))


def test_a_message_without_a_story_has_the_time_of_its_record() -> None:
    assert LetterFilter(since_ms=100).matches(dead_letter(letter=None, timestamp_ms=100))
    assert not LetterFilter(since_ms=101).matches(dead_letter(letter=None, timestamp_ms=100))
    assert not LetterFilter(since_ms=0).matches(dead_letter(letter=None, timestamp_ms=None))
    assert not LetterFilter(until_ms=1000).matches(dead_letter(letter=None, timestamp_ms=None))


def test_only_what_may_fit_is_read() -> None:
    assert LetterFilter().narrow(0, 10, 20) == (10, 20)
    assert LetterFilter().narrow(0, 10, 10) is None
    assert LetterFilter(partition=1).narrow(0, 10, 20) is None
    assert LetterFilter(first_offset=12, last_offset=15).narrow(0, 10, 20) == (12, 16)
    assert LetterFilter(first_offset=2, last_offset=50).narrow(0, 10, 20) == (10, 20)
    assert LetterFilter(last_offset=9).narrow(0, 10, 20) is None


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (LetterFilter(since_ms=5, until_ms=5), "not before"),
        (LetterFilter(first_offset=6, last_offset=5), "first offset, 6, is above the last one, 5"),
        (LetterFilter(first_offset=-1), "offsets begin at 0"),
        (LetterFilter(last_offset=-1), "offsets begin at 0"),
        (LetterFilter(partition=-1), "partitions begin at 0"),
    ],
)
def test_what_can_never_fit_is_refused(wanted: LetterFilter, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        wanted.checked()


def test_the_text_is_what_prometheus_reads() -> None:
    depths = [Depth("a.b.dlq", 3, NOW_MS - 65_000), Depth("c.d.dlq", 0)]
    families = list(text_string_to_metric_families(prometheus_text(depths, NOW_MS)))
    assert [(family.name, family.type) for family in families] == [
        ("tidelog_dead_letters", "gauge"),
        ("tidelog_dead_letters_oldest_seconds", "gauge"),
    ]
    samples = [(sample.labels["topic"], sample.value) for family in families for sample in family.samples]
    assert samples == [("a.b.dlq", 3), ("c.d.dlq", 0), ("a.b.dlq", 65), ("c.d.dlq", 0)]


def test_an_estimate_has_no_age() -> None:
    text = prometheus_text([Depth("a.b.dlq", 3, is_estimate=True)], NOW_MS)
    assert 'tidelog_dead_letters{topic="a.b.dlq"} 3\n' in text
    assert "oldest" not in text


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert 'oldest_seconds{topic="a.b.dlq"} 0\n' in prometheus_text([Depth("a.b.dlq", 3, NOW_MS + 5000)], NOW_MS)
