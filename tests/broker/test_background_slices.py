"""Background work holds the loop for ten milliseconds at most, by a stopwatch that the work itself moves.

What happens on the loop between two events costs what it costs on a real machine, roughly: so many microseconds for a change on
the disk, for a record of the metadata, for a look at a log. What runs on the executor costs nothing. So a slice that does too
much is found whatever the machine that the test runs on has to do.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulation.clock import SimulatedClock
from simulation.executor import SimulatedExecutor
from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tidelog.broker import broker as broker_module
from tidelog.broker import controller_role
from tidelog.log.compaction import cleaner as cleaner_module
from tidelog.log.partition_log import PartitionLog
from tidelog.log.retention import retention as retention_sweep
from tidelog.log.retention.retention import SEGMENTS_AT_ONCE
from tidelog.ports.executor import ChildRun, ChildTask, OnDone
from tidelog.wire.protocol import ApiKey

SLICE_US_MAX = 10_000
DISK_OPERATION_US = 20
SLOW_DISK_OPERATION_US = 1_000
ENCODE_US, DECODE_US = 5, 14  # Decoding and replay.
RETENTION_OF_A_LOG_US = 10
PLAN_OF_A_LOG_US = 20

PARTITIONS = 1_000
SEGMENTS = 300
SETTINGS = {"log.retention.check.interval.ms": "60000", "log.cleaner.backoff.ms": "60000"}


class Stopwatch:
    """Costs add up until ``lap``."""

    def __init__(self) -> None:
        self.is_on_loop = True
        self.disk_operation_us = DISK_OPERATION_US
        self.slice_us = 0
        self.longest_us = 0
        self.total_us = 0

    def cost(self, microseconds: int) -> None:
        if self.is_on_loop:
            self.slice_us += microseconds

    def lap(self) -> None:
        self.longest_us = max(self.longest_us, self.slice_us)
        self.total_us += self.slice_us
        self.slice_us = 0

    def costing(self, function: Callable[..., Any], microseconds: int) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.cost(microseconds)
            return function(*arguments)

        return run


class OffLoop:
    """The executor, whose work is not the loop's."""

    def __init__(self, executor: SimulatedExecutor, stopwatch: Stopwatch) -> None:
        self._executor = executor
        self._stopwatch = stopwatch

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        def run() -> Any:
            self._stopwatch.is_on_loop = False
            try:
                return work()
            finally:
                self._stopwatch.is_on_loop = True

        self._executor.submit(run, on_done)

    def submit_child(self, task: ChildTask, on_done: OnDone) -> ChildRun:
        def run(*arguments: Any) -> Any:
            self._stopwatch.is_on_loop = False
            try:
                return task.function(*arguments)
            finally:
                self._stopwatch.is_on_loop = True

        return self._executor.submit_child(ChildTask(run, task.arguments), on_done)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stopwatch = watch = Stopwatch()
        for module, name, microseconds in (
            (controller_role, "encode_record", ENCODE_US),
            (broker_module, "decode_record", DECODE_US),
            (retention_sweep, "retained_start_offset", RETENTION_OF_A_LOG_US),
            (cleaner_module, "plan_cleaning", PLAN_OF_A_LOG_US),
        ):
            monkeypatch.setattr(module, name, watch.costing(getattr(module, name), microseconds))
        # The clock stands still within an event but for what the work costs.
        now_ms = SimulatedClock.monotonic_ms
        monkeypatch.setattr(
            SimulatedClock, "monotonic_ms", lambda clock: now_ms(clock) + (watch.total_us + watch.slice_us) // 1000
        )
        self.machine = Machine(SETTINGS, is_started=False)
        self.machine.disk.on_operation = lambda operation, path: watch.cost(watch.disk_operation_us)
        self.machine.executor = OffLoop(self.machine.executor, watch)  # type: ignore[assignment]  # as far as a broker uses it
        # Clients wait by it too.
        monkeypatch.setattr(self.machine, "run_until", self._measured(self.machine.run_until))
        self.machine.start()
        self.client: FakeClient = self.machine.client()
        self.begin()

    def begin(self) -> None:
        """What was before does not count."""
        self.stopwatch.lap()
        self.stopwatch.longest_us = 0
        self._began_us = self.stopwatch.total_us

    def _measured(self, run_until: Callable[[Callable[[], bool]], None]) -> Callable[[Callable[[], bool]], None]:
        """The machine looks at the condition between any two events."""

        def run(condition: Callable[[], bool]) -> None:
            def lap_and_look() -> bool:
                self.stopwatch.lap()
                return condition()

            run_until(lap_and_look)

        return run

    def log_with_segments(self, topic: str, count: int, **configs: str) -> PartitionLog:
        self.client.create_topic(topic, 1, **configs)
        log = self.machine.broker.partitions.find(topic, None, 0).log
        for _ in range(count):
            assert self.client.append(topic, records=batch(1, key=b"key")).error == 0
            log.roll()
        self.begin()
        return log

    def check(self, total_us_min: int) -> None:
        """No slice was too long, though all of them together were."""
        assert self.stopwatch.longest_us <= SLICE_US_MAX
        assert self.stopwatch.total_us - self._began_us >= total_us_min > SLICE_US_MAX


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_topic_of_a_thousand_partitions_comes_and_goes(world: World) -> None:
    directory = world.machine.broker.directory
    topic = {"name": "many", "num_partitions": PARTITIONS, "replication_factor": 1}
    world.client.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=60_000)
    world.machine.run_until(lambda: len(directory.logs) > PARTITIONS)
    # Made: a directory and two files each.
    world.check(PARTITIONS * (ENCODE_US + DECODE_US + 3 * DISK_OPERATION_US))
    world.begin()
    world.client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "many"}], timeout_ms=60_000)
    world.machine.run_until(lambda: len(directory.logs) == 1 and directory.is_idle)
    world.check(PARTITIONS * DISK_OPERATION_US)


