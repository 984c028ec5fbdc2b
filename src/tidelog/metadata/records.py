"""The records of the metadata log, with Kafka's names, numbers and versions.

A record is plain data. ``SCHEMAS`` says how each is laid out in bytes; ``encode_record`` and ``decode_record`` are the way in
and out. We write the newest version of each, which goes with the metadata.version that a new cluster is given.

Ids are 16 bytes; zero stands for none.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.metadata.codec import (
    BOOLEAN,
    FLOAT_64,
    INTEGER_8,
    INTEGER_16,
    INTEGER_32,
    INTEGER_64,
    NULLABLE_STRING,
    STRING,
    UNSIGNED_16,
    UUID,
    Field,
    Schema,
    array_of,
    decode,
    encode,
    nullable_array_of,
    structure,
)
from tidelog.ports.disk import Buffer

Ids = tuple[bytes, ...]
BrokerIds = tuple[int, ...]

NO_LEADER = -1
NO_LEADER_CHANGE = -2
NO_RECOVERY_STATE_CHANGE = -1


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
    """None, or the constants above, for what does not change. Naming the leader, even the same one, begins a leader epoch."""

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
    """None: the default of this type."""


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
    """What follows counts only once the end has come."""

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

_ENDPOINTS = array_of(
    structure(BrokerEndpoint, (("name", STRING), ("host", STRING), ("port", UNSIGNED_16), ("security_protocol", INTEGER_16)))
)
_FEATURES = array_of(
    structure(SupportedFeature, (("name", STRING), ("min_supported_version", INTEGER_16), ("max_supported_version", INTEGER_16)))
)
_QUOTA_ENTITY = array_of(structure(QuotaEntityPart, (("entity_type", STRING), ("entity_name", NULLABLE_STRING))))
_BROKER_IDS = array_of(INTEGER_32)
_NULLABLE_BROKER_IDS = nullable_array_of(INTEGER_32)
_IDS = array_of(UUID)
_NULLABLE_IDS = nullable_array_of(UUID)

_SCHEMAS = (
    Schema(
        RegisterBrokerRecord,
        0,
        4,
        (
            Field("broker_id", INTEGER_32),
            Field("is_migrating_zk_broker", BOOLEAN, since=2),
            Field("incarnation_id", UUID),
            Field("broker_epoch", INTEGER_64),
            Field("end_points", _ENDPOINTS),
            Field("features", _FEATURES),
            Field("rack", NULLABLE_STRING),
            Field("fenced", BOOLEAN),
            Field("in_controlled_shutdown", BOOLEAN, since=1),
            Field("log_dirs", _IDS, since=3, tag=0),
            Field("cordoned_log_dirs", _NULLABLE_IDS, since=4, tag=1),
        ),
    ),
    Schema(UnregisterBrokerRecord, 1, 0, (Field("broker_id", INTEGER_32), Field("broker_epoch", INTEGER_64))),
    Schema(TopicRecord, 2, 0, (Field("name", STRING), Field("topic_id", UUID))),
    Schema(
        PartitionRecord,
        3,
        2,
        (
            Field("partition_id", INTEGER_32),
            Field("topic_id", UUID),
            Field("replicas", _BROKER_IDS),
            Field("isr", _BROKER_IDS),
            Field("removing_replicas", _BROKER_IDS),
            Field("adding_replicas", _BROKER_IDS),
            Field("leader", INTEGER_32),
            Field("leader_recovery_state", INTEGER_8, tag=0),
            Field("leader_epoch", INTEGER_32),
            Field("partition_epoch", INTEGER_32),
            Field("directories", _IDS, since=1),
            Field("eligible_leader_replicas", _NULLABLE_BROKER_IDS, since=2, tag=1),
            Field("last_known_elr", _NULLABLE_BROKER_IDS, since=2, tag=2),
        ),
    ),
    Schema(
        ConfigRecord,
        4,
        0,
        (
            Field("resource_type", INTEGER_8),
            Field("resource_name", STRING),
            Field("name", STRING),
            Field("value", NULLABLE_STRING),
        ),
    ),
    Schema(
        PartitionChangeRecord,
        5,
        2,
        (
            Field("partition_id", INTEGER_32),
            Field("topic_id", UUID),
            Field("isr", _NULLABLE_BROKER_IDS, tag=0),
            Field("leader", INTEGER_32, tag=1),
            Field("replicas", _NULLABLE_BROKER_IDS, tag=2),
            Field("removing_replicas", _NULLABLE_BROKER_IDS, tag=3),
            Field("adding_replicas", _NULLABLE_BROKER_IDS, tag=4),
            Field("leader_recovery_state", INTEGER_8, tag=5),
            Field("directories", _NULLABLE_IDS, since=1, tag=8),
            Field("eligible_leader_replicas", _NULLABLE_BROKER_IDS, since=2, tag=6),
            Field("last_known_elr", _NULLABLE_BROKER_IDS, since=2, tag=7),
        ),
    ),
    Schema(FenceBrokerRecord, 7, 0, (Field("id", INTEGER_32), Field("epoch", INTEGER_64))),
    Schema(UnfenceBrokerRecord, 8, 0, (Field("id", INTEGER_32), Field("epoch", INTEGER_64))),
    Schema(RemoveTopicRecord, 9, 0, (Field("topic_id", UUID),)),
    Schema(FeatureLevelRecord, 12, 0, (Field("name", STRING), Field("feature_level", INTEGER_16))),
    Schema(
        ClientQuotaRecord,
        14,
        0,
        (Field("entity", _QUOTA_ENTITY), Field("key", STRING), Field("value", FLOAT_64), Field("remove", BOOLEAN)),
    ),
    Schema(
        ProducerIdsRecord,
        15,
        0,
        (Field("broker_id", INTEGER_32), Field("broker_epoch", INTEGER_64), Field("next_producer_id", INTEGER_64)),
    ),
    Schema(
        BrokerRegistrationChangeRecord,
        17,
        3,
        (
            Field("broker_id", INTEGER_32),
            Field("broker_epoch", INTEGER_64),
            Field("fenced", INTEGER_8, tag=0),
            Field("in_controlled_shutdown", INTEGER_8, since=1, tag=1),
            Field("log_dirs", _IDS, since=2, tag=2),
            Field("cordoned_log_dirs", _NULLABLE_IDS, since=3, tag=3),
        ),
    ),
    Schema(NoOpRecord, 20, 0, ()),
    Schema(BeginTransactionRecord, 23, 0, (Field("name", NULLABLE_STRING, tag=0),)),
    Schema(EndTransactionRecord, 24, 0, ()),
    Schema(AbortTransactionRecord, 25, 0, (Field("reason", NULLABLE_STRING, tag=0),)),
    Schema(
        RegisterControllerRecord,
        27,
        0,
        (
            Field("controller_id", INTEGER_32),
            Field("incarnation_id", UUID),
            Field("zk_migration_ready", BOOLEAN),
            Field("end_points", _ENDPOINTS),
            Field("features", _FEATURES),
        ),
    ),
)

SCHEMAS = {schema.api_key: schema for schema in _SCHEMAS}
_SCHEMA_BY_TYPE: dict[type, Schema] = {schema.record_type: schema for schema in _SCHEMAS}


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """The value of the record in the log; in the newest version if none is named."""
    schema = _SCHEMA_BY_TYPE[type(record)]
    return encode(schema, record, schema.version_max if version is None else version)


def decode_record(value: Buffer) -> tuple[MetadataRecord, int]:
    """(record, version), or a ``MetadataError``."""
    decoded: tuple[Any, int] = decode(SCHEMAS, value)
    return decoded
