"""What is damaged while the broker is down, and syncs that fail: nothing acknowledged is cut silently, nothing else served.

Below the durable mark damage takes the partition offline, with file and byte, and the others are served; at or above it damage
is a torn tail, cut and reported.
"""

import errno
from dataclasses import replace

import pytest

from simulation.disk import SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.storage_check import check_log
from tests.log.storage_image import check_directory, image_world
from tests.log.storage_model import PartitionModel
from tests.log.storage_settings import OPTIONS, PATH
from tests.log.storage_world import World
from tidelog.log.errors import LogOffline

KEY = ("orders", 0)
OTHER = ("orders", 1)
DIRECTORY = f"{PATH}/orders-0"


def world_with_records(acknowledged: int = 12, more: int = 0) -> World:
    """Two partitions; the marks on the disk cover the ``acknowledged`` batches, and ``more`` are in the page cache."""
    # Below the recovery point nothing is read at a start: damage there is found by reading and by `tidelog log verify`.
    world = World(1, options=replace(OPTIONS, recovery_point_interval_bytes=1 << 30))
    world.open()
    for key in (KEY, OTHER):
        world.create(key)
        for number in range(acknowledged):
            world.append(key, [2], number, wait=True)
    world.settle()
    world.directory.marks.flush()
    world.settle()
    for number in range(more):
        world.append(KEY, [2], number, wait=False)
    return world


def log_files(disk: SimulatedDisk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list_directory(DIRECTORY) if name.endswith(".log")]


def assert_offline(world: World, path: str, position: int | None = None) -> None:
    """The partition says where it is damaged and is left as it was; the other one is served."""
    before = {name: contents(world.disk, name) for name in log_files(world.disk)}
    world.open()
    reason = world.directory.offline[KEY]
    assert path in reason
    assert "was durable" in reason
    assert world.directory.damaged == {KEY}
    if position is not None:
        assert f"at byte {position}" in reason
    assert {name: contents(world.disk, name) for name in log_files(world.disk)} == before
    check_log(world.models[OTHER], world.directory.logs[OTHER])


def contents(disk: SimulatedDisk, path: str) -> bytes:
    file = disk.open(path, "read")
    return file.read(0, file.size())


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_bit_flip_below_the_mark_takes_the_partition_offline(segment: int) -> None:
    world = world_with_records()
    world.crash("all")
    path = log_files(world.disk)[segment]
    world.disk.flip_bit(path, 100, 3)
    assert_offline(world, path, 0)


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_a_log_that_cannot_be_read_is_offline_and_not_called_damaged(error_number: int) -> None:
    world = world_with_records()
    world.crash("all")
    world.disk.faults.fail("open", lambda path: path.startswith(DIRECTORY) and path.endswith(".log"), error_number)
    world.open()
    assert KEY in world.directory.offline
    assert world.directory.damaged == set()


def test_a_bit_flip_in_the_batch_behind_the_mark_is_cut_and_reported() -> None:
    world = world_with_records(more=1)
    world.crash("all")
    path = log_files(world.disk)[-1]
    world.disk.flip_bit(path, world.disk.file_size(path) - 1)
    world.open()
    (cut,) = [facts for event, facts in world.events if event == "torn_tail_cut"]
    assert cut["file"] == path
    assert cut["next_offset"] == world.models[KEY].acknowledged_end
    check_directory(world)


@pytest.mark.parametrize("length", [0, 61, 100])
def test_a_truncated_file_below_the_mark_takes_the_partition_offline(length: int) -> None:
    world = world_with_records()
    world.crash("all")
    path = log_files(world.disk)[-1]
    world.disk.open(path, "write").truncate(length)
    assert_offline(world, path)


def test_a_log_cut_between_two_batches_below_the_mark_is_not_taken_for_whole() -> None:
    world = world_with_records()
    world.crash("all")
    path = log_files(world.disk)[0]
    last = [batch for batch in world.models[KEY].batches if batch.base_offset < int(log_files(world.disk)[1][-24:-4])][-1]
    size = world.disk.file_size(path) - len(last.data)
    world.disk.open(path, "write").truncate(size)
    assert_offline(world, path)


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_missing_segment_takes_the_partition_offline(segment: int) -> None:
    world = world_with_records()
    world.crash("all")
    path = log_files(world.disk)[segment]
    world.disk.remove(path)
    world.open()
    assert KEY in world.directory.offline
    assert "was durable" in world.directory.offline[KEY]
    check_log(world.models[OTHER], world.directory.logs[OTHER])


def test_all_segments_missing_takes_the_partition_offline() -> None:
    world = world_with_records()
    world.crash("all")
    for path in log_files(world.disk):
        world.disk.remove(path)
    world.open()
    assert "no segment is left" in world.directory.offline[KEY]


