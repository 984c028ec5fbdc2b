"""The table of the APIs that the broker serves: one file per API, each with its ``API``. ApiVersions is generated from it.

An API that is not complete is not in the table.
"""

from collections.abc import Iterator
from importlib import import_module

from tidelog.broker.api import Api
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
)

_APIS: list[Api] = [import_module(f"{__name__}.{name}").API for name in _NAMES]
TABLE: dict[int, Api] = {api.key: api for api in _APIS}

# What clients send when they connect and while they run. Produce, Fetch and OffsetCommit belong here too, but have codecs of
# their own and nothing to import.
_COMMON_KEYS = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.LEAVE_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)


def warm_up() -> Iterator[None]:
    """Import the definitions of the common APIs at their newest versions, in slices of a few milliseconds: otherwise the first
    request of each holds the loop for all of its own."""
    for key in _COMMON_KEYS:
        version = TABLE[key].versions[1]
        message_reader(key, version, Direction.REQUEST)
        yield
        message_writer(key, version, Direction.RESPONSE)
        yield
