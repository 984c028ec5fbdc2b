"""One file per API, found by this table; ApiVersions is generated from it.

An API that is not whole is not in the table.
"""

from tidelog.broker.api import Api
from tidelog.broker.handlers import (
    alter_configs,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    list_config_resources,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    update_features,
)

_MODULES = (
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    api_versions,
    create_topics,
    delete_topics,
    delete_records,
    offset_for_leader_epoch,
    describe_acls,
    create_acls,
    delete_acls,
    describe_configs,
    alter_configs,
    describe_log_dirs,
    create_partitions,
    elect_leaders,
    incremental_alter_configs,
    update_features,
    describe_cluster,
    list_config_resources,
    describe_topic_partitions,
)

TABLE: dict[int, Api] = {module.API.key: module.API for module in _MODULES}
