"""``uniform``: everybody gets the same number of partitions, and keeps what it has as far as that allows.

With the same subscription for all there is a closed form, and it is exact: counts differ by one at most, and no assignment with
such counts moves fewer partitions. With different subscriptions see ``uniform_heterogeneous``.
"""

from collections.abc import Iterator, Mapping

from tidelog.groups.assignors import uniform_heterogeneous
from tidelog.groups.assignors.current import TopicIdPartition, grouped, keep_current
from tidelog.groups.assignors.specification import Assignments, Members, is_homogeneous


def assign(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    if not members:
        return {}
    if is_homogeneous(members):
        return _assign_homogeneous(members, partition_counts)
    return uniform_heterogeneous.assign(members, partition_counts)


def _assign_homogeneous(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    topic_ids = sorted(next(iter(members.values())).topic_ids)
    member_ids = sorted(members)
    taken, kept = keep_current(members, member_ids, partition_counts)
    quota, extra = divmod(sum([partition_counts[topic_id] for topic_id in topic_ids]), len(member_ids))
    quotas = _quotas(member_ids, kept, quota, extra)
    for member_id in member_ids:
        for topic_partition in kept[member_id][quotas[member_id] :]:
            taken.discard(topic_partition)
        del kept[member_id][quotas[member_id] :]
    free = [
        (topic_id, partition)
        for topic_id in topic_ids
        for partition in range(partition_counts[topic_id])
        if (topic_id, partition) not in taken
    ]
    for topic_partition, member_id in zip(free, _take_turns(member_ids, kept, quotas), strict=True):
        kept[member_id].append(topic_partition)
    return {member_id: grouped(kept[member_id]) for member_id in member_ids}


def _quotas(member_ids: list[str], kept: dict[str, list[TopicIdPartition]], quota: int, extra: int) -> dict[str, int]:
    """Who gets one more than the others: first those who have one more already, for then nothing moves."""
    quotas = dict.fromkeys(member_ids, quota)
    for member_id in sorted(member_ids, key=lambda member_id: len(kept[member_id]) <= quota)[:extra]:
        quotas[member_id] += 1
    return quotas


def _take_turns(member_ids: list[str], kept: dict[str, list[TopicIdPartition]], quotas: dict[str, int]) -> Iterator[str]:
    """Members with room, in turns: neighbouring partitions of a busy topic go to different ones."""
    room = {member_id: quotas[member_id] - len(kept[member_id]) for member_id in member_ids}
    waiting = [member_id for member_id in member_ids if room[member_id]]
    while waiting:
        for member_id in waiting:
            room[member_id] -= 1
            yield member_id
        waiting = [member_id for member_id in waiting if room[member_id]]
