"""Tidelog's ``Queue`` in the same pieces of work: batches of 100, each received and then acknowledged, and one at a time.

The messages lie in the log in batches of a hundred as well, because a broker sends whole batches.
"""

from pathlib import Path
from time import perf_counter

from bench.beside import throughput
from bench.beside.peers.peer import VALUE
from bench.beside.peers.tidelog_topic import TOPIC, TidelogTopic
from bench.beside.subjects import FSYNCED, create_topic
from tidelog import Queue

BATCH = 100
RECEIVE_SECONDS_MAX = 30.0
QUEUE_TOPIC = {"tidelog.queue.enable": "true"}


class TidelogQueue(TidelogTopic):
    """The topic of its messages is synced before they are acknowledged, and so is what the group has settled. On a queue topic
    every delivery is counted on the disk before it happens, which the peers do not do."""

    def __init__(self, directory: Path, *, is_queue_topic: bool) -> None:
        super().__init__(directory, is_synced=True)
        self.name = "Tidelog, queue topic" if is_queue_topic else "Tidelog, ordinary topic"
        self._configs = {**FSYNCED, **QUEUE_TOPIC} if is_queue_topic else FSYNCED
        self.acknowledged_ms: list[float] = []
        """How long each ``ack`` of ``settle_one_by_one`` took. It is durable when that returns."""

    def start(self) -> None:
        self._subject.start()
        create_topic(self._subject, TOPIC, self._configs)

    def publish(self, count: int) -> float:
        settings = {**throughput.BATCHED, "batch.num.messages": BATCH}
        return count / throughput.produce_rate(self._subject, TOPIC, VALUE, count, settings)

    def read(self, count: int) -> float:
        with Queue(self._subject.bootstrap_servers, TOPIC) as queue:
            # The first batch is for joining the group, which takes as long as a heartbeat.
            queue.ack(queue.receive(BATCH, RECEIVE_SECONDS_MAX))
            began, left = perf_counter(), count
            while left > 0:
                jobs = queue.receive(min(BATCH, left), RECEIVE_SECONDS_MAX)
                if not jobs:
                    raise throughput.NotDelivered(f"{left} messages")
                queue.ack(jobs)
                left -= len(jobs)
            return perf_counter() - began

    def settle_one_by_one(self, count: int) -> list[float]:
        milliseconds: list[float] = []
        self.acknowledged_ms = []
        with Queue(self._subject.bootstrap_servers, TOPIC) as queue:
            (job,) = queue.receive(1, RECEIVE_SECONDS_MAX)
            for _ in range(count):
                began = perf_counter()
                job.ack()
                acknowledged = perf_counter()
                (job,) = queue.receive(1, RECEIVE_SECONDS_MAX)
                self.acknowledged_ms.append((acknowledged - began) * 1000)
                milliseconds.append((perf_counter() - began) * 1000)
            job.ack()
        return milliseconds
