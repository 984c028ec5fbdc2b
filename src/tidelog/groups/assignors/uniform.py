"""``uniform``: all members get the same number of partitions, and keep what they have as far as possible.

If all have the same subscription there is a closed form, and it is exact: counts differ by one at most, and no assignment with
such counts moves fewer partitions.

If subscriptions differ, a member that subscribes to less can get less, so counts may have to differ. The result is such that no
chain of moves (a partition from the first member to the second, one from there to the third, ...) makes the counts of the first
and the last member more even. For this problem (an optimal semi-matching) that means the best possible balance. The search starts
with what members have. Partitions without an owner go to the subscriber with the fewest, topics with few subscribers first, since
others can compensate for them. Then the shortest chains are applied until there is none. The partitions of one topic are alike,
so a chain is searched in the graph of members and topics, not of partitions. When a search from the fullest member finds nothing,
no member that it passed needs a search of its own, so one pass over the graph proves the end.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heapreplace

from tidelog.groups.assignors.specification import Assignments, Members, is_homogeneous

TopicIdPartition = tuple[bytes, int]


def assign_uniform(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    if not members:
        return {}
    if is_homogeneous(members):
        return _assign_homogeneous(members, partition_counts)
    return _Balance(members, partition_counts).run()


def _keep_current(
    members: Members, member_ids: list[str], partition_counts: Mapping[bytes, int]
) -> tuple[set[TopicIdPartition], dict[str, list[TopicIdPartition]]]:
    """Return the part of the current assignment that may stay: partitions that exist and that their member still subscribes to.
    If two members hold the same partition, which must not happen and must not continue, the first keeps it."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id in member_ids:
        member = members[member_id]
        mine = kept[member_id] = []
        for topic_id in sorted(member.assigned):
            if topic_id not in member.topic_ids:
                continue
            count = partition_counts[topic_id]
            for partition in member.assigned[topic_id]:
                topic_partition = (topic_id, partition)
                if partition < count and topic_partition not in taken:
                    taken.add(topic_partition)
                    mine.append(topic_partition)
    return taken, kept


