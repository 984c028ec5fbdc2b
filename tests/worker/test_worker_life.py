"""A worker's life on a real broker: how it starts and refuses to, runs in a program, stops, and is watched."""

import asyncio
import os
import signal
import threading

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, Run, running
from tidelog.client.errors import BrokerUnavailable, InvalidArgument, UnknownTopic
from tidelog.client.librdkafka import REFUSED_SECONDS
from tidelog.client.message import Message
from tidelog.worker import Worker
from tidelog.worker.worker import _stopping_on_signals


@pytest.fixture(scope="module", autouse=True)
def without_broker() -> Run:
    """It waits for most of ten seconds; beside the other tests."""
    worker = Worker("127.0.0.1:1", group="g", topics=["t"])
    worker.handler(print)
    return Run(worker)


@pytest.fixture
def place(kafka: ToolkitBroker) -> Place:
    return Place(kafka.bootstrap)


def test_an_async_program_runs_it_on_its_own_loop(place: Place) -> None:
    place.send(range(10))
    worker = place.worker()
    loops = set()

    @worker.handler
    async def handle(_: Message) -> None:
        loops.add(asyncio.get_running_loop())

    async def program() -> bool:
        running_worker = asyncio.create_task(worker.run_async())
        while worker.metrics().handled < 10:
            await asyncio.sleep(0.02)
        assert loops == {asyncio.get_running_loop()}
        worker.stop()
        return await running_worker

    assert asyncio.run(program()) is True


def test_bad_input_is_told_at_once(place: Place) -> None:
    worker = place.worker()
    with pytest.raises(InvalidArgument, match="cannot be called"):
        worker.handler(3)  # type: ignore[call-overload]  # what is tested
    with pytest.raises(InvalidArgument, match="has no handler"):
        worker.run()
    with pytest.raises(InvalidArgument, match="does not read the topic"):
        worker.handler(topic="other")(print)
    missing = place.worker(topics=["not-there"])
    missing.handler(print)
    with pytest.raises(UnknownTopic, match="not-there"):
        missing.run()


def test_stop_drains_what_is_under_way_and_says_whether_it_could(place: Place) -> None:
    place.send(range(4))
    started, release = threading.Event(), threading.Event()
    worker = place.worker(order="none", drain_timeout=20)

    @worker.handler
    def handle(_: Message) -> None:
        started.set()
        release.wait(30)

    with running(worker) as run:
        run.until(started.is_set, "it began")
        assert worker.alive()
        worker.stop()
        release.set()
        run.thread.join(20)
    assert run.result is True
    assert not worker.alive()
    assert sum(offset for offset, _ in place.committed().values() if offset > 0) >= 1


def test_liveness_is_lost_when_a_handler_hangs_and_the_file_is_not_touched(place: Place, tmp_path: object) -> None:
    place.send(["a"])
    release = threading.Event()
    worker = place.worker(liveness_timeout=0.3, liveness_file=f"{tmp_path}/alive", drain_timeout=1)

    @worker.handler
    def handle(_: Message) -> None:
        release.wait(30)

    with running(worker) as run:
        run.until(lambda: worker.metrics().longest_running_seconds > 0, "it hangs")
        wait_until(lambda: not worker.alive(), "it does not count as alive", 10)
        release.set()
        wait_until(worker.alive, "it does again", 10)


def test_metrics_as_text(place: Place) -> None:
    place.send(range(3), partition=0)
    worker = place.worker()

    @worker.handler
    def handle(_: Message) -> None:
        pass

    with running(worker) as run:
        run.until(lambda: worker.metrics().handled == 3 and worker.metrics().lag.get((place.topic, 0)) == 0, "all are handled")
        text = worker.metrics().text(place.group).decode()
    assert f'tidelog_worker_handled_total{{group="{place.group}"}} 3' in text
    assert f'tidelog_worker_lag_messages{{group="{place.group}",topic="{place.topic}",partition="0"}} 0' in text
    assert f'tidelog_worker_message_seconds_count{{group="{place.group}"}} 3' in text


def test_the_first_stops_and_the_second_stops_now() -> None:
    calls: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with _stopping_on_signals(lambda: calls.append("stop"), lambda: calls.append("now")):
        os.kill(os.getpid(), signal.SIGTERM)
        assert calls == ["stop"]
        os.kill(os.getpid(), signal.SIGINT)
        assert calls == ["stop", "now"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with _stopping_on_signals(lambda: None, lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_where_nobody_listens_is_told_by_its_address(without_broker: Run) -> None:
    """The session passes the default time-out, of which tests/client/test_librdkafka.py says what it means."""
    without_broker.thread.join(60)
    assert without_broker.seconds >= REFUSED_SECONDS
    assert isinstance(without_broker.error, BrokerUnavailable)
    assert "127.0.0.1:1" in str(without_broker.error)
