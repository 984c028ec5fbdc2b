"""The records of the metadata log, with Kafka's names, numbers and versions.

A record is plain data. ``SCHEMAS`` says how each is laid out in bytes; ``encode_record`` and ``decode_record`` convert. A
record's value in the log, all in Kafka's flexible encoding::

    frame version uvarint (1) | api key uvarint | version uvarint | fields in the schema's order | tagged fields

We write the newest version of each, which goes with the metadata.version that a new cluster is given, and read all of them.
Defaults stand in the dataclasses. Ids are 16 bytes; zero stands for none.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.ports.disk import Buffer
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.primitives import Reader
from tidelog.wire.schema import (
    BOOL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Field,
    ReadValue,
    WriteValue,
    dataclass_struct,
    struct_reader,
    struct_writer,
    tuple_struct,
)

# The layout of the header before a record's fields.
FRAME_VERSION = 1

Ids = tuple[bytes, ...]
BrokerIds = tuple[int, ...]

NO_LEADER = -1
NO_LEADER_CHANGE = -2
NO_RECOVERY_STATE_CHANGE = -1


class MetadataError(Exception):
    """The metadata log cannot be used. Each of these errors stops a start: a broker with half of its metadata would do harm."""


class MalformedRecord(MetadataError):
    """The bytes are not a metadata record, or do not match the version that they state."""


class UnsupportedRecord(MetadataError):
    """A record of a kind or version that this release does not know. Skipping it could lose a rule that somebody relies on."""


class InconsistentRecord(MetadataError):
    """A record that does not fit the image, such as a partition of a topic that was never created."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    broker_id: int
    is_migrating_zk_broker: bool = False
    incarnation_id: bytes = bytes(16)
    broker_epoch: int = 0
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: Ids = ()
    cordoned_log_dirs: Ids | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    partition_id: int
    topic_id: bytes
    replicas: BrokerIds
    isr: BrokerIds
    removing_replicas: BrokerIds = ()
    adding_replicas: BrokerIds = ()
    leader: int = NO_LEADER
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: Ids = ()
    eligible_leader_replicas: BrokerIds | None = None
    last_known_elr: BrokerIds | None = None


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """``value`` None removes the setting."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """None, or one of the constants above, leaves a field unchanged. Naming the leader, even the same one, begins a leader
    epoch."""

    partition_id: int
    topic_id: bytes
    isr: BrokerIds | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: BrokerIds | None = None
    removing_replicas: BrokerIds | None = None
    adding_replicas: BrokerIds | None = None
    leader_recovery_state: int = NO_RECOVERY_STATE_CHANGE
    directories: Ids | None = None
    eligible_leader_replicas: BrokerIds | None = None
    last_known_elr: BrokerIds | None = None


@dataclass(frozen=True, slots=True)
class FenceBrokerRecord:
    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class UnfenceBrokerRecord:
    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """Level 0 removes the feature."""

    name: str
    feature_level: int


class QuotaEntityPart(NamedTuple):
    entity_type: str
    entity_name: str | None
    """None stands for the default of this type."""


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    entity: tuple[QuotaEntityPart, ...]
    key: str
    value: float = 0.0
    remove: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord:
    """``fenced``: -1 unfenced, 0 no change, 1 fenced. ``in_controlled_shutdown``: 0 no change, 1 shutting down."""

    broker_id: int
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: Ids = ()
    cordoned_log_dirs: Ids | None = None


@dataclass(frozen=True, slots=True)
class NoOpRecord:
    pass


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """The records that follow take effect only when the transaction ends."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    pass


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterControllerRecord:
    controller_id: int
    incarnation_id: bytes
    zk_migration_ready: bool = False
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[SupportedFeature, ...] = ()


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RegisterControllerRecord
)

_ENDPOINT = dataclass_struct(
    BrokerEndpoint, Field("name", STRING), Field("host", STRING), Field("port", UINT16), Field("security_protocol", INT16)
)
_FEATURE = dataclass_struct(
    SupportedFeature,
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)
_QUOTA_ENTITY_PART = tuple_struct(QuotaEntityPart, Field("entity_type", STRING), Field("entity_name", STRING, is_nullable=True))


