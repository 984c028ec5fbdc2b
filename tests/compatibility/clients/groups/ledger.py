"""What all members of a group together have read and committed, checked while it happens.

- Nobody passes over a record: the first to read beyond what the group has read reads the very next offset.
- A member starts no earlier than at the last commit that was acknowledged before it was given the partition.
- From there on it reads one offset after the other, until its share changes.
"""

import threading

from tests.compatibility.clients.groups.member import Member, Observer, Partition, Read


class Ledger(Observer):
    def __init__(self) -> None:
        self.next_unread: dict[Partition, int] = {}
        """Everything before was read by somebody."""
        self.committed: dict[Partition, int] = {}
        self.reads = 0
        self.commits = 0
        """Acknowledged ones."""
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._earliest: dict[tuple[Member, Partition], int] = {}
        self._expected: dict[tuple[Member, Partition], int] = {}

    def on_assigned(self, member: Member, partitions: frozenset[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._earliest[member, partition] = self.committed.get(partition, 0)
                self._expected.pop((member, partition), None)

    def on_read(self, member: Member, read: Read) -> None:
        key, (partition, offset, _) = (member, read.partition), read
        with self._lock:
            self.reads += 1
            if offset > self.next_unread.get(partition, 0):
                self._problem(member, f"read {read}, nobody has read {self.next_unread.get(partition, 0)}")
            if key not in self._earliest:
                self._problem(member, f"read {read} of a partition that it was never given")
            elif offset < self._earliest[key]:
                self._problem(member, f"read {read}, {self._earliest[key]} was committed before it was given the partition")
            if self._expected.get(key, offset) != offset:
                self._problem(member, f"read {read} instead of {self._expected[key]}")
            self._expected[key] = offset + 1
            self.next_unread[partition] = max(self.next_unread.get(partition, 0), offset + 1)

    def on_committed(self, member: Member, offsets: dict[Partition, int]) -> None:
        with self._lock:
            self.commits += 1
            for partition, offset in offsets.items():
                # Members tell of their commits in any order; the coordinator takes those of a partition in one.
                self.committed[partition] = max(self.committed.get(partition, 0), offset)

    def has_read_all(self, topic: str, end_offsets: list[int]) -> bool:
        with self._lock:
            return [self.next_unread.get(Partition(topic, number), 0) for number in range(len(end_offsets))] == end_offsets

    def _problem(self, member: Member, text: str) -> None:
        self.problems.append(f"{member.name} {text}")
