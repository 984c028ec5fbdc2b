"""The input and output of assignors.

All of it is plain data; nothing here knows about groups. An assignor gives the same output for the same input, whatever the order
of the input's mappings: it orders members and topics itself.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

Partitions = Mapping[bytes, tuple[int, ...]]
"""Partitions by topic id, in ascending order, without topics that have no partitions."""


class MemberSubscription(NamedTuple):
    topic_ids: frozenset[bytes]
    """The subscribed topics that exist."""
    instance_id: str | None = None
    assigned: Partitions = {}  # noqa: RUF012 - read only
    """The last target assignment; it may hold topics and partitions that are gone, or that others hold as well."""


Members = Mapping[str, MemberSubscription]
Assignments = dict[str, dict[bytes, tuple[int, ...]]]
"""The assignment of every member, including those that get nothing."""

Assignor = Callable[[Members, Mapping[bytes, int]], Assignments]
"""Takes the members, and the number of partitions of each topic."""


def is_homogeneous(members: Members) -> bool:
    """Whether all members subscribe to the same topics."""
    subscriptions = iter(members.values())
    first = next(subscriptions, None)
    return first is None or all(member.topic_ids == first.topic_ids for member in subscriptions)
