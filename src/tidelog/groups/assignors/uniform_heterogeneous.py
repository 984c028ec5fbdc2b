"""``uniform`` for members with different subscriptions.

Who subscribes to less can get less, so counts may have to differ. What is reached: no chain of moves (a partition from the first
member to the second, one from there to the third, ...) makes the first one's count and the last one's more even. For this problem
(an optimal semi-matching) that is the same as: the best balance there is.

It begins with what members have. Partitions without an owner go to the subscriber with the least, topics with few subscribers
first, since others can make up for them. Then shortest chains are taken until there is none; partitions of one topic are alike,
so a chain is searched in the graph of members and topics, not of partitions. When a search from the fullest member finds nothing,
then everybody it came by needs no search of their own, so that one pass over the graph proves the end.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

from tidelog.groups.assignors.current import grouped, keep_current
from tidelog.groups.assignors.specification import Assignments, Members


def assign(members: Members, partition_counts: Mapping[bytes, int]) -> Assignments:
    return _Balance(members, partition_counts).run()


class _Balance:
    """Members are numbers here, in the order of their ids: chains are searched often."""

    __slots__ = ("free", "holdings", "loads", "member_ids", "subscribers")

    def __init__(self, members: Members, partition_counts: Mapping[bytes, int]) -> None:
        self.member_ids = sorted(members)
        self.subscribers: dict[bytes, list[int]] = {}
        for index, member_id in enumerate(self.member_ids):
            for topic_id in sorted(members[member_id].topic_ids):
                self.subscribers.setdefault(topic_id, []).append(index)
        taken, kept = keep_current(members, self.member_ids, partition_counts)
        self.holdings: list[dict[bytes, list[int]]] = []
        self.loads: list[int] = []
        for member_id in self.member_ids:
            self.holdings.append({topic_id: list(partitions) for topic_id, partitions in grouped(kept[member_id]).items()})
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
        """One chain. False when there is none."""
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
            if reached:
                emptiest = min(reached, key=lambda index: (self.loads[index], index))
                if self.loads[emptiest] <= enough:
                    self._move_along(source, emptiest, came_from)
                    return True
            level = reached
        return False

    def _held_topics(self, index: int) -> Iterable[bytes]:
        return [topic_id for topic_id, partitions in self.holdings[index].items() if partitions]

    def _move_along(self, source: int, target: int, came_from: Mapping[int, tuple[int, bytes]]) -> None:
        self.loads[source] -= 1
        self.loads[target] += 1
        while target != source:
            giver, topic_id = came_from[target]
            partition = self.holdings[giver][topic_id].pop()
            self.holdings[target].setdefault(topic_id, []).append(partition)
            target = giver
