"""Tidelog in the same three pieces of work, with confluent-kafka."""

from pathlib import Path
from time import perf_counter

from bench.beside import throughput
from bench.beside.peers.peer import VALUE
from bench.beside.subjects import FSYNCED, PAGE_CACHE, TidelogSubject, create_topic
from bench.broker_process import WAIT_SECONDS_MAX, resident_mebibytes

TOPIC = "bench"


class TidelogTopic:
    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        self.name = "Tidelog" if is_synced else "Tidelog, flush.messages high"
        self.durability = "fsynced" if is_synced else "page cache"
        self._is_synced = is_synced
        self._subject = TidelogSubject(directory / "data")

    def mebibytes(self) -> float:
        return resident_mebibytes(self._subject)

    def start(self) -> None:
        self._subject.start()
        create_topic(self._subject, TOPIC, FSYNCED if self._is_synced else PAGE_CACHE)

    def publish(self, count: int) -> float:
        return count / throughput.produce_rate(self._subject, TOPIC, VALUE, count, throughput.BATCHED)

    def publish_one_by_one(self, count: int) -> list[float]:
        producer = throughput.producer_of(self._subject, throughput.UNBATCHED)
        milliseconds = []
        for _ in range(count):
            began = perf_counter()
            producer.produce(TOPIC, VALUE)
            if producer.flush(WAIT_SECONDS_MAX):
                raise throughput.NotDelivered("one message")
            milliseconds.append((perf_counter() - began) * 1000)
        return milliseconds

    def read(self, count: int) -> float:
        return count / throughput.consume_rate(self._subject, TOPIC, count)

    def kill(self) -> None:
        self._subject.kill()