class MetadataRecordSchema:
    """One kind of record: its number, its newest version, and its fields. Versions are compiled when they are first used."""

    __slots__ = ("_readers", "_writers", "api_key", "record_type", "struct", "version_max")

    def __init__(self, api_key: int, version_max: int, record_type: type[Any], fields: tuple[Field, ...]) -> None:
        self.api_key = api_key
        self.version_max = version_max
        self.record_type = record_type
        self.struct = dataclass_struct(record_type, *fields)
        self._readers: dict[int, ReadValue] = {}
        self._writers: dict[int, WriteValue] = {}

    def read(self, reader: Reader, version: int) -> Any:
        read = self._readers.get(version)
        if read is None:
            read = self._readers[version] = struct_reader(self.struct, version, is_flexible=True)
        return read(reader)

    def write(self, out: bytearray, record: Any, version: int) -> None:
        write = self._writers.get(version)
        if write is None:
            write = self._writers[version] = struct_writer(self.struct, version, is_flexible=True)
        write(out, record)


_SCHEMAS = (
    MetadataRecordSchema(
        0,
        4,
        RegisterBrokerRecord,
        (
            Field("broker_id", INT32),
            Field("is_migrating_zk_broker", BOOL, since=2),
            Field("incarnation_id", UUID),
            Field("broker_epoch", INT64),
            Field("end_points", _ENDPOINT, is_array=True),
            Field("features", _FEATURE, is_array=True),
            Field("rack", STRING, is_nullable=True),
            Field("fenced", BOOL),
            Field("in_controlled_shutdown", BOOL, since=1),
            Field("log_dirs", UUID, is_array=True, since=3, tag=0),
            Field("cordoned_log_dirs", UUID, is_array=True, is_nullable=True, since=4, tag=1),
        ),
    ),
    MetadataRecordSchema(1, 0, UnregisterBrokerRecord, (Field("broker_id", INT32), Field("broker_epoch", INT64))),
    MetadataRecordSchema(2, 0, TopicRecord, (Field("name", STRING), Field("topic_id", UUID))),
    MetadataRecordSchema(
        3,
        2,
        PartitionRecord,
        (
            Field("partition_id", INT32),
            Field("topic_id", UUID),
            Field("replicas", INT32, is_array=True),
            Field("isr", INT32, is_array=True),
            Field("removing_replicas", INT32, is_array=True),
            Field("adding_replicas", INT32, is_array=True),
            Field("leader", INT32),
            Field("leader_recovery_state", INT8, tag=0),
            Field("leader_epoch", INT32),
            Field("partition_epoch", INT32),
            Field("directories", UUID, is_array=True, since=1),
            Field("eligible_leader_replicas", INT32, is_array=True, is_nullable=True, since=2, tag=1),
            Field("last_known_elr", INT32, is_array=True, is_nullable=True, since=2, tag=2),
        ),
    ),
    MetadataRecordSchema(
        4,
        0,
        ConfigRecord,
        (
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("name", STRING),
            Field("value", STRING, is_nullable=True),
        ),
    ),
    MetadataRecordSchema(
        5,
        2,
        PartitionChangeRecord,
        (
            Field("partition_id", INT32),
            Field("topic_id", UUID),
            Field("isr", INT32, is_array=True, is_nullable=True, tag=0),
            Field("leader", INT32, tag=1),
            Field("replicas", INT32, is_array=True, is_nullable=True, tag=2),
            Field("removing_replicas", INT32, is_array=True, is_nullable=True, tag=3),
            Field("adding_replicas", INT32, is_array=True, is_nullable=True, tag=4),
            Field("leader_recovery_state", INT8, tag=5),
            Field("directories", UUID, is_array=True, is_nullable=True, since=1, tag=8),
            Field("eligible_leader_replicas", INT32, is_array=True, is_nullable=True, since=2, tag=6),
            Field("last_known_elr", INT32, is_array=True, is_nullable=True, since=2, tag=7),
        ),
    ),
    MetadataRecordSchema(7, 0, FenceBrokerRecord, (Field("id", INT32), Field("epoch", INT64))),
    MetadataRecordSchema(8, 0, UnfenceBrokerRecord, (Field("id", INT32), Field("epoch", INT64))),
    MetadataRecordSchema(9, 0, RemoveTopicRecord, (Field("topic_id", UUID),)),
    MetadataRecordSchema(12, 0, FeatureLevelRecord, (Field("name", STRING), Field("feature_level", INT16))),
    MetadataRecordSchema(
        14,
        0,
        ClientQuotaRecord,
        (
            Field("entity", _QUOTA_ENTITY_PART, is_array=True),
            Field("key", STRING),
            Field("value", FLOAT64),
            Field("remove", BOOL),
        ),
    ),
    MetadataRecordSchema(
        15,
        0,
        ProducerIdsRecord,
        (Field("broker_id", INT32), Field("broker_epoch", INT64), Field("next_producer_id", INT64)),
    ),
    MetadataRecordSchema(
        17,
        3,
        BrokerRegistrationChangeRecord,
        (
            Field("broker_id", INT32),
            Field("broker_epoch", INT64),
            Field("fenced", INT8, tag=0),
            Field("in_controlled_shutdown", INT8, since=1, tag=1),
            Field("log_dirs", UUID, is_array=True, since=2, tag=2),
            Field("cordoned_log_dirs", UUID, is_array=True, is_nullable=True, since=3, tag=3),
        ),
    ),
    MetadataRecordSchema(20, 0, NoOpRecord, ()),
    MetadataRecordSchema(23, 0, BeginTransactionRecord, (Field("name", STRING, is_nullable=True, tag=0),)),
    MetadataRecordSchema(24, 0, EndTransactionRecord, ()),
    MetadataRecordSchema(25, 0, AbortTransactionRecord, (Field("reason", STRING, is_nullable=True, tag=0),)),
    MetadataRecordSchema(
        27,
        0,
        RegisterControllerRecord,
        (
            Field("controller_id", INT32),
            Field("incarnation_id", UUID),
            Field("zk_migration_ready", BOOL),
            Field("end_points", _ENDPOINT, is_array=True),
            Field("features", _FEATURE, is_array=True),
        ),
    ),
)

