"""The story in a message's headers: there and back, bounded, and never in the way of the message's own headers."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.deadletters.letter import (
    HEADERS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    NAMES,
    TRACEBACK_BYTES_MAX,
    Letter,
    cut_beginning,
    cut_end,
    describe_exception,
    origin_headers,
)

LETTER = Letter(
    topic="orders",
    partition=3,
    offset=17,
    timestamp_ms=1_700_000_000_000,
    group="email",
    attempts=6,
    first_failure_ms=1_700_000_001_000,
    last_failure_ms=1_700_000_061_000,
    exception_class="app.errors.OutOfStock",
    exception_message="no more of 42",
    traceback="Traceback ...",
    application_version="1.4.0",
)
HEADERS: list[tuple[str, bytes | None]] = [("a", b"1"), ("traceparent", b"00-..."), ("a", None), ("tidelog.mine", b"stays")]
NUMBERS = st.integers(0, (1 << 63) - 1)

letters = st.builds(
    Letter,
    topic=st.text(min_size=1, max_size=20),
    partition=NUMBERS,
    offset=NUMBERS,
    timestamp_ms=st.none() | NUMBERS,
    group=st.text(max_size=20),
    attempts=NUMBERS,
    first_failure_ms=NUMBERS,
    last_failure_ms=NUMBERS,
    exception_class=st.text(max_size=50),
    exception_message=st.text(max_size=200),
    traceback=st.text(max_size=200),
    application_version=st.none() | st.text(max_size=20),
    replays=NUMBERS,
    is_from_broker=st.just(False),
    level=st.none() | NUMBERS,
    due_ms=st.none() | NUMBERS,
)


def test_golden_headers() -> None:
    assert LETTER._replace(level=1, due_ms=5, replays=2).to_headers([("a", b"1")]) == [
        ("a", b"1"),
        ("tidelog.origin.topic", b"orders"),
        ("tidelog.origin.partition", b"3"),
        ("tidelog.origin.offset", b"17"),
        ("tidelog.origin.timestamp", b"1700000000000"),
        ("tidelog.group", b"email"),
        ("tidelog.attempts", b"6"),
        ("tidelog.failure.first", b"1700000001000"),
        ("tidelog.failure.last", b"1700000061000"),
        ("tidelog.exception.class", b"app.errors.OutOfStock"),
        ("tidelog.exception.message", b"no more of 42"),
        ("tidelog.exception.traceback", b"Traceback ..."),
        ("tidelog.application.version", b"1.4.0"),
        ("tidelog.replays", b"2"),
        ("tidelog.retry.level", b"1"),
        ("tidelog.retry.due", b"5"),
    ]
    assert {name for name, _ in LETTER._replace(level=1, due_ms=5, replays=2).to_headers()} == NAMES


@given(letters)
def test_round_trip(letter: Letter) -> None:
    assert Letter.from_headers(letter.to_headers(HEADERS)) == letter
    assert origin_headers(letter.to_headers(HEADERS)) == HEADERS


def test_a_second_failure_replaces_the_story() -> None:
    once = LETTER._replace(level=0, due_ms=9).to_headers(HEADERS)
    twice = LETTER._replace(attempts=7).to_headers(once)
    assert twice == LETTER._replace(attempts=7).to_headers(HEADERS)
    assert [name for name, _ in twice].count("tidelog.attempts") == 1


def test_no_story_or_one_that_makes_no_sense_is_none() -> None:
    assert Letter.from_headers(None) is None
    assert Letter.from_headers(HEADERS) is None
    story = dict(LETTER.to_headers())
    for name in ("tidelog.origin.topic", "tidelog.origin.offset", "tidelog.group", "tidelog.exception.class"):
        assert Letter.from_headers([(key, value) for key, value in story.items() if key != name]) is None
        assert Letter.from_headers([(key, None if key == name else value) for key, value in story.items()]) is None
    for content in (b"seven", b"9" * 5000, b""):
        assert Letter.from_headers([*story.items(), ("tidelog.attempts", content)]) is None


@given(st.text(max_size=60), st.integers(3, 50))
def test_cut_text_fits_and_keeps_its_end_or_beginning(text: str, bytes_max: int) -> None:
    beginning, end = cut_end(text, bytes_max), cut_beginning(text, bytes_max)
    for cut in (beginning, end):
        assert len(cut.encode()) <= bytes_max
    if len(text.encode()) <= bytes_max:
        assert beginning == end == text
    else:
        assert text.startswith(beginning.removesuffix("..."))
        assert text.endswith(end.removeprefix("..."))


def test_long_stories_stay_within_their_bounds() -> None:
    long = LETTER._replace(
        exception_class="É" * 9999, exception_message="ü" * 9999, traceback="ß" * 99_999, application_version="v" * 999
    )
    headers = dict(long.to_headers())
    assert len(headers["tidelog.exception.message"] or b"") <= MESSAGE_BYTES_MAX
    assert len(headers["tidelog.exception.traceback"] or b"") <= TRACEBACK_BYTES_MAX
    size = sum(len(name) + len(value or b"") + 10 for name, value in headers.items())
    assert size < HEADERS_BYTES_MAX


class Outer:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")


def test_an_exception_becomes_its_story() -> None:
    try:
        int("x")
    except ValueError as error:
        story = describe_exception(error)
    assert story.exception_class == "ValueError"
    assert story.exception_message == "invalid literal for int() with base 10: 'x'"
    assert 'int("x")' in story.traceback
    assert story.traceback.rstrip().endswith(story.exception_message)


def test_an_exception_that_cannot_say_its_message_is_told_all_the_same() -> None:
    story = describe_exception(Outer.Unspeakable())
    assert story.exception_class == f"{__name__}.Outer.Unspeakable"
    assert story.exception_message == "(its message is not available: RuntimeError)"


def test_of_endless_recursion_the_last_frames_are_kept() -> None:
    def again(depth: int) -> None:
        again(depth + 1)

    try:
        again(0)
    except RecursionError as error:
        story = describe_exception(error)
    assert len(story.traceback.encode()) <= TRACEBACK_BYTES_MAX
    assert "RecursionError" in story.traceback
