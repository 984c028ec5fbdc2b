"""The table of the APIs that the broker serves: one file per API, each with its ``API``. ApiVersions is generated from it.

An API that is not complete is not in the table.
"""

from importlib import import_module

from tidelog.broker.api import Api

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
