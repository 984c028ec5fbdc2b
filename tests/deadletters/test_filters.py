"""Which letters fit a filter, by the fields of the letter alone."""

import pytest

from tests.deadletters.plain import dead_letter
from tidelog.client.errors import InvalidArgument
from tidelog.deadletters.filters import Filter, fits_error


def test_nothing_asked_for_is_everything() -> None:
    assert Filter().is_everything
    assert Filter().fits(dead_letter())
    assert Filter().fits(dead_letter(letter=None))
    assert not Filter(partition=0).is_everything


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
    assert fits_error(error, wanted) is fits


def test_all_that_is_given_must_fit() -> None:
    wanted = Filter(
        errors=("KeyError", "OutOfStock"), key=b"k", since_ms=100, until_ms=200, partition=1, first_offset=5, last_offset=9
    )
    fields = {"key": b"k", "failed_ms": 150, "partition": 1, "offset": 5}
    assert wanted.fits(dead_letter(**fields))
    assert wanted.fits(dead_letter(**{**fields, "offset": 9, "failed_ms": 100}))
    for change in ({"key": None}, {"failed_ms": 99}, {"failed_ms": 200}, {"partition": 0}, {"offset": 4}, {"offset": 10}):
        assert not wanted.fits(dead_letter(**{**fields, **change}))
    assert not wanted._replace(errors=("KeyError",)).fits(dead_letter(**fields))


def test_a_message_without_a_story_has_the_time_of_its_record() -> None:
    assert Filter(since_ms=100).fits(dead_letter(letter=None, timestamp_ms=100))
    assert not Filter(since_ms=101).fits(dead_letter(letter=None, timestamp_ms=100))
    assert not Filter(since_ms=0).fits(dead_letter(letter=None, timestamp_ms=None))
    assert not Filter(until_ms=1000).fits(dead_letter(letter=None, timestamp_ms=None))


def test_only_what_may_fit_is_read() -> None:
    assert Filter().narrow(0, 10, 20) == (10, 20)
    assert Filter().narrow(0, 10, 10) is None
    assert Filter(partition=1).narrow(0, 10, 20) is None
    assert Filter(first_offset=12, last_offset=15).narrow(0, 10, 20) == (12, 16)
    assert Filter(first_offset=2, last_offset=50).narrow(0, 10, 20) == (10, 20)
    assert Filter(last_offset=9).narrow(0, 10, 20) is None


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Filter(since_ms=5, until_ms=5), "not before"),
        (Filter(first_offset=6, last_offset=5), "the offsets from 6 to 5 are none"),
        (Filter(first_offset=-1), "offsets begin at 0"),
        (Filter(last_offset=-1), "offsets begin at 0"),
        (Filter(partition=-1), "partitions begin at 0"),
    ],
)
def test_what_can_never_fit_is_refused(wanted: Filter, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        wanted.checked()
