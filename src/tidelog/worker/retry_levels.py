"""Which topics a worker reads: its sources, and for each the retry topics of its group, one per backoff level.

The topics are made when the worker starts, so that what may not be made is told then and not at the first failure. Retry topics
of higher levels that are there already (the worker once had more retries) are read as well: nothing stays behind in them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.admin import Admin
from tidelog.deadletters.topics import ensure_failure_topics, retry_level, retry_topic
from tidelog.worker.assigned import SOURCE_LEVEL


class Role(NamedTuple):
    """What a topic is to the worker."""

    source: str
    level: int


def ensure_roles(admin: Admin, topics: Iterable[str], group: str, levels: int) -> tuple[dict[str, Role], dict[str, int]]:
    """The topics to read, by name, in a stable order; and the partition counts of all topics that there are. UnknownTopic and
    TopicNotCreated say what is missing."""
    sources = list(topics)
    for source in sources:
        ensure_failure_topics(admin, source, group, levels=levels)
    counts = {name: len(partitions) for name, partitions in admin.describe_cluster().topics.items()}
    return roles_of(sources, group, levels, counts), counts


def roles_of(sources: Iterable[str], group: str, levels: int, existing: Iterable[str]) -> dict[str, Role]:
    names = list(existing)
    roles: dict[str, Role] = {}
    for source in sources:
        roles[source] = Role(source, SOURCE_LEVEL)
        found = {level for name in names if (level := retry_level(name, source, group)) is not None}
        for level in sorted(found | set(range(levels))):
            roles[retry_topic(source, group, level)] = Role(source, level)
    return roles
