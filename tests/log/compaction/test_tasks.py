"""Compaction as a whole, example by example: what stays, what goes, and when."""

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.scheduler import Scheduler
from tests.log.compaction.machine import RETENTION_MS, Machine, latest, settings
from tidelog.log import names
from tidelog.log.compaction.tasks import GROUP_SEGMENTS_MAX, MapKeysArguments, MapKeysResult, from_json, map_keys, to_json
from tidelog.ports.steps import run_to_end
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record


def found(machine: Machine) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in machine.records()]


def test_the_latest_record_of_each_key_stays_under_its_offset() -> None:
    machine = Machine()
    machine.send([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    machine.roll()
    machine.send([(b"b", b"2"), (b"c", b"1")])
    machine.roll()
    assert machine.clean() == 1
    assert found(machine) == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1")]
    assert machine.log.log_end_offset == 5
    assert machine.first_dirty_on_disk == {("orders", 0): 5}


def test_the_active_segment_is_left_alone() -> None:
    machine = Machine()
    machine.send([(b"a", b"1")])
    machine.roll()
    machine.send([(b"a", b"2"), (b"a", b"3")])
    machine.sync()
    machine.clean()
    assert found(machine) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_nothing_at_or_above_the_high_watermark_is_cleaned() -> None:
    machine = Machine()
    machine.send([(b"a", b"1"), (b"a", b"2")])
    machine.log.roll()
    machine.send([(b"b", b"1")])
    assert machine.clean() == 0
    assert len(machine.records()) == 3


def test_segments_are_merged_and_their_files_handed_over_for_deletion() -> None:
    machine = Machine()
    for number in range(4):
        machine.send([(b"a", b"%d" % number)])
        machine.roll()
    machine.clean()
    assert [segment.base_offset for segment in machine.log.segments] == [0, 4]
    assert [segment.base_offset for segment in machine.deleted] == [0, 1, 2, 3]
    left = [name for name in machine.disk.list_directory("/data/orders-0") if name.endswith((".cleaned", ".swap", ".tmp"))]
    assert left == []


def test_groups_keep_to_the_segment_size_and_each_ends_where_its_originals_ended() -> None:
    machine = Machine(settings(segment_bytes=200))
    for number in range(6):
        machine.send([(b"a", b"%d" % number)])
        machine.roll()
    size = machine.log.segments[0].size
    assert 2 * size <= 200 < 3 * size
    machine.clean()
    assert [segment.base_offset for segment in machine.log.segments] == [0, 2, 4, 6]
    assert [(batch.header.base_offset, len(batch.records)) for batch in machine.batches()] == [(1, 0), (3, 0), (5, 1)]
    for segment, end_offset in zip(machine.log.segments.closed, (2, 4, 6), strict=True):
        assert segment.next_offset() == end_offset
    machine.cleaner.lower(machine.log, 0)
    machine.clean()
    assert [segment.base_offset for segment in machine.log.segments] == [0, 6]


def test_a_batch_of_which_nothing_goes_is_copied_byte_for_byte() -> None:
    machine = Machine()
    machine.send([(b"a", b"1"), (b"b", b"1")], compression=CompressionType.GZIP)
    machine.send([(b"c", b"1")], producer_id=7)
    machine.roll()
    segment = machine.log.segments[0]
    before = segment.file().read(0, segment.size)
    machine.clean()
    segment = machine.log.segments[0]
    assert segment.file().read(0, segment.size) == before


def test_a_rebuilt_batch_keeps_its_header_and_codec() -> None:
    for compression in CompressionType:
        machine = Machine()
        machine.send([(b"a", b"1"), (b"b", b"x" * 100), (b"a", b"2"), (b"c", b"3"), (b"c", b"4")], 7, compression=compression)
        before = machine.batches()[0]
        machine.send([(b"c", b"5")])
        machine.roll()
        machine.clean()
        after = machine.batches()[0]
        assert [record.offset for record in after.records] == [1, 2]
        assert after.records == [before.records[1], before.records[2]]
        for name in ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "leader_epoch"):
            assert getattr(after.header, name) == getattr(before.header, name), name
        assert after.header.compression is compression
        assert after.header.max_timestamp == after.records[-1].timestamp


def test_a_tombstone_stays_for_its_retention_and_goes_although_nothing_new_is_written() -> None:
    machine = Machine()
    machine.send([(b"a", b"1")])
    machine.roll()
    machine.send([(b"a", None), (b"b", b"1")])
    machine.roll()
    machine.clean()
    assert found(machine) == [(1, b"a", None), (2, b"b", b"1")]
    tombstone = machine.batches()[0]
    horizon_ms = tombstone.header.delete_horizon_ms
    assert horizon_ms is not None
    assert 0 <= horizon_ms - RETENTION_MS - machine.log.segments[0].created_ms + 20 < 40
    timestamps = [record.timestamp for record in tombstone.records]
    machine.pass_time(RETENTION_MS - 100)
    assert machine.clean() == 0
    assert found(machine) == [(1, b"a", None), (2, b"b", b"1")]
    machine.pass_time(100)
    assert machine.clean() == 1
    assert found(machine) == [(2, b"b", b"1")]
    assert machine.records()[0].timestamp == timestamps[1]
    assert machine.clean() == 0


def test_after_a_restart_tombstones_still_go() -> None:
    machine = Machine()
    machine.send([(b"a", None)])
    machine.send([(b"b", b"1")])
    machine.roll()
    machine.clean()
    machine.cleaner = machine.new_cleaner()
    machine.clean()
    machine.pass_time(RETENTION_MS)
    assert machine.clean() == 1
    assert found(machine) == [(1, b"b", b"1")]
    assert machine.clean() == 0


def test_aborted_records_go_and_never_count_as_the_latest() -> None:
    machine = Machine()
    machine.send([(b"a", b"kept")])
    machine.send([(b"a", b"aborted"), (b"b", b"aborted")], 1, transactional=True)
    machine.send([(b"c", b"kept")], 2, transactional=True)
    machine.end_transaction(1, commit=False)
    machine.end_transaction(2, commit=True)
    machine.roll()
    machine.clean()
    assert latest(machine.records()) == {b"a": (0, b"kept"), b"c": (3, b"kept")}
    # The emptied batch of producer 1 stays, and with it its marker and its entry in the transaction index.
    assert [(batch.header.base_offset, len(batch.records)) for batch in machine.batches()] == [
        (0, 1),
        (1, 0),
        (3, 1),
        (4, 1),
        (5, 1),
    ]
    assert [entry.last_offset for entry in machine.log.segments[0].transaction_index.entries()] == [4]


def test_a_marker_above_what_is_cleaned_still_aborts_what_is_below() -> None:
    machine = Machine()
    machine.send([(b"a", b"kept")])
    machine.send([(b"a", b"aborted")], 1, transactional=True)
    machine.roll()
    machine.end_transaction(1, commit=False)
    machine.sync()
    machine.clean()
    assert latest(machine.records()) == {b"a": (0, b"kept")}


def test_an_open_transaction_holds_compaction_back() -> None:
    machine = Machine()
    machine.send([(b"a", b"1"), (b"a", b"2")])
    machine.roll()
    machine.send([(b"a", b"3")], 1, transactional=True)
    machine.roll()
    machine.clean()
    assert found(machine) == [(1, b"a", b"2"), (2, b"a", b"3")]
    assert machine.cleaner.first_dirty_offset(machine.log) == 2


def test_a_marker_goes_after_its_data_and_its_horizon() -> None:
    machine = Machine()
    machine.send([(b"a", b"1")], 1, transactional=True)
    machine.end_transaction(1, commit=True)
    machine.send([(b"a", b"2")])
    machine.roll()
    machine.log.producers.clear()
    machine.clean()
    assert [batch.header.base_offset for batch in machine.batches()] == [1, 2]
    assert machine.batches()[0].header.delete_horizon_ms is None
    machine.cleaner.lower(machine.log, 0)
    machine.clean()
    assert machine.batches()[0].header.delete_horizon_ms is not None
    machine.pass_time(RETENTION_MS)
    machine.clean()
    assert [batch.header.base_offset for batch in machine.batches()] == [2]


def test_the_last_batch_of_a_known_producer_stays_emptied() -> None:
    machine = Machine()
    machine.send([(b"a", b"1"), (b"a", b"2")], 5)
    machine.send([(b"a", b"3")])
    machine.roll()
    before = machine.log.producers.describe()
    machine.clean()
    header = machine.batches()[0].header
    assert (header.producer_id, header.last_sequence, header.record_count, header.last_offset) == (5, 1, 0, 1)
    for name in machine.disk.list_directory("/data/orders-0"):
        if name.endswith(".snapshot"):
            machine.disk.remove(f"/data/orders-0/{name}")
    assert machine.open(machine.disk, 0).producers.describe() == before


def test_a_map_that_is_too_small_takes_several_passes_to_the_same_result() -> None:
    machines = [Machine(key_map_bytes_max=size) for size in (1, 1 << 20)]
    for machine in machines:
        for number in range(30):
            machine.send([(b"key %d" % (number % 7), b"%d" % number)], compression=CompressionType.ZSTD)
            if number % 4 == 3:
                machine.roll()
        machine.roll()
    passes = [machine.clean() for machine in machines]
    assert passes[0] == 30
    assert passes[1] == 1
    assert found(machines[0]) == found(machines[1])
    assert len(found(machines[0])) == 7


def test_long_keys_are_told_apart() -> None:
    machine = Machine()
    keys = [b"k" * length for length in (14, 15, 16, 17, 40)]
    machine.send([(key, b"old") for key in keys])
    machine.roll()
    machine.send([(key, b"new") for key in keys])
    machine.roll()
    machine.clean()
    assert [(record.key, record.value) for record in machine.records()] == [(key, b"new") for key in keys]


def test_offsets_and_timestamps_are_found_by_the_new_indexes() -> None:
    machine = Machine()
    sent: list[Record] = []
    for number in range(20):
        sent += machine.send([(b"key %d" % (number % 10), b"%d" % number)])
        machine.pass_time(1000)
    machine.roll()
    machine.clean()
    segment = machine.log.segments[0]
    segment.offset_index.check()
    segment.time_index.check()
    assert segment.offset_index.entry_count > 5
    assert segment.time_index.last_entry == (sent[-1].timestamp, sent[-1].offset)
    for record in sent[10:]:
        located = segment.find_batch(record.offset)
        assert located is not None
        assert located[1].base_offset == record.offset
        assert run_to_end(segment.find_timestamp(record.timestamp, 0)) == (record.timestamp, record.offset, 0)


def test_a_producer_that_aborts_and_then_commits_keeps_what_it_committed() -> None:
    machine = Machine()
    for number, commit in enumerate((True, False, True, False)):
        machine.send([(b"a", b"%d" % number), (b"key %d" % number, b"x")], 1, transactional=True)
        machine.end_transaction(1, commit)
    machine.roll()
    machine.clean()
    assert found(machine) == [(1, b"key 0", b"x"), (6, b"a", b"2"), (7, b"key 2", b"x")]


def test_the_marker_that_fenced_a_producer_stays_while_the_producer_is_known() -> None:
    machine = Machine()
    machine.send([(b"a", b"1")], 1, transactional=True)
    machine.end_transaction(1, commit=False, producer_epoch=1)
    machine.send([(b"a", b"2")])
    machine.roll()
    for _ in range(4):
        machine.cleaner.lower(machine.log, 0)
        machine.clean()
        machine.pass_time(2 * RETENTION_MS)
    assert [(batch.header.base_offset, batch.header.producer_epoch) for batch in machine.batches()] == [(1, 1), (2, -1)]


# The groups that a cleaning makes: neighbours that fit into one segment.


SEGMENT_BYTES = len(build_batch([Record(0, 1, b"k", b"v")]))


def groups(
    base_offsets: list[int], upper_offset: int, empty: int = -1, segments: int = 10, entries: int = 1, index_bytes: int = 120
) -> list[list[int]]:
    """For segments of one record and ``entries`` index entries, where ``segments`` of them and ten entries fit into one."""
    clock = SimulatedClock(Scheduler())
    disk = SimulatedDisk(clock)
    disk.make_directory("/p")
    for base_offset in base_offsets:
        batch = build_batch([Record(base_offset, 1, b"k", b"v")], base_offset=base_offset) if base_offset != empty else b""
        disk.open(names.segment_path("/p", base_offset, names.LOG_SUFFIX), "create").write(0, [batch])
        disk.open(names.segment_path("/p", base_offset, names.INDEX_SUFFIX), "create").write(0, [bytes(8 * entries)])
        disk.open(names.segment_path("/p", base_offset, names.TIME_INDEX_SUFFIX), "create").write(0, [bytes(12)])
    arguments = MapKeysArguments("/p", base_offsets, 0, upper_offset, [], 1 << 20, segments * SEGMENT_BYTES, index_bytes)
    return from_json(MapKeysResult, map_keys(disk, clock, to_json(arguments))).groups


def test_groups_by_size() -> None:
    assert groups([0, 1, 2, 3, 4], 5) == [[0, 1, 2, 3, 4]]
    assert groups([0, 1, 2, 3, 4], 5, segments=2) == [[0, 1], [2, 3], [4]]
    assert groups([0, 1, 2], 3, segments=0) == [[0], [1], [2]]


def test_groups_by_the_size_of_their_indexes() -> None:
    assert groups([0, 1, 2, 3], 4, entries=5) == [[0, 1, 2], [3]]


def test_a_group_has_so_many_segments_at_most() -> None:
    count = GROUP_SEGMENTS_MAX + 2
    found = groups(list(range(count)), count, segments=count, index_bytes=12 * count)
    assert [len(group) for group in found] == [GROUP_SEGMENTS_MAX, 2]


def test_offsets_of_a_group_fit_into_its_indexes() -> None:
    limit = 2**31
    assert groups([0, 1, 2], limit) == [[0, 1, 2]]
    assert groups([0, 1, 2], limit + 1) == [[0, 1], [2]]


def test_an_empty_segment_is_in_no_group() -> None:
    assert groups([0, 1, 2, 3], 4, empty=2) == [[0, 1], [3]]
