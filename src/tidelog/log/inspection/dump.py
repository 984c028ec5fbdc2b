"""Lists the contents of a log's files item by item, in bounded memory.

Each item is a plain mapping with a ``kind``, suitable for a line of JSON; the command line formats the same items as text. Where
a log's structure breaks, an item of kind ``damage`` says so, and the dump continues with the next segment.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.durability.checkpoints import (
    format_id,
    read_checkpoint_rows,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    read_whole,
)
from tidelog.log.durability.durable_marks import decode_journal
from tidelog.log.errors import CorruptLog
from tidelog.log.inspection.directory_facts import (
    CHECKPOINTS,
    DirectoryTarget,
    FileTarget,
    PartitionTarget,
    Target,
    find_segments,
    read_directory_facts,
)
from tidelog.log.inspection.file_contents import ENTRY_BY_KIND, Fault, WalkedBatch, read_entries, walk_batches
from tidelog.log.producers.producer_snapshot import decode_snapshot
from tidelog.log.segments.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.segments.segment import DECODED_BATCH_BYTES_MAX, DECODED_BATCH_RECORDS_MAX
from tidelog.ports.disk import Disk, DiskFile
from tidelog.records.batch import read_records
from tidelog.records.control import parse_control_key, read_control_type
from tidelog.records.errors import RecordError, UnsupportedCompression
from tidelog.records.header import BatchHeader
from tidelog.records.record import Record

Item = dict[str, object]
_LAST_TIMESTAMP_MS = 253402300799999  # The end of the year 9999: later times have no calendar date.


class DumpOptions(NamedTuple):
    records: bool = False
    offset: int = 0
    limit: int | None = None
    """The maximum number of items to show; for a partition or log file, the maximum number of batches."""


def dump(disk: Disk, target: Target, options: DumpOptions) -> Iterator[Item]:
    if isinstance(target, DirectoryTarget):
        items = _dump_directory(disk, target)
    elif isinstance(target, PartitionTarget):
        items = _dump_partition(disk, target.path, options)
    elif target.kind == names.LOG_SUFFIX:
        items = _dump_log(disk, target.path, options)
    else:
        items = _dump_file(disk, target, options.offset)
    count = 0
    for item in items:
        # Records belong to their batch, and headings do not count.
        if item["kind"] not in ("record", "segment", "damage"):
            count += 1
            if options.limit is not None and count > options.limit:
                return
        yield item


def format_timestamp(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; "none" for -1, and the plain number for times without a calendar date."""
    if timestamp_ms == -1:
        return "none"
    if not 0 <= timestamp_ms <= _LAST_TIMESTAMP_MS:
        return str(timestamp_ms)
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


# -- directories ---------------------------------------------------------------------------------------------------------------


def _dump_directory(disk: Disk, target: DirectoryTarget) -> Iterator[Item]:
    """Show an overview: nobody wants to read the batches of a whole directory."""
    facts = read_directory_facts(disk, target.path)
    yield {
        "kind": "data directory",
        "path": target.path,
        "cluster_id": facts.cluster_id,
        "node_id": facts.node_id,
        "was_stopped_cleanly": facts.was_stopped_cleanly,
        "partitions": len(target.partitions),
        "problems": [problem.problem for problem in facts.problems],
    }
    for partition in target.partitions:
        of_partition = facts.of_partition(disk, partition.name)
        segments = find_segments(disk, partition.path)
        parsed = names.parse_partition_directory_name(partition.name)
        key = (parsed.topic, parsed.partition) if parsed is not None else ("", 0)
        yield {
            "kind": "partition",
            "name": partition.name,
            "segments": len(segments),
            "size_bytes": sum(disk.file_size(segment.log_path) for segment in segments),
            "first_offset": segments[0].base_offset if segments else None,
            "log_start_offset": of_partition.log_start_offset,
            "recovery_point": of_partition.recovery_point,
            "durable_mark": of_partition.durable_mark,
            "high_watermark": facts.offset(names.HIGH_WATERMARK_CHECKPOINT, key),
        }


