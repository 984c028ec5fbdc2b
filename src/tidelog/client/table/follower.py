"""The thread of a table: it loads the topic to its end, then follows it, one batch after the other into the storage.

*Ready* is reached when everything is stored that could be read when the load began. The rows that are kept are used only
if they are what a fresh load would have made so far; otherwise the table is emptied and loaded anew:

* the topic has another id (it was deleted and created again), or the rows were read with another isolation;
* the position is before the oldest message (tombstones may be gone with what was deleted) or behind the end;
* the table was away for long: compaction removes tombstones ``delete.retention.ms`` after they were written, so rows
  that it has not compared with the topic for half of that may have been deleted unseen.

The same is looked after every few seconds while following; new partitions join the others.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from time import time
from typing import Any

from tidelog.client.errors import TidelogError, UnknownTopic
from tidelog.client.table.source import PositionsGone, Source, TopicFacts
from tidelog.client.table.storage import Identity, Storage

_logger = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
_WAIT_SECONDS = 0.2
_RETRY_SECONDS = 0.5
# While following, being away is only believed after this long: a topic with no retention of tombstones is followed all the same.
_AWAY_MS_MIN = 60_000

OnBatch = Callable[[list[tuple[bytes, bytes | None]]], None]


def _now_ms() -> int:
    return int(time() * 1000)


class Follower:
    def __init__(self, source: Source, storage: Storage, isolation: str, on_batch: OnBatch, check_seconds: float) -> None:
        """``on_batch`` is told of every batch that comes when the table is ready."""
        self._source = source
        self._storage = storage
        self._isolation = isolation
        self._on_batch = on_batch
        self._check_seconds = check_seconds
        self._changed = threading.Condition()
        self._is_ready = False
        self._is_stopped = False
        self.error: TidelogError | None = None
        """Why it has ended, if it has."""
        self.loads = 0
        """How often it was loaded from the beginning."""
        self.keyless = 0
        """Messages without a key, which belong in no dictionary."""
        self._positions: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._began_ms = 0
        self._thread = threading.Thread(target=self._run, name=f"tidelog-table-{source.topic}", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def wait_ready(self, timeout: float | None) -> bool:
        """Or until it has ended by an error."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_ready or self.error is not None or self._is_stopped, timeout)

    def wait_for_batch(self, timeout: float) -> None:
        """Until something was stored, or the time is over."""
        with self._changed:
            self._changed.wait(timeout)

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        self._set(is_stopped=True)
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                try:
                    self._follow(self._load())
                except PositionsGone as gone:
                    _logger.warning("table %s is loaded anew: %s", self._source.topic, gone)
                    self._set(is_ready=False)
                except TidelogError as error:
                    # A topic that went may come again: it is another one then, and is loaded anew.
                    if not error.retriable and not isinstance(error, UnknownTopic):
                        raise
                    _logger.warning("table %s waits: %s", self._source.topic, error)
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_stopped, _RETRY_SECONDS)
        except TidelogError as error:
            self._end(error)
        except Exception as error:
            # A thread that ends silently would leave a table that looks ready and never changes again.
            self._end(TidelogError(f"table {self._source.topic}: {type(error).__name__}: {error}: open it again"), error)
        finally:
            self._source.close()

    def _end(self, error: TidelogError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        _logger.error("table %s does not follow its topic any more: %s", self._source.topic, error, exc_info=cause)
        self._set(is_ready=False, error=error)

    def _load(self) -> TopicFacts:
        """Take what is kept, or nothing, and read from there."""
        now_ms = _now_ms()
        facts = self._source.facts()
        begins, ends = self._source.bounds(facts.partitions)
        identity = Identity(self._source.topic, facts.topic_id, self._isolation)
        kept = self._kept_positions(identity, facts, begins, ends, now_ms)
        if kept is None:
            self._set(is_ready=False)
            self._storage.reset(identity, now_ms)
            self.loads += 1
            kept = {}
        self._positions = {partition: kept.get(partition, begins[partition]) for partition in facts.partitions}
        self._missing = {
            partition: ends[partition] for partition in facts.partitions if self._positions[partition] < ends[partition]
        }
        self._began_ms = now_ms
        self._source.assign(self._positions)
        return facts

    def _kept_positions(
        self, identity: Identity, facts: TopicFacts, begins: Mapping[int, int], ends: Mapping[int, int], now_ms: int
    ) -> dict[int, int] | None:
        progress = self._storage.progress()
        if progress is None or progress.identity != identity:
            return None
        if now_ms - progress.caught_up_ms > facts.delete_retention_ms // 2:
            return None
        for partition, position in progress.positions.items():
            if partition not in begins or not begins[partition] <= position <= ends[partition]:
                return None
        return dict(progress.positions)

    def _follow(self, facts: TopicFacts) -> None:
        checked_at = _now_ms()
        self._note_ready()
        while not self._is_stopped:
            messages, ends = self._source.read(_WAIT_SECONDS)
            if messages or ends:
                self._store(messages, ends)
                self._note_ready()
            if _now_ms() - checked_at >= self._check_seconds * 1000:
                checked_at = _now_ms()
                if not self._is_as_before(facts):
                    return

    def _store(self, messages: list[Any], ends: Mapping[int, int]) -> None:
        changes: list[tuple[bytes, bytes | None]] = []
        positions: dict[int, int] = {}
        for message in messages:
            key = message.key()
            if key is None:
                self.keyless += 1
            else:
                changes.append((key, message.value()))
            positions[message.partition()] = message.offset() + 1
        for partition, end in ends.items():
            positions[partition] = max(end, positions.get(partition, 0))
        self._storage.apply(changes, positions, None)
        self._positions.update(positions)
        self._set()
        if self._is_ready and changes:
            self._on_batch(changes)

    def _note_ready(self) -> None:
        """Everything is here that was there when it was last asked for the ends."""
        for partition in [one for one, end in self._missing.items() if self._positions[one] >= end]:
            del self._missing[partition]
        if not self._missing and self._began_ms:
            self._storage.apply([], {}, self._began_ms)
            self._began_ms = 0
            self._set(is_ready=True)

    def _is_as_before(self, facts: TopicFacts) -> bool:
        """Whether it is still the same topic, followed closely; else it is to be loaded again, as far as is needed."""
        now_ms = _now_ms()
        try:
            now = self._source.facts()
            if (now.topic_id, now.partitions) != (facts.topic_id, facts.partitions):
                return False
            _, ends = self._source.bounds(now.partitions)
        except TidelogError as error:
            _logger.warning("table %s: %s", self._source.topic, error)
            return True
        progress = self._storage.progress()
        if progress is None or now_ms - progress.caught_up_ms > max(now.delete_retention_ms // 2, _AWAY_MS_MIN):
            raise PositionsGone("it was away for longer than tombstones are kept")
        if not self._missing:
            self._missing = {one: end for one, end in ends.items() if self._positions[one] < end}
            self._began_ms = now_ms
            self._note_ready()
        return True

    def _set(self, *, is_ready: bool | None = None, is_stopped: bool = False, error: TidelogError | None = None) -> None:
        with self._changed:
            self._is_ready = self._is_ready if is_ready is None else is_ready
            self._is_stopped = self._is_stopped or is_stopped
            self.error = error or self.error
            self._changed.notify_all()
