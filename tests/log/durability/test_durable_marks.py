"""The journal of durable marks: what it holds, what a full disk and failed syncs do to it, and what every crash leaves."""

import errno
import struct
from pathlib import Path

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.disk import Crashed, FaultyOperation, Keep, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tests.log.harness import PATH, TOPIC_ID, Store, append
from tidelog.log import names
from tidelog.log.durability.durable_marks import (
    BLOCK_BYTES,
    FLUSH_MS,
    JOURNAL_BYTES,
    DurableMark,
    DurableMarks,
    decode_journal,
    encode_frame,
)
from tidelog.log.errors import CorruptCheckpoint, LogOffline
from tidelog.log.partition_log import PartitionLog
from tidelog.ports.disk import Disk
from tidelog.ports.real_disk import RealDisk

JOURNAL_PATH = f"{DIRECTORY}/durable-marks"
ID = bytes(range(16))
OTHER_ID = bytes(reversed(range(16)))

# Full after a few flushes, so that rewriting is as common as appending.
SMALL_JOURNAL_BYTES = 5 * BLOCK_BYTES

State = dict[str, int]


def state_of(marks: DurableMarks, topic_id: bytes = ID) -> State:
    found = {name: marks.mark(name, topic_id) for name in marks.names()}
    return {name: offset for name, offset in found.items() if offset is not None}


def reopened(disk: Disk, directory: str = DIRECTORY) -> State:
    return state_of(DurableMarks.open(disk, directory))


def test_marks_come_back(tmp_path: Path) -> None:
    directory = str(tmp_path)
    marks = DurableMarks.open(RealDisk(), directory)
    assert not marks.has_pending
    assert marks.begin_flush() is None
    marks.record("orders-0", ID, 100)
    marks.record("orders-1", ID, 7)
    marks.flush()
    marks.record("orders-0", ID, 90)
    marks.record("orders-2", ID, 5)
    marks.forget("orders-1")
    marks.flush()
    assert not marks.has_pending
    assert reopened(RealDisk(), directory) == {"orders-0": 90, "orders-2": 5}


def test_a_mark_of_another_topic_of_that_name_does_not_count() -> None:
    marks = DurableMarks.open(simulated_disk(), DIRECTORY)
    marks.record("orders-0", ID, 100)
    assert (marks.mark("orders-0", ID), marks.mark("orders-0", OTHER_ID), marks.mark("orders-1", ID)) == (100, None, None)
    marks.record("orders-0", OTHER_ID, 3)
    assert (marks.mark("orders-0", ID), marks.mark("orders-0", OTHER_ID)) == (None, 3)


def oldest_pending_ms(marks: DurableMarks) -> int | None:
    return marks.oldest_pending_ms


def test_oldest_pending_is_the_time_of_the_first_record_since_the_last_flush() -> None:
    marks = DurableMarks.open(simulated_disk(), DIRECTORY)
    assert oldest_pending_ms(marks) is None
    marks.record("orders-0", ID, 1, now_ms=5000)
    marks.record("orders-0", ID, 2, now_ms=6000)
    assert oldest_pending_ms(marks) == 5000
    write = marks.begin_flush()
    assert write is not None
    assert oldest_pending_ms(marks) is None
    marks.record("orders-0", ID, 3, now_ms=7000)
    assert marks.begin_flush() is None, "one flush at a time"
    write.run()
    marks.finish_flush(write, None)
    assert oldest_pending_ms(marks) == 7000
    marks.flush()
    marks.record("orders-0", ID, 3, now_ms=9000)
    marks.forget("orders-9", now_ms=9000)
    assert oldest_pending_ms(marks) is None, "nothing has changed"


def test_after_a_failure_everything_is_pending_since_it_first_was() -> None:
    marks = DurableMarks.open(simulated_disk(), DIRECTORY)
    marks.record("orders-0", ID, 1, now_ms=5000)
    write = marks.begin_flush()
    assert write is not None
    marks.record("orders-0", ID, 2, now_ms=6000)
    marks.finish_flush(write, OSError(errno.EIO, "broken"))
    assert oldest_pending_ms(marks) == 5000


