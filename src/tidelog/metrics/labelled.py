"""One object for each value of a label, with a maximum number of them.

Label values come from outside: topics, groups, client ids. So the first ``labels_max`` have their own object, and all others
share the one called ``OTHER``. A label that is gone can be forgotten, which makes room.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

OTHER = "other"

Counted = TypeVar("Counted")


class Labelled(Generic[Counted]):
    __slots__ = ("_by_label", "_labels_max", "_make")

    def __init__(self, make: Callable[[], Counted], labels_max: int) -> None:
        """``labels_max`` does not include ``OTHER``."""
        self._make = make
        self._labels_max = labels_max
        self._by_label: dict[str, Counted] = {}

    def __len__(self) -> int:
        return len(self._by_label)

    def __iter__(self) -> Iterator[tuple[str, Counted]]:
        """Iterate over a copy, because labels may be added in the meantime."""
        return iter(list(self._by_label.items()))

    def of(self, label: str) -> Counted:
        found = self._by_label.get(label)
        return found if found is not None else self._add(label)

    def _add(self, label: str) -> Counted:
        known = len(self._by_label) - (OTHER in self._by_label)
        if known >= self._labels_max and label != OTHER:
            return self.of(OTHER)
        counted = self._by_label[label] = self._make()
        return counted

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the labels that are gone. Ending a series is fine: whoever recorded it keeps what it counted."""
        gone = [label for label in self._by_label if label != OTHER and is_gone(label)]
        for label in gone:
            del self._by_label[label]
