"""``range``: members get adjacent partitions of each topic, in the order of their instance ids, then of their member ids.

Topics with the same number of partitions and the same subscribers are split at the same places, so that a member that joins two
streams by key has the same partitions of both. The price is that with n topics a member can have n partitions more than another.
"""

from collections.abc import Mapping

from tidelog.groups.assignors.specification import Assignments, Members


def assign_range(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members, key=lambda member_id: _order(member_id, members[member_id].instance_id)):
        for topic_id in members[member_id].topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    assignments: Assignments = {member_id: {} for member_id in members}
    for topic_id in sorted(subscribers):
        member_ids = subscribers[topic_id]
        quota, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for index, member_id in enumerate(member_ids):
            end = start + quota + (index < extra)
            if end == start:
                break
            assignments[member_id][topic_id] = tuple(range(start, end))
            start = end
    return assignments


def _order(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    """Static members come first, so their order stays when dynamic ones come and go."""
    return (True, member_id) if instance_id is None else (False, instance_id)