def test_a_misdirected_write_is_found_at_the_next_start() -> None:
    """The disk wrote a batch over an acknowledged one and said nothing."""
    world = world_with_records(acknowledged=3)
    path = log_files(world.disk)[-1]
    world.disk.faults.misdirect_next_write(path, 10)
    world.append(KEY, [1], 0, wait=True)
    world.settle()
    world.crash("all")
    assert_offline(world, path, 0)


def test_a_misdirected_write_behind_the_mark_costs_only_what_was_not_durable() -> None:
    world = world_with_records(acknowledged=3)
    path = log_files(world.disk)[-1]
    end = world.disk.file_size(path)
    world.disk.faults.misdirect_next_write(path, end + 200)
    world.append(KEY, [1], 0, wait=False)
    world.crash("all")
    world.open()
    check_directory(world)
    assert world.directory.logs[KEY].log_end_offset == world.models[KEY].acknowledged_end


# -- failed syncs ---------------------------------------------------------------------------------------------------------------


def fail_sync_of(world: World, name: str = "/orders-0/") -> None:
    world.disk.faults.fail("sync", lambda path: name in path and path.endswith(".log"), errno.EIO, times=1)


def test_a_failed_sync_takes_the_log_offline_and_acknowledges_nothing() -> None:
    world = world_with_records()
    model = world.models[KEY]
    before = model.acknowledged_end
    world.append(KEY, [2], 0, wait=True)
    fail_sync_of(world)
    world.settle()
    assert model.acknowledged_end == before
    log = world.directory.logs[KEY]
    assert "syncing failed" in str(log.offline_reason)
    with pytest.raises(LogOffline):
        log.append_as_leader(model.batches[0].data, 0)
    assert world.disk.exists(f"{DIRECTORY}/.failed-sync")
    world.append(OTHER, [1], 0, wait=True)
    world.settle()
    assert world.models[OTHER].acknowledged_end == world.models[OTHER].end_offset


def test_after_a_failed_sync_only_what_the_disk_holds_is_served() -> None:
    """kill -9 and a new start: the page cache still shows the batch, a second fsync would succeed, and it is not on the disk."""
    world = world_with_records()
    acknowledged_end = world.models[KEY].acknowledged_end
    world.append(KEY, [2], 0, wait=True)
    fail_sync_of(world)
    world.settle()
    world.crash("all")
    world.reopen()
    assert world.models[KEY].end_offset == acknowledged_end
    assert not world.disk.exists(f"{DIRECTORY}/.failed-sync")
    world.append(KEY, [2], 0, wait=True)
    world.settle()
    world.crash("none")
    world.reopen()
    assert world.models[KEY].end_offset == acknowledged_end + 2


def test_a_failed_sync_of_the_file_system_takes_all_logs_of_the_pass_offline() -> None:
    world = world_with_records(acknowledged=2)
    keys = [KEY, OTHER]
    for key in keys:
        for number in range(20):
            world.append(key, [2], number, wait=True)
    models: list[PartitionModel] = [world.models[key] for key in keys]
    before = [model.acknowledged_end for model in models]
    world.disk.faults.fail("sync", lambda path: path == PATH, errno.EIO, times=1)
    world.settle()
    assert [model.acknowledged_end for model in models] == before
    assert all(world.directory.logs[key].offline_reason for key in keys)
    world.crash("all")
    world.reopen()
    world.crash("none")
    world.reopen()


def test_a_failed_sync_in_recovery_promises_nothing() -> None:
    world = world_with_records(more=2)
    world.crash("all")
    fail_sync_of(world)
    world.open()
    assert world.directory.logs[KEY].offline_reason is not None
    world.crash("all")
    world.reopen()
    world.crash("none")
    world.reopen()


# -- a full disk ----------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_and_the_log_goes_on_when_there_is_room() -> None:
    world = world_with_records(acknowledged=3)
    model = world.models[KEY]
    end = model.end_offset
    world.disk.set_free_bytes(40)
    world.append(KEY, [2], 0, wait=True)
    assert world.directory.logs[KEY].log_end_offset == end
    world.disk.set_free_bytes(None)
    world.append(KEY, [2], 0, wait=True)
    world.settle()
    assert model.acknowledged_end == end + 2
    world.crash("none")
    world.reopen()


# -- an old history behind a new one --------------------------------------------------------------------------------------------


