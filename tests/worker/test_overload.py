"""Too much at once: a spike becomes a backlog that drains, and a worker that dies of memory and restarts does not spiral."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import WAIT_SECONDS_MAX, Place, running
from tidelog.client.message import Message
from tidelog.worker.partitions import PARTITION_MESSAGES_MIN
from tidelog.worker.session import READ_BYTES_MAX

ROOT = Path(__file__).parents[2]

# Four at a time, 4 ms each: less than a thousand a second, many times the usual rate and half of the spike.
USUAL_PER_SECOND = 20
SPIKE_PER_SECOND = 100 * USUAL_PER_SECOND
CONCURRENCY = 4
HANDLER_SECONDS = 0.004
PREFETCH_MESSAGES = 500
TICK_SECONDS = 0.01


class Load:
    """Numbered messages at a rate, each with the time at which it was sent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._producer = Producer({"bootstrap.servers": place.bootstrap, "log_level": 0, "linger.ms": 5})
        self._numbers = count()
        self.sent = 0

    def at(self, per_second: int, seconds: float) -> Iterator[None]:
        """A turn of the loop is a tick."""
        begin, first = time.monotonic(), self.sent
        while (passed := time.monotonic() - begin) < seconds:
            while self.sent - first < passed * per_second:
                self._producer.produce(self._place.topic, f"{next(self._numbers)} {time.time()}")
                self.sent += 1
            self._producer.poll(0)
            time.sleep(TICK_SECONDS)
            yield
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0


