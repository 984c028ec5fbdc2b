"""The newest snapshot that may be trusted, then the log from there on."""

from tests.log.disks import write_file
from tests.log.harness import BATCH_BYTES, Store, batch, end_transaction
from tidelog.log import names
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_recovery import load_newest_snapshot, remove_snapshots_above, replay_producers
from tidelog.log.producer_snapshot import write_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.log.settings import LogSettings
from tidelog.records.control import ControlType

SETTINGS = LogSettings(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)


def lived(store: Store) -> tuple[PartitionLog, list[dict[str, object]]]:
    """A log of two producers' transactions over several segments, and what was known before each offset."""
    log = store.create()
    known = []
    sequences = [0, 0]
    for number in range(30):
        known.append(log.producers.describe())
        if number in (6, 17):
            write_snapshot(
                log.environment.disk, log.directory, log.log_end_offset, log.producers
            )  # in the middle of a segment, as a recovery point does
        producer = number % 2
        if number % 7 >= 5:
            end_transaction(log, producer, ControlType.ABORT if number % 3 else ControlType.COMMIT)
        else:
            data = batch(producer_id=producer, sequence=sequences[producer], transactional=True, size=BATCH_BYTES)
            log.append_as_leader(data, 0)
            sequences[producer] += 1
    known.append(log.producers.describe())
    return log, known


def snapshots(store: Store, log: PartitionLog) -> list[int]:
    return names.base_offsets_of(store.disk.list_directory(log.directory), names.SNAPSHOT_SUFFIX)


def rebuild(store: Store, log: PartitionLog, offset: int) -> tuple[int | None, dict[str, object]]:
    producers = ProducerState(1000)
    loaded = load_newest_snapshot(
        store.disk, log.directory, offset, producers, lambda event, facts: store.events.append((event, facts))
    )
    replay_producers(producers, log.segments, loaded or 0, offset)
    return loaded, producers.describe()


def test_every_offset_can_be_rebuilt_from_the_snapshot_below_it() -> None:
    for offset in range(31):
        store = Store(SETTINGS)
        log, known = lived(store)
        at_rolls = snapshots(store, log)
        assert len(at_rolls) >= 2
        loaded, found = rebuild(store, log, offset)
        assert loaded == max((taken for taken in at_rolls if taken <= offset), default=None)
        assert found == known[offset]


def test_every_offset_can_be_rebuilt_without_any_snapshot() -> None:
    store = Store(SETTINGS)
    log, known = lived(store)
    remove_snapshots_above(store.disk, log.directory, -1)
    assert snapshots(store, log) == []
    for offset in range(31):
        assert rebuild(store, log, offset) == (None, known[offset])


def test_snapshots_above_what_is_trusted_are_removed() -> None:
    store = Store(SETTINGS)
    log, _ = lived(store)
    write_snapshot(log.environment.disk, log.directory, log.log_end_offset, log.producers)
    first = snapshots(store, log)[0]
    rebuild(store, log, first + 1)
    assert snapshots(store, log) == [first]


def test_a_damaged_snapshot_is_reported_removed_and_made_up_for() -> None:
    store = Store(SETTINGS)
    log, known = lived(store)
    newest = snapshots(store, log)[-1]
    write_file(store.disk, names.segment_path(log.directory, newest, names.SNAPSHOT_SUFFIX), b"damaged")
    loaded, found = rebuild(store, log, 30)
    assert loaded is not None
    assert loaded < newest
    assert found == known[30]
    assert store.facts("producer_snapshot_discarded")
    assert newest not in snapshots(store, log)


def test_what_was_in_the_state_before_is_forgotten() -> None:
    store = Store(SETTINGS)
    log, _ = lived(store)
    producers = ProducerState(1000)
    producers.load(log.producers.entries())
    remove_snapshots_above(store.disk, log.directory, -1)
    assert load_newest_snapshot(store.disk, log.directory, 0, producers, lambda event, facts: None) is None
    assert producers.producer_count == 0
