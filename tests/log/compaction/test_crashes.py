"""A crash at every disk operation of a cleaning, the child's and the swap's, and again while the next start puts it in order.

Whatever the crash leaves, the log opens with the same end, the same producers and the same committed records per key, and has
each record from the old segments or from the new one, never from both.
"""

from dataclasses import dataclass

import pytest

from simulation.disk import Crashed, Keep, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.compaction.machine import DIRECTORY, RETENTION_MS, Machine, latest, settings
from tidelog.records.record import Record

# Each gives other pages, names and orders to what a power cut keeps.
IMAGES_PER_OPERATION = 2


@dataclass
class Crash:
    operation: str
    disk: SimulatedDisk
    recovery_point: int


def written_machine() -> Machine:
    """Segments of which some share a group and some do not; tombstones, aborts and commits across their borders."""
    machine = Machine(settings(segment_bytes=700))
    for number in range(4):
        machine.send([(b"a", b"%d" % number), (b"key %d" % number, b"x")])
        machine.send([(b"b", b"%d" % number)], 1, transactional=True)
        machine.send([(b"b", b"kept %d" % number), (b"key %d" % (number - 1), None)], 2, transactional=True)
        if number != 1:
            machine.end_transaction(1, commit=False)
        machine.roll()
        machine.end_transaction(2, commit=number != 2)
        machine.send([(b"c", b"%d" % number)], 3)
    machine.roll()
    return machine


def expected(machine: Machine) -> dict[bytes | None, tuple[int, bytes | None]]:
    return latest(machine.committed())


def crashes_of_cleaning(machine: Machine, keep: Keep, seed: str) -> list[Crash]:
    crashes: list[Crash] = []
    randomness = SimulatedRandomness(seed)
    images = IMAGES_PER_OPERATION if keep == "some" else 1

    def on_operation(operation: str, path: str) -> None:
        for _ in range(images):
            image = machine.disk.crash_image(randomness, keep)
            crashes.append(Crash(f"{len(crashes)}: {operation} {path}", image, machine.recovery_point_on_disk))

    machine.disk.on_operation = on_operation
    machine.clean()
    machine.disk.on_operation = None
    on_operation("the end", "")
    return crashes


def check_opens(machine: Machine, crash: Crash, disk: SimulatedDisk, written: dict[int, Record]) -> None:
    log = machine.open(disk, crash.recovery_point)
    assert log.log_end_offset == machine.log.log_end_offset, crash.operation
    assert latest(machine.committed(log)) == expected(machine), crash.operation
    records = machine.records(log)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), crash.operation
    assert all(written[record.offset] == record for record in records), crash.operation
    assert log.producers.describe() == machine.log.producers.describe(), crash.operation
    assert [segment.next_offset() for segment in log.segments.closed] == [segment.base_offset for segment in log.segments][1:]
    for segment in log.segments:
        for index in (segment.offset_index, segment.time_index, segment.transaction_index):
            index.check()
    left = [name for name in disk.list_directory(DIRECTORY) if name.endswith((".cleaned", ".swap", ".tmp", ".deleted"))]
    assert left == [], crash.operation


@pytest.mark.parametrize("keep", ["some", "none", "all"])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(keep: Keep) -> None:
    machine = written_machine()
    written = {record.offset: record for record in machine.records()}
    before = expected(machine)
    crashes = crashes_of_cleaning(machine, keep, f"first {keep}")
    assert len({crash.operation for crash in crashes}) > 60
    assert expected(machine) == before
    assert machine.cleaner.statistics.segments_replaced == 5
    for crash in crashes:
        check_opens(machine, crash, crash.disk, written)


@pytest.mark.parametrize("keep", ["some", "all"])
def test_a_second_crash_while_a_start_finishes_a_swap(keep: Keep) -> None:
    machine = written_machine()
    written = {record.offset: record for record in machine.records()}
    randomness = SimulatedRandomness(f"second {keep}")
    points = 0
    for crash in crashes_of_cleaning(machine, keep, f"second {keep}")[::3]:
        images: list[SimulatedDisk] = []

        def on_operation(operation: str, path: str, crash: Crash = crash, images: list[SimulatedDisk] = images) -> None:
            images.append(crash.disk.crash_image(randomness, keep))

        crash.disk.on_operation = on_operation
        machine.open(crash.disk, crash.recovery_point)
        for image in images:
            check_opens(machine, crash, image, written)
        points += len(images)
    assert points > 500


def test_a_second_cleaning_after_a_crash_finishes_what_the_first_began() -> None:
    machine = written_machine()
    crashes = crashes_of_cleaning(machine, "some", "third")
    wanted = [(record.offset, record.value) for record in machine.committed()]
    for crash in crashes[::7]:
        again = Machine(settings(segment_bytes=700))
        again.pass_time(RETENTION_MS // 2)
        again.disk = again.executor.disk = crash.disk
        again.log = again.open(crash.disk, crash.recovery_point)
        again.sync()
        again.cleaner = again.new_cleaner()
        again.clean()
        assert [(record.offset, record.value) for record in again.committed()] == wanted, crash.operation


def test_a_child_that_dies_is_a_failure_and_leaves_the_log_as_it_was() -> None:
    machine = written_machine()
    records = machine.records()

    def die(operation: str, path: str) -> None:
        if path.endswith(".timeindex.cleaned"):
            raise OSError(28, "No space left on device", path)

    machine.disk.on_operation = die
    machine.clean_once()
    assert machine.cleaner.statistics.failures == 1
    assert "No space left" in machine.cleaner.statistics.uncleanable["orders", 0]
    assert machine.records() == records
    assert not [name for name in machine.disk.list_directory(DIRECTORY) if name.endswith((".cleaned", ".tmp"))]
    machine.disk.on_operation = None
    machine.clean_once()
    assert machine.cleaner.statistics.cleanings == 0, "tried again at once"
    machine.pass_time(15 * 60_000)
    machine.clean_once()
    assert machine.cleaner.statistics.cleanings == 1
    assert machine.cleaner.statistics.uncleanable == {}


def test_the_hook_of_this_test_can_kill() -> None:
    """Guards the tests above: a crash raised inside the child's work ends the run and is not taken for a failed task."""
    machine = written_machine()

    def die(operation: str, path: str) -> None:
        raise Crashed

    machine.disk.on_operation = die
    with pytest.raises(Crashed):
        machine.clean_once()