def _dump_partition(disk: Disk, directory: str, options: DumpOptions) -> Iterator[Item]:
    segments = find_segments(disk, directory)
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= options.offset:
            continue
        yield {
            "kind": "segment",
            "path": segment.log_path,
            "base_offset": segment.base_offset,
            "size_bytes": disk.file_size(segment.log_path),
        }
        yield from _dump_log(disk, segment.log_path, options)


# -- batches and records -------------------------------------------------------------------------------------------------------


def _dump_log(disk: Disk, path: str, options: DumpOptions) -> Iterator[Item]:
    file = disk.open(path, "read")
    end = file.size()
    try:
        position = _position_of(file, end, options.offset) if options.offset else 0
        for batch in walk_batches(file, position, end):
            yield _batch_item(batch)
            if options.records:
                yield from _record_items(file, batch, options.offset)
    except CorruptLog as error:
        yield {
            "kind": "damage",
            "path": path,
            "position": error.position,
            "bytes_left": end - error.position,
            "reason": error.reason,
        }


def _position_of(file: DiskFile, end: int, offset: int) -> int:
    """Where the batch begins that holds ``offset``, or the first one after it. It reads only headers, because the index may be
    wrong."""
    for position, header in scan_headers(file, 0, end, SCAN_CHUNK_BYTES):
        if header.last_offset >= offset:
            return position
    return end


def _batch_item(batch: WalkedBatch) -> Item:
    header = batch.header
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "position": batch.position,
        "size_bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "compression": _compression_name(header),
        "base_timestamp_ms": None if header.has_delete_horizon else header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "max_timestamp": format_timestamp(header.max_timestamp),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "control_type": _control_type_name(batch) if header.is_control else None,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": f"{header.crc:08x}",
        "crc_is_valid": batch.crc_is_valid,
    }


def _compression_name(header: BatchHeader) -> str:
    try:
        return header.compression.name.lower()
    except UnsupportedCompression as error:
        return str(error)


def _control_type_name(batch: WalkedBatch) -> str:
    if batch.data is None:
        return "unreadable: it is too large"
    try:
        return read_control_type(batch.data, 0, batch.header).name
    except RecordError as error:
        return f"unreadable: {error}"


def _record_items(file: DiskFile, batch: WalkedBatch, from_offset: int) -> Iterator[Item]:
    header = batch.header
    if not batch.crc_is_valid:
        return
    data = batch.data if batch.data is not None else file.read(batch.position, header.size)
    try:
        for record in read_records(data, 0, header, size_max=DECODED_BATCH_BYTES_MAX, count_max=DECODED_BATCH_RECORDS_MAX):
            if record.offset >= from_offset:
                yield _record_item(record, header.is_control)
    except RecordError as error:
        reason = f"the records of this batch cannot be decoded: {error}"
        yield _damage(file.path, batch.position, header.size, reason)


def _record_item(record: Record, is_control: bool) -> Item:
    item: Item = {
        "kind": "record",
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "timestamp": format_timestamp(record.timestamp),
        **_bytes_fields("key", record.key),
        **_bytes_fields("value", record.value),
        "headers": [
            {"name": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), **_bytes_fields("value", value)}
            for name, value in record.headers
        ],
    }
    if is_control:
        item["control_type"] = parse_control_key(record.key).name
    return item


def _bytes_fields(name: str, content: bytes | None) -> Item:
    """The value as text if it is printable, otherwise as hexadecimal digits under ``<name>_hex``."""
    if content is None:
        return {name: None}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {f"{name}_hex": content.hex()}
    return (
        {name: text}
        if all(character.isprintable() or character in "\n\t\r" for character in text)
        else {f"{name}_hex": content.hex()}
    )


# -- other files ---------------------------------------------------------------------------------------------------------------


