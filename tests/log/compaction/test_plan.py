"""What may be cleaned and when it is time."""

from tests.log.compaction.machine import Machine, settings
from tidelog.log.compaction.plan import CleaningPlan, plan_cleaning

HOUR_MS = 3_600_000


def plan(machine: Machine, first_dirty_offset: int | None = None, horizon_ms: int | None = None) -> CleaningPlan:
    return plan_cleaning(machine.log, first_dirty_offset, machine.log.log_end_offset, horizon_ms, machine.clock.now_ms())


def written_machine(**changes: int | float | bool) -> Machine:
    """Three closed segments of two records, an hour apart, and an empty active one."""
    machine = Machine(settings(**changes))
    for number in range(3):
        machine.send([(b"a", b"%d" % number), (b"b", b"%d" % number)])
        machine.roll()
        machine.pass_time(HOUR_MS)
    return machine


def test_all_closed_segments_below_every_bound() -> None:
    machine = written_machine()
    found = plan(machine)
    assert (found.first_dirty_offset, found.upper_offset, len(found.segments)) == (0, 6, 3)
    size = machine.log.segments[0].size
    assert (found.clean_bytes, found.dirty_bytes) == (0, 3 * size)
    found = plan_cleaning(machine.log, 2, 5, None, machine.clock.now_ms())
    assert (found.upper_offset, found.clean_bytes, found.dirty_bytes) == (4, size, size)


def test_the_dirty_ratio_decides() -> None:
    machine = written_machine(min_cleanable_dirty_ratio=0.5)
    assert plan(machine, 0).is_due
    assert plan(machine, 2).is_due
    assert not plan(machine, 4).is_due
    assert plan(machine, 4).dirty_ratio == 1 / 3
    assert not plan(written_machine(min_cleanable_dirty_ratio=0.5, compact=False), 0).is_due


def test_an_old_dirty_record_is_due_whatever_the_ratio() -> None:
    machine = written_machine(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=3 * HOUR_MS // 2)
    assert plan(machine, 2).is_due
    assert not plan(machine, 4).is_due
    assert not plan(machine, 6).is_due


def test_young_segments_wait() -> None:
    machine = written_machine(min_compaction_lag_ms=3 * HOUR_MS // 2)
    assert plan(machine).upper_offset == 4
    # What was cleaned already is not young any more, whatever its timestamps say.
    assert plan(machine, 6).upper_offset == 6


def test_a_passed_horizon_is_due_without_dirt() -> None:
    machine = written_machine()
    now_ms = machine.clock.now_ms()
    assert not plan(machine, 6).is_due
    assert not plan(machine, 6, now_ms + 1).is_due
    assert plan(machine, 6, now_ms).is_due


def test_a_checkpoint_that_does_not_fit_begins_again() -> None:
    machine = written_machine()
    assert plan(machine, 7).first_dirty_offset == 0
    machine.log.raise_start(3)
    assert plan(machine, 2).first_dirty_offset == 3
    assert plan(machine, 4).first_dirty_offset == 4