def spike(place: Place, seconds: float) -> None:
    load = Load(place)
    handled: list[int] = []
    waits: list[float] = []
    worker = place.worker(order="none", concurrency=CONCURRENCY, prefetch_messages=PREFETCH_MESSAGES)

    @worker.handler
    def handle(message: Message) -> None:
        number, sent_at = (message.value or b"").split()
        time.sleep(HANDLER_SECONDS)
        waits.append(time.time() - float(sent_at))
        handled.append(int(number))

    with running(worker) as run:
        run.until(lambda: worker.is_joined, "it has joined")
        for _ in load.at(USUAL_PER_SECOND, 0.5):
            pass
        run.until(lambda: len(handled) == load.sent, "the usual rate is kept up with")
        backlog = in_flight = 0
        for _ in load.at(SPIKE_PER_SECOND, seconds):
            backlog = max(backlog, load.sent - len(handled))
            in_flight = max(in_flight, worker.metrics().in_flight)
        deadline = time.monotonic() + WAIT_SECONDS_MAX + 4 * seconds
        while len(handled) < load.sent and time.monotonic() < deadline:
            in_flight = max(in_flight, worker.metrics().in_flight)
            time.sleep(TICK_SECONDS)
        assert len(handled) == load.sent, "the backlog does not drain"
        waits.clear()
        for _ in load.at(USUAL_PER_SECOND, 0.5):
            pass
        run.until(lambda: len(handled) == load.sent, "what comes afterwards is handled")
        run.until(lambda: sum(offset for offset, _ in place.committed().values()) == load.sent, "all is committed")
    assert sorted(handled) == list(range(load.sent)), "each once"
    assert (worker.metrics().failed, worker.metrics().dead) == (0, 0)
    # It was one, it waited in the topic and not in memory, and nothing of it is left.
    assert backlog > SPIKE_PER_SECOND * seconds / 4
    assert in_flight <= PREFETCH_MESSAGES + place.partitions * PARTITION_MESSAGES_MIN
    assert sorted(waits)[len(waits) // 2] < 1


def test_a_spike_becomes_a_backlog_that_drains(kafka: ToolkitBroker) -> None:
    spike(Place(kafka.bootstrap), seconds=1.5)


@pytest.mark.soak
def test_a_spike_of_a_minute_becomes_a_backlog_that_drains(kafka: ToolkitBroker) -> None:
    spike(Place(kafka.bootstrap), seconds=60)


VALUE_BYTES = 900_000
LEAK_BYTES = 3 << 20
# With the stacks of all threads, which are 100 MB of address space though hardly used.
ROOM_BYTES = 160 << 20
MEMORY_PREFETCH_BYTES = 4 << 20
# On average; there is room for three times as many, some of which the life before had handled and not committed.
NEW_PER_LIFE_MIN = 5
LIFE_SECONDS_MAX = 60.0


class Life(NamedTuple):
    handled: list[int]
    in_flight_max: int
    code: int


class Mortal:
    """A worker that is started again whenever it has died. All that waits for it is far more than it may have in memory."""

    def __init__(self, place: Place, ledger: Path, messages: int, leaking: int) -> None:
        """The first ``leaking`` messages cost memory for ever."""
        self._place = place
        self._ledger = ledger
        self._words = ledger.with_suffix(".stderr")
        self._messages = messages
        ledger.touch()
        producer = Producer({"bootstrap.servers": place.bootstrap, "log_level": 0})
        for number in range(messages):
            headers = [("leaks", b"")] if number < leaking else []
            producer.produce(place.topic, bytes(VALUE_BYTES), str(number), headers=headers)
            if number % 50 == 0:
                producer.flush(WAIT_SECONDS_MAX)
        assert producer.flush(WAIT_SECONDS_MAX) == 0

    def lives(self) -> list[Life]:
        """Each does something that none before did; the last is stopped when all is done."""
        found: list[Life] = []
        done: set[int] = set()
        while len(done) < self._messages:
            found.append(self._live())
            new = set(found[-1].handled) - done
            assert new, f"life {len(found)} did nothing new: {found}\n{self._words.read_text()}"
            done |= new
        return found

    def _live(self) -> Life:
        settings = {
            "bootstrap": self._place.bootstrap,
            "group": self._place.group,
            "topic": self._place.topic,
            "ledger": str(self._ledger),
            "prefetch_bytes": MEMORY_PREFETCH_BYTES,
            "room_bytes": ROOM_BYTES,
            "leak_bytes": LEAK_BYTES,
        }
        before = len(self._lines())
        command = [sys.executable, "-m", "tests.worker.memory_worker", json.dumps(settings)]
        # One arena: each would be address space that is not used.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        with (
            self._words.open("ab") as words,
            subprocess.Popen(command, cwd=ROOT, env=environment, stderr=words) as process,
        ):
            try:
                wait_until(lambda: process.poll() is not None or self._is_all_done(), "it dies, or is done", LIFE_SECONDS_MAX)
                process.terminate()
                code = process.wait(WAIT_SECONDS_MAX)
            finally:
                process.kill()
        lines = self._lines()[before:]
        return Life([number for number, _ in lines], max((ahead for _, ahead in lines), default=0), code)

    def _is_all_done(self) -> bool:
        return len({number for number, _ in self._lines()}) == self._messages

    def _lines(self) -> list[tuple[int, int]]:
        """Message, and how many were read ahead."""
        return [(int(number), int(ahead)) for number, ahead in map(str.split, self._ledger.read_text().splitlines())]


def deaths(place: Place, ledger: Path, messages: int, leaking: int) -> None:
    lives = Mortal(place, ledger, messages, leaking).lives()
    print([(life.code, len(life.handled), life.in_flight_max) for life in lives])
    assert len(lives) >= 3, "it does not die of memory"
    assert all(life.code != 0 for life in lives[:-1])
    assert lives[-1].code == 0
    # What is read ahead is bounded in every life, so that most of its memory is for handling, and it gets further.
    assert max(life.in_flight_max for life in lives) <= (MEMORY_PREFETCH_BYTES + READ_BYTES_MAX) // VALUE_BYTES + 1
    assert len(lives) - 1 <= leaking / NEW_PER_LIFE_MIN


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space, and /proc, are Linux'")
def test_a_worker_that_dies_of_memory_gets_further_in_each_life(kafka: ToolkitBroker, tmp_path: Path) -> None:
    deaths(Place(kafka.bootstrap, partitions=1), tmp_path / "ledger", messages=150, leaking=60)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space, and /proc, are Linux'")
def test_a_worker_that_dies_of_memory_for_a_minute_gets_further_in_each_life(kafka: ToolkitBroker, tmp_path: Path) -> None:
    deaths(Place(kafka.bootstrap, partitions=4), tmp_path / "ledger", messages=1500, leaking=800)
