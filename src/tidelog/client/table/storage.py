"""Stores the rows of a table: ``MemoryStorage`` or ``SqliteStorage``.

Rows and the positions up to which they were read change together or not at all. So a storage that is opened again has exactly the
rows that a load of the topic up to those positions gives.

The SQLite file has the tables ``rows`` (key, value), ``positions`` (partition, position: the offset of the next message to read)
and ``meta`` (format, topic, topic id, isolation, caught_up_ms). A batch's rows and positions are written in one transaction, in
WAL mode: after ``kill -9`` at any moment the file is in the state after some batch. After a power cut it may be in the state
after an earlier one (``synchronous=NORMAL``), which is as good, because the missing messages are read again. The one process that
writes holds a lock on ``<file>.lock``. The writer has one connection, and all readers share another, one query at a time; readers
see whole batches.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from tidelog.client.errors import InvalidArgument, TidelogError
from tidelog.ports import system

FORMAT = "1"
# The number of rows that an iteration has in memory at once.
_PAGE_ROWS = 500
_BUSY_SECONDS = 30.0
_CACHE_KILOBYTES = 8_192

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)


class TableStorageError(TidelogError):
    """The file of a table cannot be used. The message says why and what to do."""


class TableIdentity(NamedTuple):
    """The origin of the rows. Rows of another topic id or isolation are useless."""

    topic: str
    topic_id: str
    isolation: str


class TableProgress(NamedTuple):
    """The positions up to which the rows were read."""

    identity: TableIdentity
    positions: Mapping[int, int]
    """The offset of the next message to read, by partition."""
    caught_up_ms: int
    """When the table had last read everything in the topic. Later tombstones must still exist, or the rows are stale."""


class TableStorage(Protocol):
    """One thread writes, any thread reads."""

    def progress(self) -> TableProgress | None:
        """None if nothing is stored."""

    def reset(self, identity: TableIdentity, now_ms: int) -> None:
        """Remove all rows and positions, for a load of ``identity`` that begins now."""

    def apply(
        self, changes: Sequence[tuple[bytes, bytes | None]], positions: Mapping[int, int], caught_up_ms: int | None
    ) -> None:
        """Apply the changes in order, all of them or none. The value None removes the row."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is no such row: a row always has a value."""

    def count(self) -> int: ...

    def keys(self) -> Iterator[bytes]: ...

    def items(self) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


class MemoryStorage:
    """Keeps rows in a dict: fast, but reloaded after every restart.

    Readers iterate over snapshots, so that they and the one writer need no lock.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._identity: TableIdentity | None = None
        self._positions: dict[int, int] = {}
        self._caught_up_ms = 0

    def progress(self) -> TableProgress | None:
        if self._identity is None:
            return None
        return TableProgress(self._identity, dict(self._positions), self._caught_up_ms)

    def reset(self, identity: TableIdentity, now_ms: int) -> None:
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


class SqliteStorage:
    """Keeps rows in a SQLite file: more than fits into memory, and after a restart only the changes since then are read."""

    def __init__(self, path: str) -> None:
        if not path:
            raise InvalidArgument('storage is "memory" or "sqlite:PATH"')
        self._path = path
        self._lock_file = self._locked()
        self._read_lock = threading.Lock()
        try:
            self._writer = self._connection()
            with self._problems(), self._transaction():
                for statement in _SCHEMA:
                    self._writer.execute(statement)
            self._reader = self._connection()
        except BaseException:
            os.close(self._lock_file)
            raise

    # -- writing: one thread -------------------------------------------------------------------------------------------------

    def progress(self) -> TableProgress | None:
        with self._problems():
            meta = dict(self._writer.execute("SELECT name, value FROM meta").fetchall())
            positions = dict(self._writer.execute("SELECT partition, position FROM positions").fetchall())
        if meta.get("format") != FORMAT:
            return None
        identity = TableIdentity(meta["topic"], meta["topic_id"], meta["isolation"])
        return TableProgress(identity, positions, int(meta["caught_up_ms"]))

    def reset(self, identity: TableIdentity, now_ms: int) -> None:
        meta = {"format": FORMAT, **identity._asdict(), "caught_up_ms": str(now_ms)}
        with self._problems(), self._transaction():
            for table in ("rows", "positions", "meta"):
                self._writer.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are the three here
            self._writer.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))

    def apply(
        self, changes: Sequence[tuple[bytes, bytes | None]], positions: Mapping[int, int], caught_up_ms: int | None
    ) -> None:
        # Where one key has several changes, only the last one counts.
        lasts = dict(changes)
        written = [(key, value) for key, value in lasts.items() if value is not None]
        removed = [(key,) for key, value in lasts.items() if value is None]
        with self._problems(), self._transaction():
            self._writer.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", written)
            self._writer.executemany("DELETE FROM rows WHERE key = ?", removed)
            self._writer.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", list(positions.items()))
            if caught_up_ms is not None:
                self._writer.execute("UPDATE meta SET value = ? WHERE name = 'caught_up_ms'", (str(caught_up_ms),))

    # -- reading: any thread -------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        with self._problems(), self._read_lock:
            row = self._reader.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def count(self) -> int:
        """SQLite counts by reading, so this takes longer with more rows."""
        with self._problems(), self._read_lock:
            return int(self._reader.execute("SELECT count(*) FROM rows").fetchone()[0])

    def keys(self) -> Iterator[bytes]:
        for key, _ in self.items():
            yield key

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows sorted by key, page by page, so that a slow reader makes neither the memory nor the file grow."""
        page = self._page("SELECT key, value FROM rows ORDER BY key LIMIT ?", ())
        while page:
            yield from page
            page = self._page("SELECT key, value FROM rows WHERE key > ? ORDER BY key LIMIT ?", (page[-1][0],))

    def _page(self, query: str, arguments: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
        with self._problems(), self._read_lock:
            return self._reader.execute(query, (*arguments, _PAGE_ROWS)).fetchall()

    def close(self) -> None:
        with self._read_lock:
            self._reader.close()
        self._writer.close()
        os.close(self._lock_file)

    # -- details -------------------------------------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        with self._problems():
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KILOBYTES}")
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")

    @contextmanager
    def _problems(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            advice = "a damaged file may be deleted: the table is then loaded again"
            raise TableStorageError(f"{self._path}: {error}: check the directory and its space; {advice}") from error

    def _locked(self) -> int:
        try:
            descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | system.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TableStorageError(f"{self._path}: {error.strerror}: check the directory") from error
        try:
            system.lock_exclusively(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise TableStorageError(f"{self._path} is in use by another table: give each table a file of its own") from error
        return descriptor
