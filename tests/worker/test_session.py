"""A run of a worker on a real broker, where things happen at the wrong moment."""

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, Run, running
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.client.raw_consumer import RawConsumer
from tidelog.worker import CircuitBreaker, SqliteDeduplicator, session
from tidelog.worker.session import Liveness


@pytest.fixture
def place(kafka: ToolkitBroker) -> Place:
    return Place(kafka.bootstrap)


def test_a_probe_that_went_with_its_partition_does_not_leave_the_breaker_open_for_ever(place: Place) -> None:
    place.send(range(40))
    seen: list[bytes | None] = []
    is_down = True
    is_probing, release, is_over = threading.Event(), threading.Event(), threading.Event()
    breaker = CircuitBreaker(failures=3, share=0.5, window=10, pause=0.3, pause_cap=0.6)
    worker = place.worker(circuit_breaker=breaker, concurrency=1, drain_timeout=0.1)

    @worker.handler
    def handle(message: Message) -> None:
        if "closed" not in worker.metrics().breakers.values():
            is_probing.set()
            release.wait(30)
        if is_down:
            if release.is_set():
                is_over.set()
            raise ConnectionError("the database is down")
        seen.append(message.value)

    other = place.worker()

    @other.handler
    def handle_elsewhere(message: Message) -> None:
        seen.append(message.value)

    with running(worker) as run:
        assert is_probing.wait(30)
        with running(other) as second:
            # The first is not waited for: its probe is still under way when its partitions go.
            second.until(lambda: bool(seen), "partitions went to the other")
        release.set()
        assert is_over.wait(30)
        is_down = False
        place.send(range(40, 80))
        run.until(lambda: len(set(seen)) == 80, "all are handled")


@pytest.mark.parametrize("failing", ["ensure_roles", "CommitSchedule"])
def test_a_run_that_fails_while_it_opens_closes_its_consumer(place: Place, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[RawConsumer] = []
    close = RawConsumer.close

    def note_close(consumer: RawConsumer) -> None:
        closed.append(consumer)
        close(consumer)

    def fail(*_: object, **__: object) -> None:
        raise LookupError("no such stage")

    monkeypatch.setattr(RawConsumer, "close", note_close)
    monkeypatch.setattr(session, failing, fail)
    worker = place.worker()
    worker.handler(lambda message: None)
    run = Run(worker)
    run.thread.join(30)
    assert isinstance(run.error, LookupError)
    assert len(closed) == 1


def test_a_handler_that_returns_a_coroutine_ends_the_run_and_nothing_is_committed(place: Place) -> None:
    async def work(_: Message) -> None:
        raise AssertionError("nobody awaits it")

    worker = place.worker()
    worker.handler(lambda message: work(message))
    place.send(["x"])
    run = Run(worker)
    run.thread.join(30)
    assert isinstance(run.error, InvalidArgument)
    assert sum(max(offset, 0) for offset, _ in place.committed().values()) == 0


def test_copies_that_come_side_by_side_are_handled_once_and_are_no_failures(place: Place, tmp_path: Path) -> None:
    place.send(range(20), headers=[("message-id", b"one")])
    seen: list[bytes | None] = []
    worker = place.worker(
        order="none", deduplicate=SqliteDeduplicator(tmp_path / "seen.db"), circuit_breaker=CircuitBreaker(failures=3, pause=20)
    )

    @worker.handler
    def handle(message: Message) -> None:
        seen.append(message.value)
        # Until another one has come by.
        wait_until(lambda: worker.metrics().retried > 0, "a copy looks again later", 30)

    with running(worker) as run:
        run.until(lambda: worker.metrics().duplicates == 19, "all others were recognised")
        assert set(worker.metrics().breakers.values()) == {"closed"}
    assert len(seen) == 1
    assert place.read(place.dead_letters) == []


def test_a_stop_takes_no_lock_that_its_own_thread_may_hold(place: Place) -> None:
    """A signal is handled between any two steps of the polling thread, and a second one within the first."""
    worker = place.worker()
    worker.handler(lambda _: None)
    with running(worker) as run:
        run.until(lambda: worker.is_joined, "it has joined")
        made: list[str] = []

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename == threading.__file__:
                made.append(frame.f_code.co_name)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            worker.stop()
        finally:
            sys.setprofile(before)
        assert made == []
    assert run.result is True


def test_it_lives_while_it_beats_and_nothing_hangs(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    liveness = Liveness(2.0, file)
    assert not liveness.is_alive(0)
    assert not file.exists()
    liveness.beat(1_000, 0)
    assert liveness.is_alive(2_999)
    assert not liveness.is_alive(3_000)
    file.unlink()
    liveness.beat(1_500, 0)
    assert not file.exists(), "once a second is enough"
    liveness.beat(5_000, 2_000)
    assert not liveness.is_alive(5_000), "a handler hangs"
    assert not file.exists()
    liveness.beat(5_001, 1_999)
    assert liveness.is_alive(5_001)
    assert file.exists()
    liveness.end()
    assert not liveness.is_alive(5_001)
