"""Failures on a real broker: retried, dead-lettered with their story, or a reason to pause."""

import time
from itertools import pairwise

import pytest

from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.message import Message
from tidelog.deadletters.letter import Letter
from tidelog.worker import CircuitBreaker, Reject, Retry


@pytest.fixture
def place(kafka: ToolkitBroker) -> Place:
    return Place(kafka.bootstrap)


def test_a_failure_is_retried_through_the_levels_and_then_a_dead_letter_with_its_story(place: Place) -> None:
    place.send(["good", "bad"], headers=[("trace", b"1"), ("trace", b"2")])
    tries: list[tuple[str, int, float]] = []
    worker = place.worker(retries=2, application_version="1.2.3")

    @worker.handler
    def handle(message: Message) -> None:
        attempts = int(message.headers.get("tidelog.attempts") or b"0")
        tries.append((message.text() or "", attempts, time.monotonic()))
        assert message.topic == place.topic
        if message.value == b"bad":
            raise ValueError("no good")

    with running(worker) as run:
        run.until(lambda: len(place.read(place.dead_letters)) == 1, "the dead letter is there")
    bad = [(attempts, at) for text, attempts, at in tries if text == "bad"]
    assert [attempts for attempts, _ in bad] == [0, 1, 2]
    # At least base * 2**level each.
    assert bad[1][1] - bad[0][1] >= 0.05
    assert bad[2][1] - bad[1][1] >= 0.1
    (dead,) = place.read(place.dead_letters)
    letter = Letter.from_headers(dead.headers_list)
    assert letter is not None
    assert (dead.value, dead.headers_list[:2]) == (b"bad", [("trace", b"1"), ("trace", b"2")])
    source = next(message for message in place.read(place.topic) if message.value == b"bad")
    assert (letter.topic, letter.partition, letter.offset) == (place.topic, source.partition, source.offset)
    assert dead.partition == source.partition
    assert (letter.timestamp_ms, letter.group, letter.attempts) == (source.timestamp, place.group, 3)
    assert (letter.exception_class, letter.exception_message) == ("ValueError", "no good")
    assert "in handle" in letter.traceback
    assert letter.application_version == "1.2.3"
    assert letter.first_failure_ms < letter.last_failure_ms
    assert (letter.level, letter.due_ms) == (None, None)
    metrics = worker.metrics()
    assert (metrics.handled, metrics.failed, metrics.retried, metrics.dead) == (1, 3, 2, 1)
    for level in range(2):
        (retry,) = place.read(place.retries(level))
        assert (retry.value, retry.headers_list[:2]) == (b"bad", [("trace", b"1"), ("trace", b"2")])


def test_poison_and_what_is_rejected_are_dead_at_once_with_their_bytes_untouched(place: Place) -> None:
    place.send([b"\xff\xfe{", b"reject", b'"fine"'], key=lambda _: "k")
    handled: list[str] = []
    worker = place.worker(retries=3)

    @worker.handler
    def handle(message: Message) -> None:
        if message.value == b"reject":
            raise Reject("not for us")
        handled.append(message.json())

    with running(worker) as run:
        run.until(lambda: worker.metrics().dead == 2 and handled == ["fine"], "both are dead")
    assert sorted(message.value or b"" for message in place.read(place.dead_letters)) == [b"reject", b"\xff\xfe{"]
    assert worker.metrics().retried == 0


@pytest.mark.parametrize("retriable", [(KeyError,), lambda error: isinstance(error, KeyError)])
def test_what_is_retriable_is_the_callers_to_say(place: Place, retriable: object) -> None:
    place.send(["key", "other"])
    worker = place.worker(retries=1, retriable=retriable)

    @worker.handler
    def handle(message: Message) -> None:
        raise KeyError if message.value == b"key" else OSError("other")

    with running(worker) as run:
        run.until(lambda: len(place.read(place.dead_letters)) == 2, "both are dead")
    letters = {message.value: Letter.from_headers(message.headers_list) for message in place.read(place.dead_letters)}
    assert {value: letter.attempts for value, letter in letters.items() if letter} == {b"key": 2, b"other": 1}


def test_a_hiccup_is_retried_in_place(place: Place) -> None:
    place.send(["a"])
    tries: list[int] = []
    worker = place.worker(in_place_retries=2, retries=1)

    @worker.handler
    def handle(_: Message) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("a hiccup")

    with running(worker) as run:
        run.until(lambda: worker.metrics().handled == 1, "it is handled")
    assert (len(tries), worker.metrics().failed, worker.metrics().retried) == (3, 0, 0)


def test_the_circuit_breaker_pauses_and_probes_instead_of_dead_lettering(place: Place) -> None:
    place.send(range(300))
    is_down = True
    tries: list[float] = []
    breaker = CircuitBreaker(failures=5, share=0.5, window=10, pause=0.3, pause_cap=0.6)
    worker = place.worker(retries=0, circuit_breaker=breaker, concurrency=1)

    @worker.handler
    def handle(_: Message) -> None:
        tries.append(time.monotonic())
        if is_down:
            raise ConnectionError("the database is down")

    with running(worker) as run:
        run.until(lambda: "closed" not in worker.metrics().breakers.values(), "it opens")
        before = len(tries)
        run.until(lambda: len(tries) >= before + 3, "some probes failed")
        assert "closed" not in worker.metrics().breakers.values()
        is_down, down_seconds = False, time.monotonic() - tries[0]
        run.until(lambda: worker.metrics().handled + worker.metrics().dead == 300, "all are handled")
        assert set(worker.metrics().breakers.values()) == {"closed"}
    metrics = worker.metrics()
    # Every attempt was handled, made a dead letter, or was taken back by the open breaker.
    assert metrics.handled + metrics.dead + metrics.put_back == len(tries)
    # Dead are the failures before the one that opened it, and the probes: one for each pause, and one that may be under way.
    assert 4 <= metrics.dead <= 4 + down_seconds / breaker.pause + 1
    assert len(place.read(place.dead_letters)) == metrics.dead


def test_a_handler_chooses_when_it_wants_its_message_back(place: Place) -> None:
    """Twice with a delay that the backoff would not have had, then never again: a dead letter with three attempts."""
    place.send(["later"])
    seen: list[tuple[int, float]] = []
    worker = place.worker(retries=2)

    @worker.handler
    def handle(message: Message) -> None:
        seen.append((message.attempt, time.monotonic()))
        raise Retry("not yet", delay=0.7)

    with running(worker) as run:
        run.until(lambda: len(place.read(place.dead_letters)) == 1, "the dead letter is there")
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert all(later - earlier >= 0.7 for (_, earlier), (_, later) in pairwise(seen))
    letter = Letter.from_headers(place.read(place.dead_letters)[0].headers_list)
    assert letter is not None
    assert (letter.attempts, letter.exception_message) == (3, "not yet")
