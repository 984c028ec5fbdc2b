"""The quorum's own records in the metadata log and in its snapshots, as bytes.

They stand in control batches, which nobody but the quorum reads. The key is the control type; the value, in Kafka's flexible
encoding, begins with its own version::

    leader change     version i16 | leader id i32 | voters | granting voters | tagged fields      voter: id i32, directory id (v1)
    kraft version     version i16 | kraft.version i16 | tagged fields
    voters            version i16 | voters | tagged fields      voter: id i32, directory id, endpoints, supported kraft.versions
    snapshot header   version i16 | timestamp of the last record in it i64 | tagged fields
    snapshot footer   version i16 | tagged fields

The voters of a leader change have directory ids from ``kraft.version`` 1 on. Before, they stand in the configuration, which knows
nothing of directories, and the record has version 0. A type that this release does not know is skipped: what matters to every
node comes with a new ``kraft.version``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tidelog.raft.errors import CorruptMetadataLog
from tidelog.raft.quorum_state import NO_DIRECTORY
from tidelog.raft.voters import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    PlacedControlRecord,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterSet,
    VotersRecord,
    voter_set,
)
from tidelog.records.batch import build_batch, read_records
from tidelog.records.control import CONTROL_COUNT_MAX, CONTROL_SIZE_MAX, ControlType, control_key, parse_control_key
from tidelog.records.errors import RecordError
from tidelog.records.header import crc_is_valid, iterate_headers
from tidelog.records.record import Record
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import INT16 as INT16_LAYOUT
from tidelog.wire.primitives import Reader
from tidelog.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Field,
    Struct,
    struct_reader,
    struct_writer,
    tuple_struct,
)


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot."""

    last_contained_log_timestamp: int


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot. A snapshot without it is not whole."""


class _VersionRange(NamedTuple):
    low: int
    high: int


class _VoterFields(NamedTuple):
    node_id: int
    directory_id: bytes
    endpoints: tuple[VoterEndpoint, ...]
    kraft_versions: _VersionRange


class _VotersFields(NamedTuple):
    voters: tuple[_VoterFields, ...]


QuorumRecord = ControlRecord | SnapshotHeader | SnapshotFooter

_REPLICA = tuple_struct(ReplicaKey, Field("node_id", INT32), Field("directory_id", UUID, since=1, default=NO_DIRECTORY))
_ENDPOINT = tuple_struct(VoterEndpoint, Field("listener", STRING), Field("host", STRING), Field("port", UINT16))
_VERSION_RANGE = tuple_struct(_VersionRange, Field("low", INT16), Field("high", INT16))
_VOTER = tuple_struct(
    _VoterFields,
    Field("node_id", INT32),
    Field("directory_id", UUID),
    Field("endpoints", _ENDPOINT, is_array=True),
    Field("kraft_versions", _VERSION_RANGE),
)
_STRUCTS: dict[ControlType, tuple[Struct, int]] = {
    ControlType.LEADER_CHANGE: (
        tuple_struct(
            LeaderChange,
            Field("leader_id", INT32),
            Field("voters", _REPLICA, is_array=True),
            Field("granting_voters", _REPLICA, is_array=True),
        ),
        1,
    ),
    ControlType.SNAPSHOT_HEADER: (tuple_struct(SnapshotHeader, Field("last_contained_log_timestamp", INT64)), 0),
    ControlType.SNAPSHOT_FOOTER: (tuple_struct(SnapshotFooter), 0),
    ControlType.KRAFT_VERSION: (tuple_struct(KRaftVersion, Field("version", INT16)), 0),
    ControlType.KRAFT_VOTERS: (tuple_struct(_VotersFields, Field("voters", _VOTER, is_array=True)), 0),
}
_TYPES: dict[type[Any], ControlType] = {
    LeaderChange: ControlType.LEADER_CHANGE,
    SnapshotHeader: ControlType.SNAPSHOT_HEADER,
    SnapshotFooter: ControlType.SNAPSHOT_FOOTER,
    KRaftVersion: ControlType.KRAFT_VERSION,
    VotersRecord: ControlType.KRAFT_VOTERS,
}


def build_control_batch(records: Sequence[QuorumRecord], timestamp: int, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    encoded = [
        Record(base_offset + index, timestamp, control_key(_TYPES[type(record)]), encode_control_value(record))
        for index, record in enumerate(records)
    ]
    return build_batch(encoded, control=True, base_offset=base_offset, leader_epoch=leader_epoch)


def encode_control_value(record: QuorumRecord) -> bytes:
    """The record's value, in the version that has a place for everything in it."""
    struct, version = _STRUCTS[_TYPES[type(record)]]
    if isinstance(record, LeaderChange) and _has_no_directories(record):
        version = 0
    out = bytearray(INT16_LAYOUT.pack(version))
    fields: Any = _voters_fields(record.voter_set) if isinstance(record, VotersRecord) else record
    struct_writer(struct, version, is_flexible=True)(out, fields)
    return bytes(out)


def _has_no_directories(record: LeaderChange) -> bool:
    return all(voter.directory_id == NO_DIRECTORY for voter in (*record.voters, *record.granting_voters))


def _voters_fields(voters: VoterSet) -> _VotersFields:
    return _VotersFields(
        tuple(
            _VoterFields(
                voter.node_id,
                voter.directory_id,
                voter.endpoints,
                _VersionRange(voter.kraft_version_min, voter.kraft_version_max),
            )
            for voter in voters.voters
        )
    )


def read_control_records(data: bytes) -> Iterator[tuple[int, QuorumRecord]]:
    """The quorum's records in whole batches of the log, with their offsets. Raises CorruptMetadataLog."""
    try:
        for position, header in iterate_headers(data):
            if not header.is_control:
                continue
            if not crc_is_valid(data, position, header):
                raise CorruptMetadataLog(f"the control batch at offset {header.base_offset} fails its checksum")
            records = read_records(data, position, header, size_max=CONTROL_SIZE_MAX, count_max=CONTROL_COUNT_MAX)
            for record in records:
                decoded = decode_control_value(parse_control_key(record.key), record.value)
                if decoded is not None:
                    yield record.offset, decoded
    except (RecordError, MalformedRequest) as error:
        raise CorruptMetadataLog(f"a control batch of the metadata log cannot be read: {error}") from error


def only_quorum_records(placed: Iterable[tuple[int, QuorumRecord]]) -> Iterator[PlacedControlRecord]:
    """Leave out what frames a snapshot."""
    return ((offset, record) for offset, record in placed if isinstance(record, LeaderChange | KRaftVersion | VotersRecord))


def decode_control_value(control_type: ControlType, value: bytes | None) -> QuorumRecord | None:
    """None for a type that this release does not know. Raises MalformedRequest."""
    known = _STRUCTS.get(control_type)
    if known is None:
        return None
    if value is None:
        raise MalformedRequest(f"a control record of type {control_type.name} without a value")
    struct, version_max = known
    reader = Reader(memoryview(value), elements_max=len(value))
    version = reader.int16()
    if version < 0:
        raise MalformedRequest(f"a control record of type {control_type.name} has version {version}")
    # A later version adds fields at the end, or as tagged fields.
    fields = struct_reader(struct, min(version, version_max), is_flexible=True)(reader)
    if isinstance(fields, _VotersFields):
        return VotersRecord(
            voter_set(
                Voter(each.node_id, each.directory_id, each.endpoints, each.kraft_versions.low, each.kraft_versions.high)
                for each in fields.voters
            )
        )
    record: QuorumRecord = fields
    return record