def test_what_a_truncation_took_away_does_not_come_back_behind_what_was_written_since() -> None:
    """The cut and the removal of segments are lost, the newer leader's batches are kept; the old segment begins right there."""
    world = world_with_records(acknowledged=1)
    world.append(KEY, [2, 2], 0, wait=True)
    world.roll(KEY)
    world.append(KEY, [2, 2], 1, wait=True)
    world.settle()
    world.truncate(KEY, 2 / 10)
    world.scheduler.run_until(lambda: not world.models[KEY].is_truncating)
    assert world.models[KEY].end_offset == 2
    world.append(KEY, [2, 2], 2, wait=False)
    came_back = 0
    for seed in range(300):
        image = world.disk.crash_image(SimulatedRandomness(seed))
        other = image_world(world, image, f"image {seed}")
        other.open()
        check_directory(other)
        came_back += other.directory.logs[KEY].log_end_offset > 6
    assert came_back > 0, "no image kept the old segment: this test shows nothing"


# -- a topic of the same name ---------------------------------------------------------------------------------------------------


def test_a_topic_made_again_inherits_nothing_from_the_one_that_was_deleted() -> None:
    """Recovery point, log start and mark of the old one are above all that the new one holds."""
    world = world_with_records()
    world.advance_high_watermark(KEY)
    world.move_recovery_point(KEY)
    world.delete_records(KEY, 0.9)
    world.settle()
    world.delete(KEY)
    world.settle()
    world.create(KEY)
    world.append(KEY, [2], 0, wait=True)
    world.settle()
    assert world.models[KEY].acknowledged_end == 2
    world.crash("none")
    world.reopen()
    assert world.models[KEY].end_offset == 2


def test_a_topics_id_from_the_page_cache_is_durable_before_its_records_are() -> None:
    """kill -9 right after the partition was made, and a power cut right after its first acknowledgement."""
    world = World(1)
    world.open()
    world.create(KEY)
    topic_id = world.models[KEY].topic_id
    world.crash("all")
    world.reopen()
    world.append(KEY, [2], 0, wait=True)
    world.kick()
    world.scheduler.run_until(lambda: world.models[KEY].acknowledged_end == 2)
    world.crash("none")
    world.reopen()
    assert world.directory.logs[KEY].topic_id == topic_id


def test_an_aborted_transaction_below_the_recovery_point_stays_aborted() -> None:
    """In a segment too small for an entry of its offset index: a crash rebuilds that, but not the aborted transactions."""
    world = World(1, options=replace(OPTIONS, recovery_point_interval_bytes=1 << 30))
    world.open()
    world.create(KEY)
    world.append_idempotent(KEY, 11, 1, wait=True, transactional=True)
    world.end_transaction(KEY, 11, commit=False, wait=True)
    world.move_recovery_point(KEY)
    world.settle()
    world.crash("none")
    world.open()
    check_directory(world)


def test_a_second_crash_while_indexes_are_made_again_forgets_no_aborted_transaction() -> None:
    """A torn end of an index makes recovery rebuild all indexes of the segment, below a recovery point that vouches for them."""
    world = world_with_records(acknowledged=1)
    world.append_idempotent(KEY, 11, 2, wait=True, transactional=True)
    world.end_transaction(KEY, 11, commit=False, wait=True)
    world.move_recovery_point(KEY)
    world.settle()
    world.crash("all")
    (path,) = [f"{DIRECTORY}/{name}" for name in world.disk.list_directory(DIRECTORY) if name.endswith(".index")]
    index = world.disk.open(path, "write")
    index.write(index.size(), [b"abc"])
    checked = 0

    def crash_again(operation: str, operand: str) -> None:
        nonlocal checked
        for _ in range(12):
            checked += 1
            image = world.disk.crash_image(SimulatedRandomness(checked))
            other = image_world(world, image, f"image {checked}")
            other.open()
            check_directory(other)

    world.disk.on_operation = crash_again
    world.open()
    world.disk.on_operation = None
    check_directory(world)
    assert checked > 100


def test_a_segment_rolled_just_before_a_clean_stop_has_a_durable_name() -> None:
    world = world_with_records()
    world.close()
    world.reopen()
    world.roll(KEY)
    world.close()
    world.reopen()
    world.append(KEY, [2], 0, wait=True)
    world.settle()
    world.crash("none")
    world.reopen()


def test_marks_of_a_partition_that_a_crash_took_away_are_forgotten() -> None:
    """The deletion came to the disk, the forgotten mark did not; then a topic of that name is made, and its id is torn."""
    world = world_with_records()
    world.delete(KEY)
    world.crash("all")
    world.reopen()
    world.create(KEY)
    for seed in range(30):
        other = image_world(world, world.disk.crash_image(SimulatedRandomness(seed)), f"image {seed}")
        other.open()
        check_directory(other)
