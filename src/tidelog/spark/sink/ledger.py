"""The ledger in its topic: one entry per job under the job's name; compacted, so that it keeps the last entry of each.

Every change is compare-and-set: ``FencedWriter.begin`` fences everybody else who is changing this job's entry, then the entry is
read, written and committed, which fails if somebody has begun in the meantime. Whoever committed last holds the entry until
then, so its next change needs neither to begin nor to read.

A partition is read to its end, not only to its last stable offset, because a record of ours may lie behind another job's open
transaction. That one is over after LEDGER_TIMEOUT_MS at the latest.

Entries of batch writes are not needed forever: whoever finds one older than WRITE_ENTRY_DAYS deletes it; those without a
``writeId`` are deleted after ONCE_ENTRY_DAYS.
"""

import contextlib
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.admin import Admin, NewTopicSpec
from tidelog.client.errors import TidelogError, TimedOut, TopicExists
from tidelog.client.fetch.client import FetchClient
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.transactions.fenced_writer import FencedWriter, WriterFenced
from tidelog.client.wire.brokers import Brokers
from tidelog.spark.sink.job import Decision, LedgerEntry, LedgerUnusable, decode_entry, encode_entry
from tidelog.spark.sink.names import is_once, is_write, ledger_topic, ledger_transactional_id, shown

# The partition of an entry depends on this number and the job's name, so it must never change.
LEDGER_PARTITIONS = 8
LEDGER_TIMEOUT_MS = 20_000
# Brokers look for transactions that timed out every ten seconds or so.
SETTLED_SECONDS_MAX = LEDGER_TIMEOUT_MS / 1000 + 30
SETTLED_PAUSE_SECONDS = 0.01
UPDATE_SECONDS_MAX = 120.0
UPDATE_PAUSE_SECONDS_MAX = 1.0
TOPIC_SECONDS_MAX = 30.0
WRITE_ENTRY_DAYS = 30
ONCE_ENTRY_DAYS = 1
DELETED_AT_ONCE_MAX = 100
CLEANUP_POLICY = "compact"
# Segments are small, because compaction leaves the newest alone, and all of it is read when a query starts.
TOPIC_CONFIG = {
    "cleanup.policy": CLEANUP_POLICY,
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(24 * 3_600_000),
}
_DAY_MS = 24 * 3_600_000


class LedgerCluster(NamedTuple):
    """The cluster that holds the ledger, and how to reach it."""

    bootstrap: str
    brokers: Brokers
    topic_config: Callable[[str, str], str]
    """The value of a topic's setting."""


