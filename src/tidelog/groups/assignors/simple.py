"""The ``simple`` assignor of share groups: a partition may have several members, and a member several partitions.

With at least as many members as partitions, every member gets one partition, and the partitions are shared evenly. With fewer,
every partition gets one member. The sizes differ by one at most; within that, everybody keeps what they have. When members
subscribe to different topics, each topic is shared out among its own subscribers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tidelog.groups.assignors.specification import Assignments, Members, is_homogeneous

Item = TypeVar("Item")
Bin = TypeVar("Bin")
_Partition = tuple[bytes, int]


def assign_simple(members: Members, partitions: Mapping[bytes, Sequence[int]]) -> Assignments:
    """``partitions`` are those that may be assigned, by topic."""
    shared: dict[str, set[_Partition]] = {member_id: set() for member_id in members}
    if is_homogeneous(members):
        topic_ids = next(iter(members.values())).topic_ids if members else frozenset[bytes]()
        _share_out(
            members, sorted(members), [(each, index) for each in sorted(topic_ids) for index in partitions.get(each, ())], shared
        )
    else:
        for topic_id in sorted({topic_id for member in members.values() for topic_id in member.topic_ids}):
            subscribers = sorted(member_id for member_id, member in members.items() if topic_id in member.topic_ids)
            _share_out(members, subscribers, [(topic_id, index) for index in partitions.get(topic_id, ())], shared)
    assignments: Assignments = {}
    for member_id in members:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(shared[member_id]):
            by_topic.setdefault(topic_id, []).append(index)
        assignments[member_id] = {topic_id: tuple(indexes) for topic_id, indexes in by_topic.items()}
    return assignments


def _share_out(
    members: Members, member_ids: Sequence[str], partitions: Sequence[_Partition], shared: dict[str, set[_Partition]]
) -> None:
    if not partitions or not member_ids:
        return
    held: dict[_Partition, str] = {}
    first_held: dict[str, _Partition] = {}
    wanted = set(partitions)
    for member_id in member_ids:
        for topic_id, indexes in sorted(members[member_id].assigned.items()):
            for index in indexes:
                if (topic_id, index) in wanted:
                    held.setdefault((topic_id, index), member_id)
                    first_held.setdefault(member_id, (topic_id, index))
    if len(member_ids) >= len(partitions):
        for member_id, partition in _spread(member_ids, partitions, first_held).items():
            shared[member_id].add(partition)
    else:
        for partition, member_id in _spread(partitions, member_ids, held).items():
            shared[member_id].add(partition)


def _spread(items: Sequence[Item], bins: Sequence[Bin], current: Mapping[Item, Bin]) -> dict[Item, Bin]:
    """Put each item into one bin, so that the sizes of bins differ by one at most; within that, items stay where they are."""
    base, larger_left = divmod(len(items), len(bins))
    sizes = dict.fromkeys(bins, 0)
    chosen: dict[Item, Bin] = {}
    for item in items:
        found = current.get(item)
        if found is None:
            continue
        if sizes[found] < base:
            chosen[item] = found
        elif sizes[found] == base and larger_left:
            larger_left -= 1
            chosen[item] = found
        else:
            continue
        sizes[found] += 1
    # The bins that have room, each as often as it has room; those that lack most come first.
    room = [each for level in range(base) for each in bins if sizes[each] <= level]
    room += [each for each in bins if sizes[each] <= base][:larger_left]
    missing = [item for item in items if item not in chosen]
    chosen.update(zip(missing, room, strict=False))
    return chosen