def _grouped(topic_partitions: list[TopicIdPartition]) -> dict[bytes, tuple[int, ...]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(topic_partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in by_topic.items()}


class _Balance:
    """Balances members with different subscriptions. Members are numbers here, in the order of their ids, because chains are
    searched often."""

    __slots__ = ("free", "holdings", "loads", "member_ids", "subscribers")

    def __init__(self, members: Members, partition_counts: Mapping[bytes, int]) -> None:
        self.member_ids = sorted(members)
        self.subscribers: dict[bytes, list[int]] = {}
        for index, member_id in enumerate(self.member_ids):
            for topic_id in sorted(members[member_id].topic_ids):
                self.subscribers.setdefault(topic_id, []).append(index)
        taken, kept = _keep_current(members, self.member_ids, partition_counts)
        self.holdings: list[dict[bytes, list[int]]] = []
        self.loads: list[int] = []
        for member_id in self.member_ids:
            self.holdings.append({topic_id: list(partitions) for topic_id, partitions in _grouped(kept[member_id]).items()})
            self.loads.append(len(kept[member_id]))
        self.free = {
            topic_id: [partition for partition in range(partition_counts[topic_id]) if (topic_id, partition) not in taken]
            for topic_id in self.subscribers
        }

    def run(self) -> Assignments:
        self._give_out_free()
        while self._even_out():
            pass
        return {
            member_id: {topic_id: tuple(sorted(partitions)) for topic_id, partitions in sorted(holding.items()) if partitions}
            for member_id, holding in zip(self.member_ids, self.holdings, strict=True)
        }

    def _give_out_free(self) -> None:
        for topic_id in sorted(self.subscribers, key=lambda topic_id: (len(self.subscribers[topic_id]), topic_id)):
            heap = [(self.loads[index], index) for index in self.subscribers[topic_id]]
            heapify(heap)
            for partition in self.free[topic_id]:
                load, index = heap[0]
                heapreplace(heap, (load + 1, index))
                self.loads[index] = load + 1
                self.holdings[index].setdefault(topic_id, []).append(partition)

    def _even_out(self) -> bool:
        """Apply the shortest chains of moves from one member. Returns False when there is none."""
        seen: set[int] = set()
        seen_topics: set[bytes] = set()
        for source in sorted(range(len(self.loads)), key=lambda index: (-self.loads[index], index)):
            if source in seen:
                continue
            seen.add(source)
            if self._chain_from(source, seen, seen_topics):
                return True
        return False

    def _chain_from(self, source: int, seen: set[int], seen_topics: set[bytes]) -> bool:
        enough = self.loads[source] - 2
        came_from: dict[int, tuple[int, bytes]] = {}
        level = [source]
        while level:
            reached = []
            for index in level:
                for topic_id in self._held_topics(index):
                    if topic_id in seen_topics:
                        continue
                    seen_topics.add(topic_id)
                    for other in self.subscribers[topic_id]:
                        if other not in seen:
                            seen.add(other)
                            came_from[other] = (index, topic_id)
                            reached.append(other)
            takers = [index for index in reached if self.loads[index] <= enough]
            if takers:
                self._share_out(source, takers, came_from)
                return True
            level = reached
        return False

    def _held_topics(self, index: int) -> Iterable[bytes]:
        return [topic_id for topic_id, partitions in self.holdings[index].items() if partitions]

    def _share_out(self, source: int, takers: list[int], came_from: Mapping[int, tuple[int, bytes]]) -> None:
        """Apply the chains to all takers, the emptiest first, up to the average: one by one, each move would take a search."""
        average = (self.loads[source] + sum([self.loads[index] for index in takers])) // (len(takers) + 1)
        for taker in sorted(takers, key=lambda index: (self.loads[index], index)):
            gap = self.loads[source] - self.loads[taker]
            if gap >= 2:
                self._move_along(source, taker, came_from, max(1, min(gap // 2, average - self.loads[taker])))

    def _move_along(self, source: int, target: int, came_from: Mapping[int, tuple[int, bytes]], count: int) -> None:
        """Move ``count`` partitions, or as many as the members on the chain have."""
        chain: list[tuple[int, int, bytes]] = []
        taker = target
        while taker != source:
            giver, topic_id = came_from[taker]
            chain.append((giver, taker, topic_id))
            taker = giver
        count = min(count, *[len(self.holdings[giver][topic_id]) for giver, _, topic_id in chain])
        if not count:
            return
        self.loads[source] -= count
        self.loads[target] += count
        for giver, taker, topic_id in chain:
            given = self.holdings[giver][topic_id]
            self.holdings[taker].setdefault(topic_id, []).extend(given[-count:])
            del given[-count:]


def _assign_homogeneous(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    topic_ids = sorted(next(iter(members.values())).topic_ids)
    member_ids = sorted(members)
    taken, kept = _keep_current(members, member_ids, partition_counts)
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
    return {member_id: _grouped(kept[member_id]) for member_id in member_ids}


def _quotas(member_ids: list[str], kept: dict[str, list[TopicIdPartition]], quota: int, extra: int) -> dict[str, int]:
    """How many partitions each member gets. Members that already have one more than the others keep it first, because then
    nothing moves."""
    quotas = dict.fromkeys(member_ids, quota)
    for member_id in sorted(member_ids, key=lambda member_id: len(kept[member_id]) <= quota)[:extra]:
        quotas[member_id] += 1
    return quotas


def _take_turns(member_ids: list[str], kept: dict[str, list[TopicIdPartition]], quotas: dict[str, int]) -> Iterator[str]:
    """Let members with room take turns, so that adjacent partitions of a busy topic go to different members."""
    room = {member_id: quotas[member_id] - len(kept[member_id]) for member_id in member_ids}
    waiting = [member_id for member_id in member_ids if room[member_id]]
    while waiting:
        for member_id in waiting:
            room[member_id] -= 1
            yield member_id
        waiting = [member_id for member_id in waiting if room[member_id]]