def test_the_file_is_as_long_from_the_start_as_it_will_ever_be() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    marks.record("orders-0", ID, 0)
    marks.flush()
    assert disk.file_size(JOURNAL_PATH) == JOURNAL_BYTES
    disk.set_free_bytes(0)
    for offset in range(1, JOURNAL_BYTES // BLOCK_BYTES):
        marks.record("orders-0", ID, offset)
        marks.flush()
    assert disk.file_size(JOURNAL_PATH) == JOURNAL_BYTES
    assert reopened(disk) == {"orders-0": JOURNAL_BYTES // BLOCK_BYTES - 1}


def test_a_full_journal_is_rewritten_and_a_full_disk_only_delays_that() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    for offset in range(JOURNAL_BYTES // BLOCK_BYTES):
        marks.record("orders-0", ID, offset)
        marks.flush()
    disk.set_free_bytes(BLOCK_BYTES)
    marks.record("orders-0", ID, 1000)
    with pytest.raises(OSError, match="No space left"):
        marks.flush()
    assert disk.free_bytes(DIRECTORY) == BLOCK_BYTES, "a failed rewrite gives its room back"
    assert reopened(disk) == {"orders-0": JOURNAL_BYTES // BLOCK_BYTES - 1}
    assert marks.has_pending
    disk.set_free_bytes(BLOCK_BYTES * 3)
    for offset in range(1000, 1005):
        marks.record("orders-0", ID, offset)
        marks.flush()
        assert disk.file_size(JOURNAL_PATH) == 2 * BLOCK_BYTES, "a short one leaves the room to the logs"
        assert reopened(disk) == {"orders-0": offset}
    disk.set_free_bytes(4 * JOURNAL_BYTES)
    for offset in range(1005, 1007):
        marks.record("orders-0", ID, offset)
        marks.flush()
    assert disk.file_size(JOURNAL_PATH) == JOURNAL_BYTES
    assert reopened(disk) == {"orders-0": 1006}
    assert disk.list_directory(DIRECTORY) == ["durable-marks"]


def test_a_large_state_gets_a_file_of_twice_its_size() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    expected = {f"{'topic' * 40}-{number}": number for number in range(4000)}
    for name, offset in expected.items():
        marks.record(name, ID, offset)
    marks.flush()
    assert 1.9 * JOURNAL_BYTES > disk.file_size(JOURNAL_PATH) > 1.5 * JOURNAL_BYTES
    size_bytes = disk.file_size(JOURNAL_PATH)
    for name in expected:
        marks.record(name, ID, 10_000)
    marks.flush()
    assert reopened(disk) == dict.fromkeys(expected, 10_000)
    assert disk.file_size(JOURNAL_PATH) == size_bytes


def test_a_frame_never_shares_a_block_with_another() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    for offset in range(3):
        marks.record("orders-0", ID, offset)
        marks.flush()
    data = read_file(disk, JOURNAL_PATH)
    for number in range(3):
        frame = encode_frame(number, {"orders-0": DurableMark(ID, number)})
        assert data[number * BLOCK_BYTES :].startswith(frame + bytes(BLOCK_BYTES - len(frame)))
    assert not any(data[3 * BLOCK_BYTES :])


def test_nothing_after_a_damaged_frame_counts() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    for offset in range(4):
        marks.record("orders-0", ID, offset)
        marks.flush()
    disk.flip_bit(JOURNAL_PATH, 2 * BLOCK_BYTES + 20, 3)
    found = DurableMarks.open(disk, DIRECTORY)
    assert state_of(found) == {"orders-0": 1}
    assert found.damage is not None
    assert "frame 2 at byte 8192" in found.damage
    found.flush()
    assert DurableMarks.open(disk, DIRECTORY).damage is None


def test_a_frame_in_the_wrong_place_does_not_count() -> None:
    first, second = encode_frame(0, {"a-0": DurableMark(ID, 1)}), encode_frame(1, {"a-0": DurableMark(ID, 2)})
    padded = [frame.ljust(BLOCK_BYTES, b"\0") for frame in (first, second)]
    assert decode_journal(b"".join(padded), "x")[0] == {"a-0": DurableMark(ID, 2)}
    assert decode_journal(padded[0] + padded[0], "x")[0] == {"a-0": DurableMark(ID, 1)}
    assert decode_journal(padded[1], "x")[0] == {}


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"garbage", b"\xff" * 4096])
def test_a_file_without_a_single_frame_is_damage(data: bytes) -> None:
    disk = simulated_disk()
    write_file(disk, JOURNAL_PATH, data)
    marks = DurableMarks.open(disk, DIRECTORY)
    assert state_of(marks) == {}
    assert marks.damage is not None
    assert marks.has_pending


def test_a_whole_frame_that_makes_no_sense_is_refused() -> None:
    # A name longer than the body, under a right CRC: no crash does that.
    checked = struct.pack(">IH", 0, 500) + b"orders-0"
    disk = simulated_disk()
    write_file(disk, JOURNAL_PATH, struct.pack(">II", len(checked) - 4, crc32c(checked)) + checked)
    with pytest.raises(CorruptCheckpoint, match="makes no sense"):
        DurableMarks.open(disk, DIRECTORY)


def test_after_a_failed_sync_the_file_is_rewritten() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    marks.record("orders-0", ID, 1)
    marks.flush()
    # A frame, a new file and a directory that cannot be synced. (An open file goes by the name that it was made under.)
    for number, failing_path in enumerate((f"{JOURNAL_PATH}.tmp", f"{JOURNAL_PATH}.tmp", DIRECTORY)):
        marks.record("orders-0", ID, 2 + number)
        disk.faults.fail("sync", failing_path.__eq__, times=1)
        write = marks.begin_flush()
        assert write is not None
        assert write.is_rewrite == (number > 0)
        with pytest.raises(OSError, match="Input/output"):
            write.run()
        marks.finish_flush(write, OSError(errno.EIO, "broken"))
        disk.faults.clear()
        assert reopened(disk.crash_image(keep="none")) == {"orders-0": 1}
    marks.flush()
    assert reopened(disk.crash_image(keep="none")) == {"orders-0": 4}


def test_what_a_failed_sync_left_in_the_cache_is_not_believed() -> None:
    disk = simulated_disk()
    marks = DurableMarks.open(disk, DIRECTORY)
    marks.record("orders-0", ID, 1)
    marks.flush()
    marks.record("orders-0", ID, 2)
    disk.faults.fail("sync", lambda path: True, times=1)
    with pytest.raises(OSError, match="Input/output"):
        marks.flush()
    killed = disk.crash_image(keep="all")
    assert reopened(killed) == reopened(killed.crash_image(keep="none")) == {"orders-0": 1}


def test_what_a_crash_left_beside_the_journal_does_not_get_into_it() -> None:
    disk = simulated_disk()
    write_file(disk, f"{JOURNAL_PATH}.tmp", b"x" * (2 * JOURNAL_BYTES))
    marks = DurableMarks.open(disk, DIRECTORY)
    marks.record("orders-0", ID, 1)
    marks.flush()
    assert disk.file_size(JOURNAL_PATH) == JOURNAL_BYTES
    assert DurableMarks.open(disk, DIRECTORY).damage is None


class Recorder:
    """Drives a journal and remembers every state that could rightly be found: from the last finished flush on."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.marks = DurableMarks.open(disk, DIRECTORY, SMALL_JOURNAL_BYTES)
        self.state: State = {}
        self.allowed: list[State] = [{}]

    def record(self, name: str, offset: int) -> None:
        self.state = {**self.state, name: offset}
        self.allowed.append(self.state)
        self.marks.record(name, ID, offset)

    def forget(self, name: str) -> None:
        self.state = {key: offset for key, offset in self.state.items() if key != name}
        self.allowed.append(self.state)
        self.marks.forget(name)

    def flush(self) -> None:
        write = self.marks.begin_flush()
        if write is None:
            return
        began_with = self.state
        try:
            write.run()
        except OSError as error:
            self.marks.finish_flush(write, error)
            return
        self.marks.finish_flush(write, None)
        last = max(index for index, state in enumerate(self.allowed) if state is began_with)
        del self.allowed[:last]

    def check_crash(self, randomness: SimulatedRandomness) -> None:
        keeps: tuple[Keep, ...] = ("none", "some", "some", "all")
        for keep in keeps:
            image = self.disk.crash_image(randomness, keep)
            found = reopened(image)
            assert found in self.allowed, (keep, found, self.allowed)
            # And once more: what was read, then written again, survives another crash.
            again = DurableMarks.open(image, DIRECTORY, SMALL_JOURNAL_BYTES)
            again.flush()
            assert reopened(image.crash_image(randomness, "some")) == found


FAULTS: list[FaultyOperation] = ["sync", "write", "names"]

partition_names = st.sampled_from(["a-0", "a-1", "b-0"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), partition_names, st.integers(0, 1000)),
        st.tuples(st.just("forget"), partition_names, st.just(0)),
        st.tuples(st.just("flush"), st.just(""), st.just(0)),
        st.tuples(st.just("fail"), st.just(""), st.integers(0, len(FAULTS) - 1)),
        st.tuples(st.just("many"), st.just(""), st.integers(10, 50)),
    ),
    min_size=1,
    max_size=14,
)


def play(recorder: Recorder, script: list[tuple[str, str, int]]) -> None:
    for operation, name, number in script:
        match operation:
            case "record":
                recorder.record(name, number)
            case "forget":
                recorder.forget(name)
            case "flush":
                recorder.flush()
            case "fail":
                recorder.disk.faults.fail(FAULTS[number], lambda path: True, times=1)
                recorder.record("a-0", recorder.state.get("a-0", 0) + 1)
                recorder.flush()
                recorder.disk.faults.clear()
            case "many":
                for partition in range(number):
                    recorder.record(f"{'long' * 60}-{partition}", partition)


@settings(max_examples=120, deadline=None)
@given(steps, st.integers(0, 2**32))
def test_every_crash_leaves_a_state_from_the_last_finished_flush_on(script: list[tuple[str, str, int]], seed: int) -> None:
    """Before every disk operation of the script, the machine dies: three power cuts and a kill, each opened twice."""
    script = [*script, ("flush", "", 0), ("record", "a-1", 77), ("flush", "", 0)]
    recorder = Recorder(simulated_disk())
    randomness = SimulatedRandomness(seed)
    recorder.disk.on_operation = lambda operation, path: recorder.check_crash(randomness)
    play(recorder, script)
    recorder.check_crash(randomness)
    recorder.disk.on_operation = None
    assert reopened(recorder.disk) in recorder.allowed


def test_a_journal_that_is_killed_at_every_operation_goes_on() -> None:
    """Crash in place at operation 1, 2, 3, ...: the next process opens what is left and goes on from there."""
    disk = simulated_disk()
    randomness = SimulatedRandomness("killed at every operation")
    allowed: list[State] = [{}]
    for crash_at in range(1, 80):
        found = reopened(disk)
        assert found in allowed
        recorder = Recorder(disk)
        recorder.state, recorder.allowed = found, [*allowed, found]
        countdown = crash_at % 23

        def crash(operation: str, path: str) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown <= 0:
                raise Crashed

        disk.on_operation = crash
        try:
            for offset in range(5):
                recorder.record(f"a-{offset % 3}", 1000 * crash_at + offset)
                recorder.flush()
        except Crashed:
            pass
        disk.on_operation = None
        disk.crash(randomness, "some" if crash_at % 3 else "all")
        allowed = recorder.allowed


# Durable marks reach their journal within a second, one flush at a time, and a disk that cannot hold them is abandoned.


JOURNAL = f"{PATH}/{names.DURABLE_MARKS}"


def durable_mark(store: Store) -> int:
    """Return what a power cut now would leave of the mark."""
    return DurableMarks.open(store.disk.crash_image(keep="none"), PATH).mark("orders-0", TOPIC_ID) or 0


def committed(store: Store) -> PartitionLog:
    log = store.create()
    append(log)
    store.commit(log)
    return log


def test_marks_wait_half_a_second_and_then_go_together() -> None:
    store = Store()
    log = committed(store)
    store.pass_time(FLUSH_MS - 100)
    store.directory.tick()
    store.scheduler.run_all()
    assert durable_mark(store) == 0
    append(log)
    store.commit(log)
    store.pass_time(100)
    store.directory.tick()
    store.scheduler.run_all()
    assert durable_mark(store) == 2
    assert store.directory.marks.is_idle


def test_a_flush_covers_what_was_recorded_before_it() -> None:
    store = Store()
    log = committed(store)
    first: list[int] = []
    second: list[int] = []
    store.directory.marks.flush(lambda error: first.append(durable_mark(store)))
    append(log)
    store.commit(log)
    store.directory.marks.flush(lambda error: second.append(durable_mark(store)))
    store.scheduler.run_until(lambda: bool(second))
    assert first[0] >= 1
    assert second == [2]


def test_nothing_to_flush_is_told_at_once() -> None:
    store = Store()
    committed(store)
    store.settle(1000)
    told: list[object] = []
    store.directory.marks.flush(told.append)
    assert told == [None]


def test_a_failed_flush_is_tried_once_more_with_a_new_file() -> None:
    store = Store()
    committed(store)
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO, times=1)
    assert store.wait(store.directory.marks.flush) is None
    assert durable_mark(store) == 1
    assert store.facts("durable_marks_not_written")[0]["failures"] == 1
    assert store.log().offline_reason is None


def test_a_journal_that_cannot_be_written_takes_the_whole_directory_offline() -> None:
    store = Store()
    log, other = committed(store), store.create("other")
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO)
    assert isinstance(store.wait(store.directory.marks.flush), OSError)
    assert "is broken" in str(log.offline_reason)
    assert other.offline_reason is not None
    assert isinstance(store.wait_durable(other), LogOffline)
    store.scheduler.run_all()
    # Whoever stops the broker need not wait for it, and hears of the disk.
    assert store.directory.is_idle
    with pytest.raises(OSError, match="Input/output error"):
        store.directory.close()


def test_whoever_waits_behind_the_last_failure_hears_of_it_too() -> None:
    store = Store()
    committed(store)
    store.disk.faults.fail("sync", lambda path: path.startswith(JOURNAL), errno.EIO)
    told: list[BaseException | None] = []
    store.directory.marks.flush(told.append)
    store.directory.marks.flush(told.append)
    store.settle(1000)
    assert [isinstance(error, OSError) for error in told] == [True, True]


def test_a_full_disk_only_delays_the_marks() -> None:
    store = Store()
    log = committed(store)
    rule = store.disk.faults.fail("write", lambda path: path.startswith(JOURNAL), errno.ENOSPC)
    error = store.wait(store.directory.marks.flush)
    assert isinstance(error, OSError)
    assert log.offline_reason is None
    store.disk.faults.lift(rule)
    store.settle(1000)
    assert durable_mark(store) == 1


def test_a_lowered_mark_is_durable_when_told() -> None:
    store = Store()
    log = committed(store)
    assert store.wait(store.directory.marks.flush) is None
    store.directory.marks.lower(log, 0)
    assert store.wait(store.directory.marks.flush) is None
    assert durable_mark(store) == 0
