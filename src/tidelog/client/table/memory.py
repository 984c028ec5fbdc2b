"""Rows in a dict: fast, and loaded again after every restart."""

from collections.abc import Iterator, Mapping, Sequence

from tidelog.client.table.storage import Identity, Progress


class MemoryStorage:
    """Readers go through snapshots of the keys, so that they and the one writer need no lock."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._identity: Identity | None = None
        self._positions: dict[int, int] = {}
        self._caught_up_ms = 0

    def progress(self) -> Progress | None:
        if self._identity is None:
            return None
        return Progress(self._identity, dict(self._positions), self._caught_up_ms)

    def reset(self, identity: Identity, now_ms: int) -> None:
        self._caught_up_ms = now_ms
        self._identity = identity
        self._positions = {}
        self._rows = {}

    def apply(
        self, changes: Sequence[tuple[bytes, bytes | None]], positions: Mapping[int, int], caught_up_ms: int | None
    ) -> None:
        rows = self._rows
        for key, value in changes:
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        self._positions.update(positions)
        if caught_up_ms is not None:
            self._caught_up_ms = caught_up_ms

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def count(self) -> int:
        return len(self._rows)

    def keys(self) -> Iterator[bytes]:
        return iter(list(self._rows))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self._rows.items()))

    def close(self) -> None:
        self._rows = {}
