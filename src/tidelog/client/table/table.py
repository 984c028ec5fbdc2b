"""``Table("customers")``: the newest value of each key of a compacted topic, as a dictionary that follows the topic.

The topic is the truth, the table is a view of it. To change a row, send a message with its key; to remove it, send a message with
that key and no value. The table never writes to the topic, and any number of processes may each have their own table.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from tidelog.client.consumer_settings import ISOLATIONS, check_choice
from tidelog.client.errors import Closed, InvalidArgument, SerializationError, TimedOut
from tidelog.client.librdkafka import CONNECT_TIMEOUT_SECONDS
from tidelog.client.table.follower import CHECK_SECONDS, TableFollower, TableSource
from tidelog.client.table.storage import MemoryStorage, SqliteStorage, TableStorage

_logger = logging.getLogger(__name__)

LOCAL_BROKER = "127.0.0.1:9092"
_SQLITE = "sqlite:"

OnChange = Callable[[str, Any], object]

_DECODERS: dict[str, Callable[[bytes], Any]] = {"bytes": bytes, "text": bytes.decode, "json": json.loads}


class Table(Mapping[str, Any]):
    """A topic as a dictionary of its newest values by key. It loads from the beginning to the end, then follows.

    Keys are text; ``table[b"..."]`` finds keys that are not. ``values``: "bytes" (default), "text", "json", or a callable that
    converts bytes. It is called when a value is read, so a value that cannot be decoded (SerializationError) affects only its own
    key. Reading never waits and never talks to the broker: before ``ready`` it sees what has been loaded so far.

    ``storage``: "memory" (default), or "sqlite:PATH" for more rows than fit in memory and for a restart that reads only what has
    changed. Rows and the offsets that they were read up to are stored together, so a crash at any moment costs nothing but time.
    A file is used again only if it is what a fresh load would have made. If the topic was deleted and created again, if messages
    were deleted that the table had not read, or if it was away for so long that tombstones may be gone, it is loaded from the
    beginning.

    With ``isolation="read_committed"`` (default) rows of open or aborted transactions are never seen, and an open transaction
    does not delay ``ready``. ``on_change(key, value)`` is called for each change after that, with None for a removal, from the
    table's thread.

    Opening waits for a broker, ``connect_timeout`` seconds at most. UnknownTopic if the topic does not exist.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str | Sequence[str] = LOCAL_BROKER,
        values: str | Callable[[bytes], Any] = "bytes",
        storage: str = "memory",
        isolation: str = "read_committed",
        on_change: OnChange | None = None,
        check_interval: float = CHECK_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("isolation", isolation, ISOLATIONS)
        if not isinstance(topic, str) or not topic:
            raise InvalidArgument(f"a table needs the name of one topic: not {topic!r}")
        decode = values if callable(values) else _DECODERS.get(values)
        if decode is None:
            raise InvalidArgument(f"values is one of {', '.join(_DECODERS)} or a callable: not {values!r}")
        self.topic = topic
        self._decode = decode
        self._callbacks: list[OnChange] = [on_change] if on_change is not None else []
        self._is_closed = False
        source = TableSource(bootstrap, topic, isolation=isolation, connect_timeout=connect_timeout, config=config)
        try:
            source.facts()
            self._storage: TableStorage = _storage(storage)
        except BaseException:
            source.close()
            raise
        self._follower = TableFollower(source, self._storage, isolation, self._tell, check_interval)

    # -- when it may be used -------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether everything is loaded that could be read when the load began, and the table follows the topic. It becomes false
        while the table is loaded again, and for good if the table cannot continue: ``wait_ready`` says why."""
        return self._follower.is_ready

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until ``ready``. TimedOut after ``timeout`` seconds. Raises the error that has ended the table, if there is
        one."""
        self._check_open()
        is_over = self._follower.wait_ready(timeout)
        if self._follower.error is not None:
            raise self._follower.error
        self._check_open()
        if not is_over:
            raise TimedOut(f"table {self.topic} is not loaded after {timeout} s: allow more time, or look at its positions()")

    def wait_for(self, condition: Callable[["Table"], object], timeout: float) -> None:
        """Wait until ``condition(table)`` holds, for callers who have just sent a change. It is checked after each batch.
        TimedOut after ``timeout`` seconds."""
        deadline = monotonic() + timeout
        while not condition(self):
            self._check_open()
            if self._follower.error is not None:
                raise self._follower.error
            if monotonic() >= deadline:
                raise TimedOut(f"table {self.topic}: the condition does not hold after {timeout} s")
            self._follower.wait_for_batch(min(0.1, max(0.0, deadline - monotonic())))

    def on_change(self, callback: OnChange) -> OnChange:
        """Call ``callback(key, value)`` for each change from now on; usable as a decorator."""
        if not callable(callback):
            raise InvalidArgument(f"on_change takes a callable: not {callback!r}")
        self._callbacks.append(callback)
        return callback

    def positions(self) -> dict[int, int]:
        """The offset of the next message to read, by partition."""
        return self._follower.positions()

    def close(self) -> None:
        """Stop following. A SQLite file stays and may be opened again."""
        if self._follower.is_current_thread():
            raise InvalidArgument("close the table from another thread: its own thread calls on_change")
        if not self._is_closed:
            self._is_closed = True
            self._follower.stop()
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- the dictionary ------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str | bytes) -> Any:
        self._check_open()
        value = self._storage.get(_key_bytes(key))
        if value is None:
            raise KeyError(key)
        return self._decoded(_key_text(key) if isinstance(key, bytes) else key, value)

    def __contains__(self, key: object) -> bool:
        self._check_open()
        return isinstance(key, str | bytes) and self._storage.get(_key_bytes(key)) is not None

    def __len__(self) -> int:
        self._check_open()
        return self._storage.count()

    def __iter__(self) -> Iterator[str]:
        """The keys. Those that are added or removed during the iteration may be among them or not."""
        self._check_open()
        return map(_key_text, self._storage.keys())

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Keys with their values, in one pass. This is cheaper than ``items()``, which looks up each key."""
        self._check_open()
        return ((_key_text(key), self._decoded(_key_text(key), value)) for key, value in self._storage.items())

    # A table is equal only to itself: comparing would load both.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Table {self.topic} {'closed' if self._is_closed else 'ready' if self.ready else 'loading'}>"

    # -- details -------------------------------------------------------------------------------------------------------------

    def _decoded(self, key: str, value: bytes) -> Any:
        try:
            return self._decode(value)
        except ValueError as error:
            raise SerializationError(f"table {self.topic}: the value of {key!r} cannot be decoded: {error}") from error

    def _tell(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        for callback in list(self._callbacks):
            for key, value in changes:
                try:
                    callback(_key_text(key), None if value is None else self._decoded(_key_text(key), value))
                except Exception:
                    _logger.exception("table %s: on_change failed for %r; the table continues", self.topic, key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"table {self.topic} is closed")


def _storage(storage: str) -> TableStorage:
    if storage == "memory":
        return MemoryStorage()
    if isinstance(storage, str) and storage.startswith(_SQLITE):
        return SqliteStorage(storage.removeprefix(_SQLITE))
    raise InvalidArgument(f'storage is "memory" or "sqlite:PATH": not {storage!r}')


def _key_bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode(errors="surrogateescape")


def _key_text(key: bytes) -> str:
    """Convert a key to text. Bytes that are not UTF-8 survive the round trip through a table."""
    return key.decode(errors="surrogateescape")
