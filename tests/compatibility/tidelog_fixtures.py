"""Data directories written by earlier states of Tidelog, kept as data: each must open ever after, with everything it held.

They are packed as Kafka's are (``kafka_fixtures``), and what a client read is kept in the same form. ``state.json`` beside it has
what lies in the internal topics and in the metadata log: committed offsets, settings of topics and of the broker, transactional
ids. ``make_tidelog_fixtures.py`` made them. A fixture is never made again: a new state of the format gets a new name beside the
old ones, and its name goes into ``FIXTURE_NAMES``.
"""

import json
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.compatibility.kafka_client import CALL_SECONDS_MAX
from tests.compatibility.kafka_fixtures import FIXTURES
from tidelog.client.transactions.admin import TransactionAdmin

CLEAN = "tidelog-0.1-clean"
KILLED = "tidelog-0.1-killed"
FIXTURE_NAMES = (CLEAN, KILLED)
GROUP = "readers"
BROKER_ID = "1"
# Set where a client set it, not by default or in a file.
SOURCES = ("DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG")
# The years that pass until a fixture is opened must not expire what the test looks for.
NEVER_EXPIRES = {
    "offsets.retention.minutes": str(2**31 - 1),
    "transactional.id.expiration.ms": str(2**31 - 1),
    "log.retention.ms": "-1",
}


def read_state(bootstrap_servers: str, topics: list[str]) -> dict[str, Any]:
    """All that a client can see besides the records."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    with TransactionAdmin(bootstrap_servers) as transactions:
        found = transactions.list_transactions()
        ids = {listing.transactional_id: [listing.producer_id, listing.state] for listing in found}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    resources += [ConfigResource(ResourceType.BROKER, BROKER_ID)]
    return {
        "committed": _committed(admin),
        "configs": {resource.name: _set_configs(admin, resource) for resource in resources},
        "transactional_ids": dict(sorted(ids.items())),
    }


def _committed(admin: AdminClient) -> dict[str, list[Any]]:
    wanted = [ConsumerGroupTopicPartitions(GROUP)]
    (found,) = [future.result(CALL_SECONDS_MAX) for future in admin.list_consumer_group_offsets(wanted).values()]
    partitions = found.topic_partitions
    return {f"{at.topic}-{at.partition}": [at.offset, at.metadata] for at in sorted(partitions, key=lambda at: at.topic)}


def _set_configs(admin: AdminClient, resource: ConfigResource) -> dict[str, str]:
    (found,) = [future.result(CALL_SECONDS_MAX) for future in admin.describe_configs([resource]).values()]
    return {name: entry.value for name, entry in sorted(found.items()) if entry.source in _source_numbers()}


def _source_numbers() -> set[int]:
    from confluent_kafka.admin import ConfigSource

    return {ConfigSource[name].value for name in SOURCES}


def write_state(name: str, state: dict[str, Any]) -> None:
    (FIXTURES / name / "state.json").write_text(json.dumps(state, indent=1) + "\n")


def expected_state(name: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((FIXTURES / name / "state.json").read_text())
    return state
