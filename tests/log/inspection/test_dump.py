"""Dump: every kind of file, from an offset on, up to a limit, and what it makes of damage."""

import pytest

from tests.log.disks import write_file
from tests.log.harness import PATH, TOPIC_ID, Store, batch
from tests.log.inspection.damage import END_OFFSET, ORDERS, SETTINGS, flip, log_files, stopped_store, truncate
from tidelog.log import names
from tidelog.log.durability.checkpoints import format_id
from tidelog.log.inspection.directory_facts import DirectoryTarget, FileTarget, PartitionTarget, UnknownTarget, recognise
from tidelog.log.inspection.dump import DumpOptions, Item, dump, format_timestamp
from tidelog.records.compression import CompressionType


def items(store: Store, path: str, options: DumpOptions | None = None) -> list[Item]:
    return list(dump(store.disk, recognise(store.disk, path), options if options is not None else DumpOptions()))


def batches(found: list[Item]) -> list[Item]:
    return [item for item in found if item["kind"] == "batch"]


def test_a_partition_has_all_its_batches() -> None:
    store = stopped_store()
    found = items(store, ORDERS)
    assert [item["path"] for item in found if item["kind"] == "segment"] == log_files(store.disk)
    next_offset = 0
    for item in batches(found):
        assert item["base_offset"] == next_offset
        assert item["crc_is_valid"]
        last_offset = item["last_offset"]
        assert isinstance(last_offset, int)
        next_offset = last_offset + 1
    assert next_offset == END_OFFSET


def test_a_batch_shows_its_whole_header() -> None:
    store = Store(SETTINGS)
    log = store.create()
    stamps = [1_704_067_200_123, 1_704_067_200_124]
    log.append_as_leader(
        batch(timestamps=stamps, compression=CompressionType.ZSTD, producer_id=9, sequence=4, transactional=True), leader_epoch=6
    )
    (found,) = batches(items(store, ORDERS))
    assert found.pop("crc")
    size_bytes = found.pop("size_bytes")
    assert size_bytes == log.size
    assert found == {
        "kind": "batch",
        "base_offset": 0,
        "last_offset": 1,
        "records": 2,
        "position": 0,
        "leader_epoch": 6,
        "producer_id": 9,
        "producer_epoch": 0,
        "base_sequence": 4,
        "last_sequence": 5,
        "compression": "zstd",
        "base_timestamp_ms": 1_704_067_200_123,
        "max_timestamp_ms": 1_704_067_200_124,
        "max_timestamp": "2024-01-01T00:00:00.124Z",
        "timestamp_type": "CreateTime",
        "is_transactional": True,
        "is_control": False,
        "control_type": None,
        "delete_horizon_ms": None,
        "crc_is_valid": True,
    }


def test_markers_say_how_they_end() -> None:
    found = batches(items(stopped_store(), ORDERS))
    assert [item["control_type"] for item in found if item["is_control"]] == ["ABORT", "COMMIT", "ABORT", "ABORT"]


def test_offset_and_limit() -> None:
    found = items(stopped_store(), ORDERS, DumpOptions(offset=17, limit=3))
    assert [item["base_offset"] for item in batches(found)] == [16, 18, 19]
    assert batches(items(stopped_store(), ORDERS, DumpOptions(offset=END_OFFSET))) == []


def test_records() -> None:
    store = Store(SETTINGS)
    log = store.create()
    log.append_as_leader(batch(2, key=b"\xff\x00"), 0)
    log.append_as_leader(batch(1, key=None), 0)
    records = [item for item in items(store, ORDERS, DumpOptions(records=True, offset=1)) if item["kind"] == "record"]
    assert [(item["offset"], item.get("key"), item.get("key_hex"), item["value"]) for item in records] == [
        (1, None, "ff00", "v"),
        (2, None, None, "v"),
    ]
    assert "key" not in records[0]


def test_a_bad_crc_is_shown_and_its_records_are_not() -> None:
    store = stopped_store()
    path = log_files(store.disk)[0]
    flip(store.disk, path, 50)
    found = items(store, path, DumpOptions(records=True))
    assert [item["crc_is_valid"] for item in batches(found)][:2] == [False, True]
    assert next(item for item in found if item["kind"] == "record")["offset"] == 1


