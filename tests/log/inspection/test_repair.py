"""Repair: what it would do, what it keeps, that the next start opens the log, and that a crash at any point loses no more."""

from collections.abc import Callable

import pytest

from simulation.disk import Keep, SimulatedDisk
from simulation.randomness import SimulatedRandomness
from tests.log.disks import read_file
from tests.log.harness import PATH, Store, append, read_offsets
from tests.log.inspection.damage import (
    END_OFFSET,
    ORDERS,
    change,
    crashed_store,
    damages,
    flip,
    log_files,
    remove,
    stopped_store,
    truncate,
)
from tidelog.log import names
from tidelog.log.durability.checkpoints import read_offset_checkpoint
from tidelog.log.errors import DirectoryLocked
from tidelog.log.inspection.repair import Repair, RepairImpossible, RepairPlan, lock_directory, read_facts_for_repair
from tidelog.log.reading import Isolation

KEEPS: tuple[Keep, ...] = ("some", "some", "none", "all")


def repair_of(store: Store, disk: SimulatedDisk | None = None) -> Repair:
    return Repair(disk or store.disk, store.clock, store.randomness, PATH, "orders-0", lambda *_: None, lambda count: None)


def plan(store: Store, *, deep: bool = False) -> RepairPlan:
    return repair_of(store).plan(read_facts_for_repair(store.disk, PATH).of_partition(store.disk, "orders-0"), deep=deep)


def cut(store: Store, disk: SimulatedDisk | None = None, *, deep: bool = False) -> Repair:
    repair = repair_of(store, disk)
    facts = read_facts_for_repair(disk or store.disk, PATH).of_partition(disk or store.disk, "orders-0")
    repair.cut(facts, deep=deep)
    return repair


def open_disk(store: Store, disk: SimulatedDisk) -> Store:
    store.executor.crash()
    store.disk = store.executor.disk = disk
    store.open()
    return store


def middle_of(store: Store, number: int) -> tuple[str, int]:
    """A segment and the position of a byte in its second batch."""
    return log_files(store.disk)[number], 150


def flip_a_bit(store: Store) -> None:
    flip(store.disk, *middle_of(store, 1))


def lose_a_tail(store: Store) -> None:
    truncate(store.disk, log_files(store.disk)[2], 350)


def lose_a_segment(store: Store) -> None:
    remove(store.disk, log_files(store.disk)[2])


def lose_the_end(store: Store) -> None:
    truncate(store.disk, log_files(store.disk)[3], 300)


def lose_everything(store: Store) -> None:
    for path in log_files(store.disk):
        remove(store.disk, path)


def raise_an_offset(store: Store) -> None:
    """The last batch of the second segment, so that it overlaps with the next one: the CRC does not cover offsets."""
    flip(store.disk, log_files(store.disk)[1], 561 + 7, bit=3)


def fall_back_in_epoch(store: Store) -> None:
    """As an old end that is back behind the new one; leader epochs lie outside of the CRC."""
    path = log_files(store.disk)[3]
    change(store.disk, path, lambda content: content.__setitem__(115, 1))