SCHEMAS = {schema.api_key: schema for schema in _SCHEMAS}
_SCHEMA_BY_TYPE: dict[type, MetadataRecordSchema] = {schema.record_type: schema for schema in _SCHEMAS}


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Return the record's value in the log, by default in its newest version. Raises ValueError when the version has no field for
    something that the record holds."""
    schema = _SCHEMA_BY_TYPE[type(record)]
    if version is None:
        version = schema.version_max
    elif version != schema.version_max:
        _expect_no_loss(schema, record, version)
    out = bytearray((FRAME_VERSION, schema.api_key, version))
    schema.write(out, record, version)
    return bytes(out)


def _expect_no_loss(schema: MetadataRecordSchema, record: MetadataRecord, version: int) -> None:
    name = type(record).__name__
    if not 0 <= version <= schema.version_max:
        raise ValueError(f"{name} has no version {version}")
    for field in schema.struct.fields:
        if field.since > version and getattr(record, field.name) != field.default:
            raise ValueError(f"{name} version {version} has no {field.name}")


def decode_record(value: Buffer) -> tuple[MetadataRecord, int]:
    """Return (record, version). Raises UnsupportedRecord for what a later Kafka may have written, and MalformedRecord for
    anything else."""
    # A controller wrote the record, not a client, so its size alone bounds the number of its elements.
    reader = Reader(memoryview(value), elements_max=len(value))
    try:
        frame_version, api_key, version = reader.unsigned_varint(), reader.unsigned_varint(), reader.unsigned_varint()
        if frame_version != FRAME_VERSION:
            raise UnsupportedRecord(f"a metadata record has frame version {frame_version}; this release reads {FRAME_VERSION}")
        schema = SCHEMAS.get(api_key)
        if schema is None:
            raise UnsupportedRecord(f"a metadata record has kind {api_key} (version {version}), which this release does not know")
        if version > schema.version_max:
            name = schema.record_type.__name__
            raise UnsupportedRecord(f"{name} has version {version}; this release reads versions 0 to {schema.version_max}")
        record: MetadataRecord = schema.read(reader, version)
        reader.expect_end()
    except MalformedRequest as error:
        raise MalformedRecord(f"a metadata record of {len(value)} bytes cannot be read: {error}") from error
    return record, version