def test_a_broken_structure_is_named_and_the_next_segment_follows() -> None:
    store = stopped_store()
    path = log_files(store.disk)[0]
    truncate(store.disk, path, 150)
    found = items(store, ORDERS)
    (damage,) = (item for item in found if item["kind"] == "damage")
    assert (damage["path"], damage["position"], damage["bytes_left"]) == (path, 100, 50)
    assert [item["base_offset"] for item in batches(found)][:2] == [0, 9]


def test_indexes() -> None:
    store = stopped_store()
    for offset, position in [(item["offset"], item["position"]) for item in items(store, store.paths(".index")[1])]:
        assert (offset, position) in [
            (item["last_offset"], item["position"]) for item in batches(items(store, log_files(store.disk)[1]))
        ]
    times = items(store, store.paths(".timeindex")[0])
    assert [item["kind"] for item in times] == ["time index entry"] * 2
    assert str(times[0]["timestamp"]).startswith("20")
    aborted = items(store, store.paths(".txnindex")[0])
    assert aborted == [
        {"kind": "aborted transaction", "producer_id": 7, "first_offset": 3, "last_offset": 8, "last_stable_offset": 6}
    ]
    assert items(store, store.paths(".txnindex")[1], DumpOptions(offset=19))[0]["last_offset"] == 19
    truncate(store.disk, store.paths(".index")[0], 11)
    assert [item["kind"] for item in items(store, store.paths(".index")[0])] == ["index entry", "damage"]


def test_small_files() -> None:
    store = stopped_store()
    producers = items(store, store.paths(".snapshot")[-1])
    assert [(item["producer_id"], item["last_sequence"]) for item in producers] == [(7, 3), (8, 3)]
    assert items(store, f"{ORDERS}/{names.LEADER_EPOCH_CHECKPOINT}") == [
        {"kind": "epoch", "epoch": "0", "start_offset": "0"},
        {"kind": "epoch", "epoch": "3", "start_offset": "22"},
    ]
    topic_id = format_id(TOPIC_ID)
    assert items(store, f"{PATH}/{names.DURABLE_MARKS}") == [
        {"kind": "durable mark", "partition": "orders-0", "topic_id": topic_id, "offset": END_OFFSET}
    ]
    assert items(store, f"{PATH}/{names.RECOVERY_POINT_CHECKPOINT}") == [
        {"kind": "offset", "topic": "orders", "partition": 0, "offset": END_OFFSET}
    ]
    assert items(store, f"{ORDERS}/{names.PARTITION_METADATA}") == [{"kind": "partition metadata", "topic_id": topic_id}]
    assert items(store, f"{PATH}/{names.META_PROPERTIES}")[0]["cluster_id"] == "cluster"


def test_a_data_directory_is_an_overview() -> None:
    head, partition = items(stopped_store(), PATH)
    assert (head["kind"], head["partitions"], head["was_stopped_cleanly"]) == ("data directory", 1, True)
    assert (partition["name"], partition["segments"], partition["durable_mark"]) == ("orders-0", 4, END_OFFSET)


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (-1, "none"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_704_067_200_007, "2024-01-01T00:00:00.007Z"),
        (-2, "-2"),
        (2**60, str(2**60)),
    ],
)
def test_timestamps(timestamp_ms: int, text: str) -> None:
    assert format_timestamp(timestamp_ms) == text


def test_what_a_path_is() -> None:
    store = stopped_store()
    assert isinstance(recognise(store.disk, PATH), DirectoryTarget)
    assert recognise(store.disk, ORDERS) == PartitionTarget(ORDERS, PATH)
    assert recognise(store.disk, log_files(store.disk)[1]) == FileTarget(log_files(store.disk)[1], ".log", 9)
    put_aside = f"{log_files(store.disk)[1]}.at-78.1704067200000-damaged"
    write_file(store.disk, put_aside, b"")
    assert recognise(store.disk, put_aside) == FileTarget(put_aside, ".log", 9)
    store.disk.make_directory("/elsewhere")
    for path in (f"{PATH}/nothing", f"{PATH}/{names.LOCK_FILE}", "/elsewhere"):
        with pytest.raises(UnknownTarget):
            recognise(store.disk, path)
