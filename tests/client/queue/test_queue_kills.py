"""Workers that are killed at random points, and the broker beside them, on two queues at once. The ledger at the end: every job
was handled, and no job was delivered after its acknowledgement had been answered. The seed is printed with a failure,
TIDELOG_SEED takes it; TIDELOG_KILL_ROUNDS kills more often."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.queue.working import SECONDS_MAX, new_queue, receive, send
from tidelog.client.errors import LockLost
from tidelog.client.queue import Queue
from tidelog.client.queue.share_groups import OFFSET_RESET, ShareGroupAdmin
from tidelog.testing import Broker

ROOT = Path(__file__).parents[3]
ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("TIDELOG_SEED", random.randrange(1 << 32)))
PARTITIONS = 2
MESSAGES_PER_ROUND = 100

pytestmark = pytest.mark.tidelog_only


@pytest.fixture
def broker() -> Iterator[Broker]:
    # A member that was killed keeps its partitions until its session ends.
    with Broker(configs={"group.share.session.timeout.ms": 1_500, "group.share.heartbeat.interval.ms": 300}) as started:
        yield started


class Workers:
    """Two processes that work on one queue, and what all of them have printed."""

    def __init__(self, path: Path, bootstrap: str, queue: str) -> None:
        self.queue = queue
        self._path = path
        self._bootstrap = bootstrap
        self._started = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._started += 1
        command = [sys.executable, "-m", "tests.client.queue.worker_process", self._bootstrap, self.queue, str(self._started)]
        output = self._path / f"{self.queue}-{self._started}.out"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            self._running.append(subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=errors))

    def kill_one(self) -> None:
        worker = self._running.pop(0)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        while self._running:
            self.kill_one()

    def events(self) -> list[tuple[int, str, tuple[int, int]]]:
        """(time, what, (partition, offset)) of all workers, in order."""
        found = []
        for path in self._path.glob(f"{self.queue}-*.out"):
            for line in path.read_text().split("\n")[:-1]:
                word, partition, offset, moment = line.split()
                found.append((int(moment), word, (int(partition), int(offset))))
        return sorted(found)

    def received(self) -> set[tuple[int, int]]:
        return {job for _, _, job in self.events()}

    def acked(self) -> set[tuple[int, int]]:
        return {job for _, word, job in self.events() if word == "acked"}

    def wait_for_acked(self, count: int) -> None:
        self.wait_until(lambda: len(self.acked()) >= count)

    def wait_for(self, jobs: set[tuple[int, int]]) -> None:
        """A worker that is killed between an answer and its line has acknowledged a job that no line tells of, at most one each
        time; a job of which all workers say nothing was not received by any."""
        self.wait_until(lambda: len(jobs - self.acked()) <= self._started and jobs <= self.received())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, f"{self.queue}, seed {SEED}: {self._errors()}"
            time.sleep(0.05)

    def _errors(self) -> str:
        return "\n".join(path.read_text() for path in self._path.glob(f"{self.queue}-*.err"))


def test_everything_is_handled_and_nothing_acknowledged_comes_again(broker: Broker, tmp_path: Path) -> None:
    choices = random.Random(SEED)
    bootstrap = broker.bootstrap_servers
    crews = [Workers(tmp_path, bootstrap, new_queue(bootstrap, PARTITIONS)) for _ in range(2)]
    sent: dict[str, set[tuple[int, int]]] = {crew.queue: set() for crew in crews}
    with ShareGroupAdmin(bootstrap) as admin:
        for crew in crews:
            # A job whose workers are killed again and again is not given up here.
            admin.set_settings(crew.queue, {"share.delivery.count.limit": "25", OFFSET_RESET: "earliest"})
    try:
        for crew in crews:
            crew.start()
            crew.start()
        for number in range(ROUNDS):
            for crew in crews:
                with Queue(bootstrap, crew.queue) as queue:
                    deliveries = [queue.send(str(number)) for _ in range(MESSAGES_PER_ROUND)]
                    results = [delivery.result() for delivery in deliveries]
                    sent[crew.queue].update((each.partition, each.offset or 0) for each in results)
                progress = len(crew.acked()) + choices.randint(1, MESSAGES_PER_ROUND // 2)
                crew.wait_for_acked(progress)
                crew.kill_one()
                crew.start()
            if number % 2 == 0:
                broker.kill()
                broker.start()
        for crew in crews:
            crew.wait_for(sent[crew.queue])
    finally:
        for crew in crews:
            crew.close()
    for crew in crews:
        acked: dict[tuple[int, int], int] = {}
        for moment, word, job in crew.events():
            assert job not in acked, f"{word} {job} {(moment - acked[job]) / 1e6:.1f} ms after it was acknowledged (seed {SEED})"
            if word == "acked":
                acked[job] = moment
        with Queue(bootstrap, crew.queue) as queue:
            left = queue.receive(100, wait=3)
            # What a worker had acknowledged when it was killed, before it could say so, may be missing; nothing else comes.
            assert {(job.partition, job.offset) for job in left} <= sent[crew.queue] - crew.acked()


def test_a_broker_that_restarts_is_borne_and_its_locks_are_lost(broker: Broker) -> None:
    name = new_queue(broker.bootstrap_servers)
    with Queue(broker.bootstrap_servers, name) as queue:
        send(queue, "one", "two")
        one, two = receive(queue, 2)
        one.ack()
        broker.kill()
        assert queue.receive(wait=0.3) == []
        broker.start()
        with pytest.raises(LockLost, match=r"locks were released|locks of this connection are released") as refusal:
            two.ack()
        assert refusal.value.deliveries == 1
        begun = time.monotonic()
        (again,) = receive(queue, 1)
        assert (again.offset, again.text()) == (two.offset, "two")
        again.ack()
        assert time.monotonic() - begun < 30, "and not when some time-out has passed"
        send(queue, "three")
        assert receive(queue, 1)[0].text() == "three"
