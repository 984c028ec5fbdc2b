"""The table of the APIs that the broker serves: one file per API, each with its ``API``. ApiVersions is generated from it.

An API that is not complete is not in the table. Each kind of listener serves its own part of it (``TABLES``).
"""

from collections.abc import Iterator
from importlib import import_module

from tidelog.broker.api import Api
from tidelog.broker.handlers import quorum_requests, share_group_states
from tidelog.config.listeners import ListenerRole
from tidelog.wire.messages import Direction, message_reader, message_writer
from tidelog.wire.protocol import ApiKey

_NAMES = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "find_coordinator",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "api_versions",
    "create_topics",
    "delete_topics",
    "delete_records",
    "offset_for_leader_epoch",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "describe_configs",
    "alter_configs",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "create_partitions",
    "elect_leaders",
    "incremental_alter_configs",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "describe_quorum",
    "update_features",
    "describe_cluster",
    "list_config_resources",
    "describe_topic_partitions",
    "delete_groups",
    "offset_delete",
    "consumer_group_heartbeat",
    "consumer_group_describe",
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "txn_offset_commit",
    "write_txn_markers",
    "describe_producers",
    "list_transactions",
    "describe_transactions",
    "describe_client_quotas",
    "alter_client_quotas",
    "get_telemetry_subscriptions",
    "push_telemetry",
    "share_group_heartbeat",
    "share_group_describe",
    "share_fetch",
    "share_acknowledge",
    "describe_share_group_offsets",
    "alter_share_group_offsets",
    "delete_share_group_offsets",
    "unregister_broker",
)
# What only controllers serve, to brokers and to each other.
_CONTROLLER_NAMES = (
    "envelope",
    "broker_registration",
    "broker_heartbeat",
    "allocate_producer_ids",
    "alter_partition",
    "controller_registration",
    "assign_replicas_to_dirs",
)

_APIS: list[Api] = [import_module(f"{__name__}.{name}").API for name in _NAMES]
_CONTROLLER_APIS: list[Api] = [import_module(f"{__name__}.{name}").API for name in _CONTROLLER_NAMES]
TABLES: dict[ListenerRole, dict[int, Api]] = {
    role: {
        api.key: api
        for api in (*_APIS, *_CONTROLLER_APIS, *quorum_requests.APIS, *share_group_states.APIS)
        if role in api.listeners
    }
    for role in ListenerRole
}
# What brokers serve to clients.
TABLE = TABLES[ListenerRole.CLIENT]
# Every API by its key. Fetch stands for that of brokers, although controllers serve one of their own.
EVERY_API: dict[int, Api] = {**TABLES[ListenerRole.CONTROLLER], **TABLES[ListenerRole.INTER_BROKER], **TABLE}

# What clients send when they connect and while they run, in the newest version, as Java's client does, and in the versions that
# librdkafka 2 and kafka-python 3 use instead. Produce, Fetch, OffsetCommit and two requests of transactions belong here too, but
# have codecs of their own and nothing to import.
_COMMON_VERSIONS: dict[ApiKey, tuple[int, ...]] = {
    ApiKey.API_VERSIONS: (3,),
    ApiKey.METADATA: (12,),
    ApiKey.INIT_PRODUCER_ID: (4,),
    ApiKey.FIND_COORDINATOR: (2,),
    ApiKey.JOIN_GROUP: (5, 7),
    ApiKey.SYNC_GROUP: (3,),
    ApiKey.HEARTBEAT: (3,),
    ApiKey.OFFSET_FETCH: (9, 8),
    ApiKey.LIST_OFFSETS: (7,),
    ApiKey.LEAVE_GROUP: (1,),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.ADD_OFFSETS_TO_TXN: (0,),
    ApiKey.TXN_OFFSET_COMMIT: (3,),
}


def warm_up() -> Iterator[None]:
    """Import the definitions of the common APIs in the versions that clients use, in slices of a few milliseconds: otherwise the
    first request of each holds the loop for all of its own."""
    for key, versions in _COMMON_VERSIONS.items():
        for version in (TABLE[key].versions[1], *versions):
            message_reader(key, version, Direction.REQUEST)
            yield
            message_writer(key, version, Direction.RESPONSE)
            yield
