"""Looking up when batches were written: the right header, from files that are read on the executor."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.log.harness import Store
from tidelog.broker.lag_lookup import LagLookup, Wanted, batch_times, log_deletion_at_ms, segments_of
from tidelog.groups.lag import BatchTimes
from tidelog.log.partition_log import PartitionLog
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.header import read_header
from tidelog.records.record import Record

START_MS = 1_700_000_000_000


def three_records(number: int) -> bytes:
    """A tenth of a second apart, in the second of this number."""
    return build_batch([Record(record, START_MS + 1000 * number + 100 * record, b"k", b"v" * 300) for record in range(3)])


BATCH_BYTES = len(three_records(0))
SEGMENT_BYTES = 20 * BATCH_BYTES
SETTINGS = LogSettings(segment_bytes=SEGMENT_BYTES, index_interval_bytes=2_000)


class World:
    """A log of 100 batches with three records each, in five segments, as it is after a start."""

    def __init__(self) -> None:
        self.store = Store(SETTINGS)
        log = self.store.create()
        for number in range(100):
            log.append_as_leader(three_records(number), 0)
        self.store.commit()
        self.store.restart()
        self.log.advance_high_watermark(self.log.log_end_offset)
        events = self.store.events
        self.lookup = LagLookup(self.store.disk, self.store.executor, lambda event, facts: events.append((event, facts)))

    @property
    def log(self) -> PartitionLog:
        return self.store.log()

    def find(self, *offsets: int) -> list[BatchTimes | None]:
        found: list[list[BatchTimes | None]] = []
        self.lookup.find([Wanted(self.log, offset) for offset in offsets], found.append)
        assert not found, "not from within"
        self.store.scheduler.run_until(lambda: bool(found))
        return found[0]


@pytest.fixture
def world() -> World:
    return World()


def test_every_offset(world: World) -> None:
    assert len(world.log.segments) == 5
    for offset, found in enumerate(world.find(*range(300))):
        first_ms = START_MS + offset // 3 * 1000
        assert found == BatchTimes(offset // 3 * 3, offset // 3 * 3 + 2, first_ms, first_ms + 200)


def test_nothing_is_read_on_the_loop_that_was_not_read_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for the times of the segments, that follow."""
    in_work: list[bool] = [False]
    warm: set[str] = set()
    cold: list[str] = []
    submit = world.store.executor.submit

    def marking(work: Callable[[], Any], on_done: Any) -> None:
        def run() -> Any:
            in_work[0] = True
            try:
                return work()
            finally:
                in_work[0] = False

        submit(run, on_done)

    def note(path: str) -> bool:
        if in_work[0]:
            warm.add(path)
        elif path not in warm:
            cold.append(path)
        return False

    monkeypatch.setattr(type(world.store.executor), "submit", lambda self, work, on_done: marking(work, on_done))
    world.store.disk.faults.fail("read", note)
    world.find(70, 200)
    for offset in (70, 200):
        for segment in segments_of(world.log, offset):
            assert world.lookup.is_warm(segment)
            assert segment.max_timestamp > 0
    assert len(warm) > 4
    assert cold == []
    monkeypatch.undo()
    world.find(250)
    assert cold, "this test can fail"


def test_what_is_warm_is_forgotten_when_it_is_not_used(world: World) -> None:
    (first,) = segments_of(world.log, 0)
    world.find(0)
    world.lookup.begin_round()
    assert world.lookup.is_warm(first)
    world.lookup.begin_round()
    assert world.lookup.is_warm(first)
    world.lookup.begin_round()
    world.lookup.begin_round()
    assert not world.lookup.is_warm(first)


def test_a_disk_that_fails_gives_no_times(world: World) -> None:
    world.store.disk.faults.fail("read", lambda path: path.endswith(".log"))
    assert world.find(0, 100) == [None, None]
    assert not any(world.lookup.is_warm(segment) for segment in world.log.segments)


def test_an_offset_that_compaction_took(world: World) -> None:
    """The end of a segment is gone: the next one goes on."""
    segments = world.log.segments
    last_of_first = segments[1].base_offset - 1
    segments[0].truncate_to(segments[0].size - BATCH_BYTES, last_of_first - 2)
    (found,) = world.find(last_of_first)
    assert found is not None
    assert found.first_offset == segments[1].base_offset


def test_an_error_nobody_expected_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidelog.broker.lag_lookup._walk_headers", broken)
    assert world.find(5) == [None]
    assert world.store.facts("unexpected_error")[0]["where"] == "looking up lag"


def test_headers_that_do_not_tell_the_first_time() -> None:
    records = [Record(7, START_MS, b"k", b"v"), Record(8, START_MS + 50, b"k", None)]
    plain = batch_times(read_header(build_batch(records, base_offset=7)))
    assert plain == BatchTimes(7, 8, START_MS, START_MS + 50)
    cleaned = batch_times(read_header(build_batch(records, base_offset=7, delete_horizon_ms=START_MS + 999)))
    assert cleaned == BatchTimes(7, 8, -1, START_MS + 50, START_MS + 999)
    appended = batch_times(read_header(build_batch(records, base_offset=7, log_append_time_ms=START_MS + 5)))
    assert appended == BatchTimes(7, 8, -1, START_MS + 5)


def test_deletion_by_the_logs_own_settings(world: World) -> None:
    log = world.log
    (found,) = world.find(100)
    assert found is not None
    newest_ms = segments_of(log, 100)[1].max_timestamp

    def at(rate: float | None = None, **settings: Any) -> int | None:
        log.change_settings(LogSettings(segment_bytes=SEGMENT_BYTES, **settings))
        return log_deletion_at_ms(log, 100, found, rate, START_MS)

    assert at(retention_ms=5_000) == newest_ms + 5_000
    assert at(retention_ms=-1) is None
    assert at(retention_ms=5_000, delete=False, compact=True) is None
    # The second segment ends with 40 of 100 batches.
    assert at(retention_ms=-1, retention_bytes=60 * BATCH_BYTES) == START_MS
    assert at(retention_ms=-1, retention_bytes=70 * BATCH_BYTES) is None
    # Ten batches more are thirty records.
    assert at(3.0, retention_ms=-1, retention_bytes=70 * BATCH_BYTES) == START_MS + 10_000
