"""Members of a consumer group, each a librdkafka consumer in a thread of its own, and a producer that never stops.

What is kept of each member is when messages of which partition arrived and when partitions were given up, so that afterwards the
longest pause can be told of every partition that stayed where it was. Only some of the partitions get messages: fifty clients on
the machine of the broker would be busy with nothing but waking each other, and that would be the pause that is seen.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.broker_process import WAIT_SECONDS_MAX
from tidelog.testing import Broker

POLL_SECONDS_MAX = 0.5
LOOK_SECONDS = 0.005
# Between two messages of one partition: well below the pauses that are looked for.
INTERVAL_SECONDS = 0.02
WATCHED_PARTITIONS_MAX = 20


class Arrival(NamedTuple):
    partition: int
    at: float


class Member(threading.Thread):
    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__(name="member", daemon=True)
        self._settings = dict(settings)
        self._topic = topic
        self._is_restarting = threading.Event()
        self._is_stopping = threading.Event()
        self.owned: set[int] = set()
        self.arrivals: list[Arrival] = []
        self.revoked: list[Arrival] = []
        self.restarts = 0
        self.left_at = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._is_stopping.is_set():
                self._live()
                self.restarts += 1
        except Exception as error:
            self.error = error

    def _live(self) -> None:
        """From joining to leaving."""
        self._is_restarting.clear()
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._gave_up, on_lost=self._gave_up)
            while not self._is_restarting.is_set() and not self._is_stopping.is_set():
                message = consumer.poll(POLL_SECONDS_MAX)
                if message is None:
                    continue
                if message.error() is not None:
                    raise KafkaException(message.error())
                self.arrivals.append(Arrival(message.partition() or 0, perf_counter()))
        finally:
            self.left_at = perf_counter()
            consumer.close()
            # Not every protocol says so by the callback when a member leaves.
            self._no_longer_own(sorted(self.owned))

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned.update(place.partition for place in partitions)

    def _gave_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._no_longer_own([place.partition for place in partitions])

    def _no_longer_own(self, partitions: list[int]) -> None:
        now = perf_counter()
        self.revoked += [Arrival(partition, now) for partition in partitions]
        self.owned.difference_update(partitions)

    def restart(self) -> None:
        self._is_restarting.set()

    def stop(self) -> None:
        self._is_stopping.set()


class Members:
    """A group whose members share the partitions of a topic evenly. Started and stopped as a context."""

    def __init__(self, broker: Broker, topic: str, partitions: int, members: int, settings: Mapping[str, Any]) -> None:
        if partitions % members:
            raise ValueError(f"{partitions} partitions are not shared evenly by {members} members")
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self._share = partitions // members
        self._members = [Member({**servers, **settings}, topic) for _ in range(members)]
        self._watched = range(0, partitions, max(1, partitions // WATCHED_PARTITIONS_MAX))
        self._producer = _SteadyProducer(Producer({**servers, "linger.ms": 1}), topic, self._watched)

    def __enter__(self) -> Self:
        for member in self._members:
            member.start()
        try:
            self._wait_until(self._is_stable)
            self._producer.start()
            self._wait_until(self._is_heard)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._producer.stop()
        for member in self._members:
            member.stop()
        for member in self._members:
            member.join(WAIT_SECONDS_MAX)

    def restart_one(self) -> float:
        """Seconds from the beginning of its end until every member has its share again."""
        member = self._members[0]
        restarts = member.restarts
        member.restart()
        self._wait_until(lambda: member.restarts > restarts and self._is_stable())
        return perf_counter() - member.left_at

    def longest_pause(self, during: Callable[[], object]) -> float:
        """Seconds between two messages, over all watched partitions that stayed with their members while ``during`` ran. One that
        ``during`` found silent, or left silent, has paused from its beginning or to its end."""
        owned_before = [member.owned.intersection(self._watched) for member in self._members]
        began = perf_counter()
        during()
        ended = perf_counter()
        pauses = []
        for member, partitions in zip(self._members, owned_before, strict=True):
            given_up = {partition for partition, at in list(member.revoked) if at >= began}
            times: dict[int, list[float]] = defaultdict(list)
            for partition, at in list(member.arrivals):
                if began <= at <= ended:
                    times[partition].append(at)
            for partition in sorted(partitions - given_up):
                moments = [began, *times[partition], ended]
                pauses.append(max(after - before for before, after in pairwise(moments)))
            member.arrivals.clear()
        if not pauses:
            raise RuntimeError("no partition stayed with its member")
        return max(pauses)

    def _is_heard(self) -> bool:
        """Of every watched partition something has arrived."""
        return len({arrival.partition for member in self._members for arrival in list(member.arrivals)}) == len(self._watched)

    def _is_stable(self) -> bool:
        return all(len(member.owned) == self._share for member in self._members)

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        deadline = perf_counter() + WAIT_SECONDS_MAX
        while not is_done():
            for member in self._members:
                if member.error is not None:
                    raise member.error
            if perf_counter() > deadline:
                raise TimeoutError(f"the group is not stable after {WAIT_SECONDS_MAX} s: {[len(m.owned) for m in self._members]}")
            sleep(LOOK_SECONDS)


class _SteadyProducer(threading.Thread):
    """A message to each of the partitions, again and again."""

    def __init__(self, producer: Producer, topic: str, partitions: range) -> None:
        super().__init__(name="steady-producer", daemon=True)
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._is_stopping = threading.Event()

    def run(self) -> None:
        next_at = perf_counter()
        while not self._is_stopping.wait(max(0.0, next_at - perf_counter())):
            for partition in self._partitions:
                self._producer.produce(self._topic, b"x", partition=partition)
            self._producer.poll(0)
            next_at += INTERVAL_SECONDS
        self._producer.flush(WAIT_SECONDS_MAX)

    def stop(self) -> None:
        self._is_stopping.set()
        if self.is_alive():
            self.join(WAIT_SECONDS_MAX)
