"""The partitions that this worker has now, by name and number, and the homes that they share."""

from collections.abc import Iterator

from tidelog.worker.assigned import Assigned, Home

Place = tuple[str, int]
"""Topic and partition."""


class Assignment:
    __slots__ = ("_by_place", "_homes")

    def __init__(self) -> None:
        self._by_place: dict[Place, Assigned] = {}
        self._homes: dict[Place, Home] = {}

    def __iter__(self) -> Iterator[Assigned]:
        """Over a copy: partitions may go while somebody walks."""
        return iter(list(self._by_place.values()))

    def __len__(self) -> int:
        return len(self._by_place)

    def get(self, topic: str, partition: int) -> Assigned | None:
        return self._by_place.get((topic, partition))

    def home(self, source: str, partition: int) -> Home:
        found = self._homes.get((source, partition))
        if found is None:
            found = self._homes[source, partition] = Home(source, partition)
        return found

    def homes(self) -> list[Home]:
        return list(self._homes.values())

    def add(self, assigned: Assigned) -> None:
        self._by_place[assigned.topic, assigned.partition] = assigned

    def remove(self, assigned: Assigned) -> None:
        """It is closed: what still comes back of it is ignored."""
        assigned.is_stopping = assigned.is_closed = True
        self._by_place.pop((assigned.topic, assigned.partition), None)
        if all(other.home is not assigned.home for other in self._by_place.values()):
            self._homes.pop((assigned.home.source, assigned.home.partition), None)