class TopicLedger:
    """The ledger's entry of one job."""

    def __init__(
        self,
        cluster: LedgerCluster,
        prefix: str,
        job: str,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._job = job
        self._key = job.encode()
        self._topic = ledger_topic(prefix)
        self._partition = zlib.crc32(self._key) % LEDGER_PARTITIONS
        self._bootstrap = cluster.bootstrap
        self._committed = FetchClient(cluster.bootstrap, isolation="read_committed")
        self._everything = FetchClient(cluster.bootstrap, isolation="read_uncommitted")
        self._writer = FencedWriter(cluster.brokers, ledger_transactional_id(prefix, job), LEDGER_TIMEOUT_MS)
        self._topic_config = cluster.topic_config
        self._now_ms = now_ms
        self._is_ready = False
        self._holds = False
        self._position = 0
        self._entry: LedgerEntry | None = None
        self._expired: dict[bytes, None] = {}

    def close(self) -> None:
        self._committed.close()
        self._everything.close()

    def read(self) -> LedgerEntry | None:
        self._make_ready()
        end = self._settled_end()
        for batch in self._committed.read(self._topic, self._partition, self._position, end):
            self._take(batch)
        self._position = end
        return self._entry

    def update(self, decide: Decision) -> tuple[LedgerEntry | None, bool]:
        self._make_ready()
        deadline = time.monotonic() + UPDATE_SECONDS_MAX
        pause_seconds = SETTLED_PAUSE_SECONDS
        while True:
            try:
                return self._update_once(decide)
            except WriterFenced as error:
                self._holds = False
                if time.monotonic() > deadline:
                    raise TimedOut(f"the ledger's entry of {shown(self._job)} is constantly being changed by others") from error
            # Tasks of one run arrive at the same time; the first that is done is enough for all.
            time.sleep(pause_seconds * random.random())  # noqa: S311 - no secret
            pause_seconds = min(2 * pause_seconds, UPDATE_PAUSE_SECONDS_MAX)

    def _update_once(self, decide: Decision) -> tuple[LedgerEntry | None, bool]:
        wanted = self._decided_on_held(decide)
        if wanted is None:
            self._writer.begin()
            self.read()
            wanted = decide(self._entry)
            if wanted is None:
                self._holds = True
                return self._entry, False
        expired = list(self._expired)[:DELETED_AT_ONCE_MAX]
        records: list[tuple[bytes, bytes | None]] = [(self._key, encode_entry(wanted)), *((key, None) for key in expired)]
        self._writer.write(self._topic, self._partition, records, self._now_ms())
        self._writer.commit()
        for key in expired:
            self._expired.pop(key)
        self._entry, self._holds = wanted, True
        return wanted, True

    def _decided_on_held(self, decide: Decision) -> LedgerEntry | None:
        """Decide on the entry as this process last changed it. A successful commit proves such a change right. Without a change
        nothing is proved: the entry may belong to somebody else by now."""
        is_held, self._holds = self._holds, False  # Until it is known how this ends.
        if not is_held:
            return None
        with contextlib.suppress(TidelogError):
            return decide(self._entry)
        return None

    # -- reading --------------------------------------------------------------------------------------------------------------

    def _settled_end(self) -> int:
        """The end of the partition, when nothing before it is undecided."""
        place = TopicPartition(self._topic, self._partition)
        end = self._everything.offsets([place], "latest")[place]
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while self._committed.offsets([place], "latest")[place] < end:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{self._topic}[{self._partition}] has a transaction that does not end: see tidelog transactions list"
                )
            time.sleep(SETTLED_PAUSE_SECONDS)
        return end

    def _take(self, batch: pa.RecordBatch) -> None:
        mine = batch.filter(pc.equal(batch.column("key"), pa.scalar(self._key, pa.binary())))
        if mine.num_rows:
            value = mine.column("value")[mine.num_rows - 1].as_py()
            self._entry = None if value is None else decode_entry(value)
        now_ms = self._now_ms()
        for key, value, timestamp_ms in _keys_and_times(batch):
            job = key.decode(errors="replace")
            if key != self._key and is_write(job):
                self._expired.pop(key, None)
                oldest_ms = now_ms - (ONCE_ENTRY_DAYS if is_once(job) else WRITE_ENTRY_DAYS) * _DAY_MS
                if value is not None and timestamp_ms < oldest_ms and decode_entry(value).is_ended:
                    self._expired[key] = None

    # -- the topic ------------------------------------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        if self._is_ready:
            return
        # The topic is looked up by a pattern, because looking up a missing name would wait for it.
        if not self._committed.topics(re.compile(re.escape(self._topic))):
            self._create()
        info = self._committed.topics([self._topic])[self._topic]
        if info.partitions < LEDGER_PARTITIONS:
            raise LedgerUnusable(
                f"topic {self._topic} has {info.partitions} partitions, not {LEDGER_PARTITIONS}: it is not a ledger of ours. "
                "Choose another transactionalIdPrefix"
            )
        # With retention a query's entry would disappear in time, and what it has committed would be written again.
        policy = self._topic_config(self._topic, "cleanup.policy")
        if policy != CLEANUP_POLICY:
            raise LedgerUnusable(
                f"topic {self._topic} has cleanup.policy={policy}: a ledger forgets what was committed unless that is "
                f"{CLEANUP_POLICY}. Set it so (tidelog topics alter), or choose another transactionalIdPrefix"
            )
        self._is_ready = True

    def _create(self) -> None:
        topic = NewTopicSpec(self._topic, partitions=LEDGER_PARTITIONS, configs=TOPIC_CONFIG)
        with Admin(self._bootstrap, timeout=TOPIC_SECONDS_MAX, connect_timeout=TOPIC_SECONDS_MAX) as admin:
            error = admin.create_topics([topic])[self._topic]
        if error is not None and not isinstance(error, TopicExists):
            raise LedgerUnusable(f"topic {self._topic} cannot be created: {error}") from error


def _keys_and_times(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes | None, float]]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for key, value, time_us in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), times, strict=True):
        yield key or b"", value, time_us / 1000