DAMAGES: dict[Callable[[Store], None], int] = {
    flip_a_bit: 10,
    lose_a_tail: 21,
    lose_a_segment: 18,
    lose_the_end: 28,
    lose_everything: 0,
    fall_back_in_epoch: 26,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repaired_partition_opens_and_goes_on(damage: Callable[[Store], None]) -> None:
    store = crashed_store()
    damage(store)
    assert plan(store).is_needed
    cut_offset = plan(store).cut_offset
    cut(store)
    assert not damages(store.disk)
    store.open()
    assert store.directory.offline == {}
    assert read_offsets(store.log()) == list(range(cut_offset))
    assert cut_offset == DAMAGES[damage]
    append(store.log(), leader_epoch=4)
    store.commit()
    store.crash()
    assert read_offsets(store.log()) == list(range(cut_offset + 1))


def test_a_dry_run_says_what_is_lost_and_changes_nothing() -> None:
    store = crashed_store()
    flip_a_bit(store)
    before = everything(store.disk)
    planned = plan(store)
    assert everything(store.disk) == before
    assert (planned.path, planned.position) == (log_files(store.disk)[1], 78)
    assert (planned.cut_offset, planned.durable_mark, planned.lost_offsets) == (10, END_OFFSET, END_OFFSET - 10)
    assert planned.cut_bytes == 644 - 78
    assert [segment.log_path for segment in planned.later_segments] == log_files(store.disk)[2:]
    assert planned.later_bytes == sum(len(read_file(store.disk, path)) for path in log_files(store.disk)[2:])


def test_what_is_cut_is_kept() -> None:
    store = crashed_store()
    flip_a_bit(store)
    paths = log_files(store.disk)
    tail = read_file(store.disk, paths[1])[78:]
    later = [read_file(store.disk, path) for path in paths[2:]]
    set_aside = cut(store).set_aside
    kept = [read_file(store.disk, path) for path in set_aside if ".log" in path]
    assert kept == [tail, *later]
    assert all(path.endswith("-damaged") for path in set_aside)
    # The next start leaves it alone.
    store.open()
    assert [read_file(store.disk, path) for path in set_aside if ".log" in path] == kept


def test_an_offset_that_jumped_is_cut_where_it_jumped() -> None:
    store = crashed_store()
    raise_an_offset(store)
    planned = plan(store)
    assert planned.is_needed
    assert planned.problem == "the next segment begins at offset 18"
    assert planned.cut_offset == 16
    cut(store)
    store.open()
    assert read_offsets(store.log()) == list(range(16))


def test_aborted_transactions_stay_aborted() -> None:
    store = crashed_store()
    lose_the_end(store)
    cut(store)
    store.open()
    log = store.log()
    log.advance_high_watermark(log.log_end_offset)
    aborted = [transaction for segment in log.segments for transaction in segment.transaction_index.entries()]
    assert [(transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in aborted] == [
        (7, 3, 8),
        (7, 13, 18),
        (8, 16, 19),
    ]
    assert read_offsets(log, Isolation.LOG_END) == list(range(log.log_end_offset))


def test_other_partitions_keep_their_offsets() -> None:
    store = Store()
    for partition in (0, 1):
        for _ in range(10):
            append(
                store.create(partition=partition)
                if ("orders", partition) not in store.directory.logs
                else store.log(partition=partition)
            )
    store.commit()
    store.close()
    before = {name: read_offset_checkpoint(store.disk, f"{PATH}/{name}") for name in CHECKPOINTS}
    truncate(store.disk, log_files(store.disk)[0], 950)
    cut(store)
    after = {name: read_offset_checkpoint(store.disk, f"{PATH}/{name}") for name in CHECKPOINTS}
    for name in CHECKPOINTS:
        assert after[name]["orders", 1] == before[name]["orders", 1] == 10
        assert after[name]["orders", 0] <= 9
    facts = read_facts_for_repair(store.disk, PATH)
    assert facts.of_partition(store.disk, "orders-1").durable_mark == 10
    assert facts.of_partition(store.disk, "orders-0").durable_mark == 9
    store.open()
    assert store.directory.offline == {}
    assert store.log(partition=1).log_end_offset == 10


CHECKPOINTS = (names.RECOVERY_POINT_CHECKPOINT, names.HIGH_WATERMARK_CHECKPOINT)


def test_a_torn_tail_is_left_to_the_next_start() -> None:
    store = crashed_store()
    path = log_files(store.disk)[-1]
    change(store.disk, path, lambda content: content.extend(b"\x01" * 30))
    planned = plan(store)
    assert planned.problem is not None
    assert planned.is_torn_tail
    with pytest.raises(RepairImpossible, match="needs no repair"):
        cut(store)
    store.open()
    assert read_offsets(store.log()) == list(range(END_OFFSET))


def test_damage_below_the_recovery_point_is_cut_only_when_asked() -> None:
    store = stopped_store()
    flip_a_bit(store)
    assert not plan(store).is_needed
    with pytest.raises(RepairImpossible):
        cut(store)
    assert plan(store, deep=True).cut_offset == 10
    cut(store, deep=True)
    store.open()
    assert store.directory.offline == {}
    assert read_offsets(store.log()) == list(range(10))


def test_a_sound_partition_needs_nothing() -> None:
    for store in (stopped_store(), crashed_store()):
        assert plan(store, deep=True).problem is None


def test_a_running_broker_is_not_disturbed() -> None:
    store = Store()
    with pytest.raises(DirectoryLocked, match="stop it before repairing"):
        lock_directory(store.disk, PATH)
    store.close()
    lock_directory(store.disk, PATH).release()


def test_a_directory_that_no_broker_would_open_is_refused() -> None:
    store = stopped_store()
    change(store.disk, f"{PATH}/{names.LOG_START_OFFSET_CHECKPOINT}", lambda content: content.extend(b"x"))
    with pytest.raises(RepairImpossible, match="line"):
        read_facts_for_repair(store.disk, PATH)


def everything(disk: SimulatedDisk) -> dict[str, bytes]:
    files = [f"{PATH}/{name}" for name in disk.list_directory(PATH) if not disk.is_directory(f"{PATH}/{name}")]
    files += [f"{ORDERS}/{name}" for name in disk.list_directory(ORDERS)]
    return {path: read_file(disk, path) for path in files}


def crash_images(store: Store, work: Callable[[Store], object], seed: int) -> list[SimulatedDisk]:
    """A disk for every operation that ``work`` does: as it may look if the machine dies just before it; and after the last."""
    randomness = SimulatedRandomness(seed)
    store = copy_of(store)
    images: list[SimulatedDisk] = []

    def crash(operation: str, path: str) -> None:
        images.append(store.disk.crash_image(randomness, KEEPS[len(images) % len(KEEPS)]))

    store.disk.on_operation = crash
    work(store)
    crash("end", "")
    store.disk.on_operation = None
    return images


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_crash_at_any_operation_leaves_it_repairable_or_repaired(damage: Callable[[Store], None]) -> None:
    store = crashed_store()
    damage(store)
    cut_offset = plan(store).cut_offset
    originals = {path: read_file(store.disk, path) for path in log_files(store.disk)}
    outcomes = set()
    images = [image for seed in (1, 2, 3) for image in crash_images(store, cut, seed)]
    assert len(images) > 3 * 20
    for image in images:
        before = image.crash_image(keep="all")
        open_disk(store, image)
        is_offline = bool(store.directory.offline)
        outcomes.add(is_offline)
        if is_offline:
            # As before: the same repair finds the same damage.
            cut(store, before)
            open_disk(store, before)
        assert store.directory.offline == {}
        assert read_offsets(store.log()) == list(range(cut_offset))
        assert all(is_kept(store.disk, path, content) for path, content in originals.items())
    assert outcomes == {True, False}


def copy_of(store: Store) -> Store:
    """The same machine with a disk of its own."""
    copy = Store(store.settings, is_open=False)
    copy.disk = copy.executor.disk = store.disk.crash_image(keep="all")
    return copy


def is_kept(disk: SimulatedDisk, path: str, content: bytes) -> bool:
    """The bytes of this log file are somewhere: in it, beside it, or one part here and the other there."""
    name = path.rpartition("/")[2]
    found = [read_file(disk, f"{ORDERS}/{other}") for other in disk.list_directory(ORDERS) if other.startswith(name)]
    return content in found or any(head + tail == content for head in found for tail in found)


def spoil_indexes(store: Store) -> None:
    for name in store.disk.list_directory(ORDERS):
        if name.endswith(("index", ".snapshot")):
            flip(store.disk, f"{ORDERS}/{name}", 3)


def rebuild(store: Store) -> None:
    repair_of(store).rebuild_indexes(read_facts_for_repair(store.disk, PATH).of_partition(store.disk, "orders-0"))


def test_indexes_are_rebuilt_from_the_log() -> None:
    store = stopped_store()
    sound = indexes_in(store.disk)
    spoil_indexes(store)
    assert damages(store.disk)
    rebuild(store)
    assert not damages(store.disk)
    rebuilt = indexes_in(store.disk)
    assert [rebuilt[path] for path in sound if path.endswith(".txnindex")] == [
        sound[path] for path in sound if path.endswith(".txnindex")
    ]
    store.open()
    assert store.directory.offline == {}
    assert read_offsets(store.log()) == list(range(END_OFFSET))


def test_a_crash_while_indexes_are_rebuilt_leaves_indexes_that_a_start_rebuilds() -> None:
    store = stopped_store()
    spoil_indexes(store)
    spoiled = indexes_in(store.disk)
    images = crash_images(store, rebuild, 4)
    untouched = 0
    for image in images:
        recovery_points = read_offset_checkpoint(image, f"{PATH}/{names.RECOVERY_POINT_CHECKPOINT}")
        if indexes_in(image) == spoiled and recovery_points["orders", 0] == END_OFFSET:
            untouched += 1  # As bad as they were.
            continue
        open_disk(store, image)
        assert store.directory.offline == {}
        assert read_offsets(store.log()) == list(range(END_OFFSET))
        store.close()
        assert not [finding for finding in damages(store.disk) if "index" in finding.path]
    assert 0 < untouched < len(images) / 2


def indexes_in(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: data for path, data in everything(disk).items() if path.endswith("index")}


def test_indexes_of_a_damaged_log_are_not_rebuilt() -> None:
    store = stopped_store()
    flip_a_bit(store)
    before = everything(store.disk)
    with pytest.raises(RepairImpossible, match="repair the log before its indexes"):
        rebuild(store)
    assert everything(store.disk) == before
