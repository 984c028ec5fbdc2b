"""Deduplication in a SQLite file, which survives restarts, for workers on one machine.

    seen(id TEXT PRIMARY KEY, forget_at INTEGER) -- milliseconds since 1970

An id is written after its handler succeeded, and is durable before its offset is committed (WAL, synchronous=FULL). **The
promise**: a message whose mark was written is not handled again while it is remembered. A crash between the handler's end and the
mark repeats it. Within one process an id is handled once at a time: a second copy is tried again later. Two processes that have
the same message at the same time (a rebalance that did not wait for a slow handler) may both handle it. Expired ids are deleted
every ``FORGET_EVERY`` marks, so the rate and the time bound the size of the file.
"""

import os
import sqlite3
import threading

from tidelog.client.errors import InvalidArgument
from tidelog.ports.clock import Clock, RealClock
from tidelog.worker.deduplicate import Claim

FORGET_EVERY = 10_000
BUSY_SECONDS = 30.0


class SqliteDeduplicator:
    """``Worker(..., deduplicate=SqliteDeduplicator("seen.db"))``; ``remember`` is in seconds and defaults to what the retries
    need."""

    def __init__(self, path: str | os.PathLike[str], *, remember: float | None = None, clock: Clock | None = None) -> None:
        self._path = os.fspath(path)
        self._remember = remember
        self._clock = clock or RealClock()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._group = ""
        self._remember_ms = 0
        self._marks = 0
        self._running: set[str] = set()

    def open(self, group: str, remember_seconds: float) -> None:
        """Raises InvalidArgument if ``remember`` is too short, or the file is not a SQLite database."""
        if self._remember is not None and self._remember < remember_seconds:
            raise InvalidArgument(
                f"deduplicate: remember={self._remember:g} s is too short: retries need at least {remember_seconds:g} s"
            )
        self._remember_ms = int((self._remember or remember_seconds) * 1000)
        self._group = group
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, forget_at INTEGER NOT NULL) WITHOUT ROWID")
            connection.execute("CREATE INDEX IF NOT EXISTS seen_forget_at ON seen (forget_at)")
        except sqlite3.Error as error:
            raise InvalidArgument(f"deduplicate: {self._path} cannot be opened as a SQLite database: {error}") from error
        self._connection = connection
        self._running.clear()

    def claim(self, message_id: str) -> Claim:
        with self._lock:
            if message_id in self._running:
                return Claim.BUSY
            row = self._open.execute(
                "SELECT 1 FROM seen WHERE id = ? AND forget_at > ?", (self._key(message_id), self._clock.now_ms())
            ).fetchone()
            if row:
                return Claim.DONE
            self._running.add(message_id)
            return Claim.OURS

    def finish(self, message_id: str) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            # This runs even if the mark cannot be written, because the handler has ended.
            self._running.discard(message_id)
            self._open.execute(
                "INSERT OR REPLACE INTO seen (id, forget_at) VALUES (?, ?)", (self._key(message_id), now_ms + self._remember_ms)
            )
            self._marks += 1
            if self._marks % FORGET_EVERY == 0:
                self._open.execute("DELETE FROM seen WHERE forget_at <= ?", (now_ms,))

    def release(self, message_id: str) -> None:
        """There is nothing to undo in the file, because ``claim`` has written nothing."""
        with self._lock:
            self._running.discard(message_id)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise InvalidArgument("deduplicate: the file is not open")
        return self._connection

    def _key(self, message_id: str) -> str:
        """The group is part of the key, because groups may share a file."""
        return f"{self._group}\n{message_id}"