def _dump_file(disk: Disk, target: FileTarget, from_offset: int) -> Iterator[Item]:
    path, kind = target.path, target.kind
    if kind in ENTRY_BY_KIND:
        return _dump_index(disk.open(path, "read"), kind, target.base_offset, from_offset)
    if kind == names.SNAPSHOT_SUFFIX:
        return _dump_snapshot(disk, path)
    if kind == names.LEADER_EPOCH_CHECKPOINT:
        rows = read_checkpoint_rows(disk, path, ("epoch", "start-offset"))
        return iter([{"kind": "epoch", "epoch": epoch, "start_offset": start_offset} for _, (epoch, start_offset) in rows])
    if kind == names.DURABLE_MARKS:
        return _dump_marks(disk, path)
    if kind in CHECKPOINTS:
        offsets = read_offset_checkpoint(disk, path)
        return iter(
            [{"kind": "offset", "topic": key[0], "partition": key[1], "offset": offset} for key, offset in offsets.items()]
        )
    if kind == names.PARTITION_METADATA:
        topic_id = read_partition_metadata(disk, path)
        return iter([{"kind": "partition metadata", "topic_id": None if topic_id is None else format_id(topic_id)}])
    meta = read_meta_properties(disk, path)
    if meta is None:
        return iter(())
    directory_id = None if meta.directory_id is None else format_id(meta.directory_id)
    return iter(
        [{"kind": "meta properties", "cluster_id": meta.cluster_id, "node_id": meta.node_id, "directory_id": directory_id}]
    )


def _dump_index(file: DiskFile, kind: str, base_offset: int, from_offset: int) -> Iterator[Item]:
    for entry in read_entries(file, ENTRY_BY_KIND[kind]):
        if isinstance(entry, Fault):
            yield _damage(file.path, entry.position, file.size() - entry.position, entry.reason)
            return
        offset, item = _index_item(kind, base_offset, entry.fields)
        if offset >= from_offset:
            yield item


def _index_item(kind: str, base_offset: int, fields: tuple[int, ...]) -> tuple[int, Item]:
    """Return (the entry's offset, the entry as an item)."""
    if kind == names.INDEX_SUFFIX:
        offset = base_offset + fields[0]
        return offset, {"kind": "index entry", "offset": offset, "position": fields[1]}
    if kind == names.TIME_INDEX_SUFFIX:
        timestamp_ms, offset = fields[0], base_offset + fields[1]
        timestamp = format_timestamp(timestamp_ms)
        return offset, {"kind": "time index entry", "timestamp_ms": timestamp_ms, "timestamp": timestamp, "offset": offset}
    _, producer_id, first_offset, last_offset, last_stable_offset = fields
    return last_offset, {
        "kind": "aborted transaction",
        "producer_id": producer_id,
        "first_offset": first_offset,
        "last_offset": last_offset,
        "last_stable_offset": last_stable_offset,
    }


def _dump_snapshot(disk: Disk, path: str) -> Iterator[Item]:
    for entry in decode_snapshot(read_whole(disk, path) or b"", path):
        first_offset = entry.current_transaction_first_offset
        yield {
            "kind": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp_ms": entry.last_timestamp,
            "last_timestamp": format_timestamp(entry.last_timestamp),
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": None if first_offset < 0 else first_offset,
        }


def _dump_marks(disk: Disk, path: str) -> Iterator[Item]:
    marks, damage = decode_journal(read_whole(disk, path) or b"", path)
    for name, mark in sorted(marks.items()):
        yield {"kind": "durable mark", "partition": name, "topic_id": format_id(mark.topic_id), "offset": mark.offset}
    if damage is not None:
        yield _damage(path, None, None, damage)


def _damage(path: str, position: int | None, bytes_left: int | None, reason: str) -> Item:
    return {"kind": "damage", "path": path, "position": position, "bytes_left": bytes_left, "reason": reason}
