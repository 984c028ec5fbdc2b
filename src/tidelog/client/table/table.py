"""``Table("customers")``: the newest value of each key of a compacted topic, as a dictionary that follows the topic.

The topic is the truth, the table is a view of it: to change a row, send a message with its key, to remove one, a message with
that key and no value. The table never writes to the topic, and any number of processes may each have their own.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from tidelog.client.consumer_settings import ISOLATIONS, check_choice
from tidelog.client.errors import Closed, InvalidArgument, SerializationError, TimedOut
from tidelog.client.reachability import CONNECT_TIMEOUT_SECONDS
from tidelog.client.table.follower import CHECK_SECONDS, Follower
from tidelog.client.table.memory import MemoryStorage
from tidelog.client.table.source import Source
from tidelog.client.table.sqlite import SqliteStorage
from tidelog.client.table.storage import Storage

_logger = logging.getLogger(__name__)

LOCAL_BROKER = "127.0.0.1:9092"
_SQLITE = "sqlite:"

OnChange = Callable[[str, Any], object]

_DECODERS: dict[str, Callable[[bytes], Any]] = {"bytes": bytes, "text": bytes.decode, "json": json.loads}


class Table(Mapping[str, Any]):
    """A topic as a dictionary of its newest values by key. It loads from the beginning to the end, then follows.

    Keys are text; ``table[b"..."]`` finds keys that are none. ``values``: "bytes" (default), "text", "json", or a callable that
    makes something of bytes; it is called when a value is read, so one that cannot be decoded (SerializationError) spoils only
    its own key. Reading never waits and never talks to the broker: before ``ready`` it sees what has been loaded so far.

    ``storage``: "memory" (default), or "sqlite:PATH" for more rows than fit in memory and for a restart that reads only what
    has changed. Rows and the offsets that they were read up to are stored together, so a crash at any moment costs nothing but
    time. A file is used again only if it is what a fresh load would have made: not when the topic was created anew, when
    messages that it had not read were deleted, or when it was away for so long that tombstones may be gone. Then it is loaded
    from the beginning.

    With ``isolation="read_committed"`` (default) rows of open or aborted transactions are never seen, and an open one does not
    hold up ``ready``. ``on_change(key, value)`` is called for each change that comes after that, with None for a removal, from
    the table's thread.

    Opening waits for a broker, ``connect_timeout`` seconds at most; UnknownTopic when the topic is not there.
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
            raise InvalidArgument(f"a table is of one topic, by name: not {topic!r}")
        decode = values if callable(values) else _DECODERS.get(values)
        if decode is None:
            raise InvalidArgument(f"values is one of {', '.join(_DECODERS)} or a callable: not {values!r}")
        self.topic = topic
        self._decode = decode
        self._callbacks: list[OnChange] = [on_change] if on_change is not None else []
        self._is_closed = False
        source = Source(bootstrap, topic, isolation=isolation, connect_timeout=connect_timeout, config=config)
        try:
            source.facts()
            self._storage: Storage = _storage(storage)
        except BaseException:
            source.close()
            raise
        self._follower = Follower(source, self._storage, isolation, self._tell, check_interval)

    # -- when it may be used -------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Everything is here that could be read when the load began, and the topic is being followed. It turns false again while
        the table is loaded anew, and for good when it cannot go on: ``wait_ready`` says why."""
        return self._follower.is_ready

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until ``ready``. TimedOut when it takes longer than ``timeout`` seconds; what has ended the table is raised."""
        self._check_open()
        is_over = self._follower.wait_ready(timeout)
        if self._follower.error is not None:
            raise self._follower.error
        self._check_open()
        if not is_over:
            raise TimedOut(f"table {self.topic} is not loaded after {timeout} s: allow more time, or look at its positions()")

    def wait_for(self, condition: Callable[["Table"], object], timeout: float) -> None:
        """Until ``condition(table)`` holds, looking after each batch; for those who have just sent a change. TimedOut
        otherwise."""
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
        """By partition the offset of the next message to be read."""
        return self._follower.positions()

    def close(self) -> None:
        """Stop following. A SQLite file stays and may be opened again."""
        if self._follower.is_current_thread():
            raise InvalidArgument("close the table from another thread: on_change is called by its own")
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
        """The keys, as they were when it began or later; those that come and go meanwhile may be among them or not."""
        self._check_open()
        return map(_key_text, self._storage.keys())

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Keys with their values, in one pass: cheaper than ``items()``, which looks each one up."""
        self._check_open()
        return ((_key_text(key), self._decoded(_key_text(key), value)) for key, value in self._storage.items())

    # One table is equal to itself only: comparing would load both.
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
                    _logger.exception("table %s: on_change failed for %r; the table goes on", self.topic, key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"table {self.topic} is closed")


def _storage(storage: str) -> Storage:
    if storage == "memory":
        return MemoryStorage()
    if isinstance(storage, str) and storage.startswith(_SQLITE):
        return SqliteStorage(storage.removeprefix(_SQLITE))
    raise InvalidArgument(f'storage is "memory" or "sqlite:PATH": not {storage!r}')


def _key_bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode(errors="surrogateescape")


def _key_text(key: bytes) -> str:
    """Bytes that are no UTF-8 come through a table and back as they were."""
    return key.decode(errors="surrogateescape")
