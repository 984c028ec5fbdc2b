"""The bytes of a producer snapshot: ``<offset>.snapshot``, the producers' state as of that offset.

Kafka's version 1, big-endian: version i16; CRC-32C u32 of all that follows; count i32; then per producer: producer id i64, epoch
i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, current transaction's first
offset i64 (-1: none). Only a producer's last batch is kept, so after a reload just that one is recognised as a duplicate.

A crash may leave any part of a snapshot that was not synced; the CRC tells. A snapshot is never the only copy: recovery falls
back to an older one, or none, and replays the log from there.
"""

from collections.abc import Iterable
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from tidelog.log import names
from tidelog.log.errors import CorruptSnapshot
from tidelog.log.producer_state import BatchMetadata, ProducerEntry, ProducerState
from tidelog.ports.disk import Disk, DiskFile

SNAPSHOT_VERSION = 1

_VERSION_CRC = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_ENTRIES_POSITION = _VERSION_CRC.size + _COUNT.size


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Ordered by producer id, so that the same state gives the same bytes."""
    rows = sorted(entry.snapshot_fields() for entry in entries)
    body = b"".join((_COUNT.pack(len(rows)), *(_ENTRY.pack(*row) for row in rows)))
    return _VERSION_CRC.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """The producers in a snapshot; CorruptSnapshot, naming ``path``, when it is not exactly one."""
    if len(data) < _ENTRIES_POSITION:
        raise CorruptSnapshot(f"{path} has {len(data)} bytes, a producer snapshot has at least {_ENTRIES_POSITION}")
    version, crc = _VERSION_CRC.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"{path} has version {version}, only {SNAPSHOT_VERSION} is known")
    body = memoryview(data)[_VERSION_CRC.size :]
    computed_crc = crc32c(body)
    if computed_crc != crc:
        raise CorruptSnapshot(f"{path} says that its CRC is {crc:#010x}, but it is {computed_crc:#010x}")
    (count,) = _COUNT.unpack_from(body)
    if count < 0 or len(data) != _ENTRIES_POSITION + count * _ENTRY.size:
        raise CorruptSnapshot(f"{path} says that it has {count} producers, and has {len(data)} bytes")
    entries = [_entry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]
    if len({entry.producer_id for entry in entries}) != count:
        raise CorruptSnapshot(f"{path} has a producer twice")
    return entries


def write_snapshot(disk: Disk, directory: str, offset: int, producers: ProducerState) -> DiskFile:
    """Write the producers' state at ``offset``. The caller syncs the file and the directory."""
    file = disk.open(names.segment_path(directory, offset, names.SNAPSHOT_SUFFIX), "create")
    file.truncate(0)
    file.write(0, [encode_snapshot(producers.entries())])
    return file


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerEntry:
    batches = [BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)] if last_offset >= 0 else []
    return ProducerEntry(producer_id, epoch, batches, coordinator_epoch, timestamp, transaction_first_offset)