def test_retention_of_many_segments_and_partitions(world: World) -> None:
    log = world.log_with_segments("old", SEGMENTS, retention_ms="1000")
    world.client.create_topic("many", PARTITIONS, retention_ms="1000")
    world.client.create_topic("more", PARTITIONS, retention_ms="1000")
    world.machine.run_for(180_000)
    assert len(log.segments) == 1
    # Renames and the look at each log, twice at least.
    world.check(SEGMENTS * DISK_OPERATION_US + 4 * PARTITIONS * RETENTION_OF_A_LOG_US)


def test_compaction_of_many_segments(world: World) -> None:
    log = world.log_with_segments("compacted", SEGMENTS)
    # Only now, else it would have been cleaned meanwhile.
    log.change_settings(replace(log.settings, compact=True, min_cleanable_dirty_ratio=0.01))
    cleaner = world.machine.broker.directory.cleaner
    world.machine.run_until(lambda: cleaner.statistics.cleanings > 0)
    assert len(log.segments) < SEGMENTS / 10
    assert cleaner.statistics.segments_replaced == SEGMENTS
    world.check(SEGMENTS * 2 * DISK_OPERATION_US)


def test_a_slow_disk_makes_the_slices_smaller(world: World) -> None:
    log = world.log_with_segments("old", SEGMENTS // 10, retention_ms="1000")
    world.stopwatch.disk_operation_us = SLOW_DISK_OPERATION_US
    directory = world.machine.broker.directory
    topic = {"name": "many", "num_partitions": PARTITIONS // 10, "replication_factor": 1}
    world.client.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=60_000)
    world.machine.run_until(lambda: len(directory.logs) > PARTITIONS // 10)
    world.client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "many"}], timeout_ms=60_000)
    world.machine.run_for(180_000)
    assert len(directory.logs) == 2
    assert len(log.segments) == 1
    # A slice may have just begun a log, or a few segments, when its time was up.
    assert world.stopwatch.longest_us <= SLICE_US_MAX + SEGMENTS_AT_ONCE * 5 * SLOW_DISK_OPERATION_US
