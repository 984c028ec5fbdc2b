"""The plan of a replay: its rows divided into chunks once, and kept, so that a run after a crash continues with the same chunks.

A chunk has a part of every source partition, so that partitions advance together, and is one write of the sink: readers see all
of it at once, or nothing. Its ranges of offsets follow those of the chunk before. How the rows are divided depends only on how
many there are at which offsets.

    <table>/_tidelog/replays/<id>.json       arguments and chunks, written whole before anything is sent, never changed
    <table>/_tidelog/replays/<id>.progress   how many chunks were sent

The second file may lag by a chunk, because the sink's ledger knows whether it was sent. Keep both as long as somebody may run the
same replay again. Rows are named by their offsets, not by the table's files, which may be compacted and vacuumed meanwhile.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.offset_ranges import OffsetRange
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.sink.ledger import WRITE_ENTRY_DAYS
from tidelog.spark.tables.data_files import sync

# -- chunks -------------------------------------------------------------------------------------------------------------------


ROWS_PER_CHUNK = 100_000
# Each leaves an entry in the sink's ledger, and some transactional ids, which brokers remember for days.
CHUNKS_MAX = 1_000
# With a rate, a chunk is what may be sent in this time: readers see the rows of a chunk all at once.
SECONDS_PER_CHUNK = 5.0
_BUCKETS_PER_CHUNK = 10
_BUCKET_OFFSETS_MAX = 10_000


class OffsetBucket(NamedTuple):
    """Rows of one partition at offsets side by side."""

    partition: int
    first: int
    last: int
    rows: int


class ReplayChunk(NamedTuple):
    number: int
    rows: int
    ranges: tuple[OffsetRange, ...]


def rows_wanted(chunk_rows: int, rate: float | None) -> int:
    return chunk_rows if rate is None else max(1, min(chunk_rows, int(rate * SECONDS_PER_CHUNK)))


def bucket_offsets(rows_per_chunk: int) -> int:
    return max(1, min(_BUCKET_OFFSETS_MAX, rows_per_chunk // _BUCKETS_PER_CHUNK))


def cut(buckets: Sequence[OffsetBucket], rows_per_chunk: int) -> tuple[ReplayChunk, ...]:
    """Cut into at most CHUNKS_MAX chunks: with more rows than that, chunks are larger."""
    by_partition: dict[int, list[OffsetBucket]] = {}
    for bucket in sorted(buckets):
        by_partition.setdefault(bucket.partition, []).append(bucket)
    total = sum(bucket.rows for bucket in buckets)
    count = min(CHUNKS_MAX, max(1, -(-total // rows_per_chunk)))
    parts: list[list[OffsetRange]] = [[] for _ in range(count)]
    rows = [0] * count
    for partition, filled in by_partition.items():
        of_partition = sum(bucket.rows for bucket in filled)
        before = 0
        for bucket in filled:
            number = before * count // of_partition
            before += bucket.rows
            rows[number] += bucket.rows
            end = bucket.last + 1
            last = parts[number][-1] if parts[number] else None
            if last is not None and last.partition == partition:
                parts[number][-1] = last._replace(end=end)
            else:
                parts[number].append(OffsetRange(partition, bucket.first, end))
    filled_chunks = [(size, tuple(ranges)) for size, ranges in zip(rows, parts, strict=True) if ranges]
    return tuple(ReplayChunk(number, size, ranges) for number, (size, ranges) in enumerate(filled_chunks))


class ChunkPacer:
    """Sends at most ``rate`` rows a second over any stretch longer than a chunk, however long the chunks take. Lost time is not
    made up for later."""

    def __init__(self, rate: float | None, clock: Callable[[], float], wait: Callable[[float], bool]) -> None:
        """``wait`` waits for the given seconds, and returns whether the run should stop."""
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._due = clock()

    def admit(self, rows: int) -> bool:
        """Waits until this many rows may be sent; returns False if the run should stop instead."""
        now = self._clock()
        is_stopped = self._wait(max(0.0, self._due - now))
        if self._rate is not None:
            self._due = max(now, self._due) + rows / self._rate
        return not is_stopped


# -- the plan and its files ---------------------------------------------------------------------------------------------------


VERSION = 1
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DAY_SECONDS = 86_400


class ReplayPlan(NamedTuple):
    replay_id: str
    arguments: Mapping[str, Any]
    table_version: int
    keeps_partitions: bool
    """Whether partition 3 goes to partition 3; otherwise the key decides. This is decided once, because the topic may get more
    partitions later."""
    chunks: tuple[ReplayChunk, ...]

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def rows_of(self, chunks: int) -> int:
        """The rows of the first ``chunks`` chunks."""
        return sum(chunk.rows for chunk in self.chunks[:chunks])

    def write_id(self, chunk: ReplayChunk) -> str:
        """Contains a digest of the chunk, so that a lost plan that is made again from other rows is not mistaken for this one."""
        return f"replay-{self.replay_id}-{digest([self.arguments, chunk.ranges])}-{chunk.number}"


def checked_id(option: str, text: str) -> str:
    if not _ID.fullmatch(text):
        raise InvalidArgument(f"{option} has up to 64 of the characters a-z A-Z 0-9 . _ -: not {text!r}")
    return text


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class ReplayPlanFile:
    def __init__(self, table: Path, replay_id: str) -> None:
        self._directory = table / "_tidelog" / "replays"
        self._plan = self._directory / f"{replay_id}.json"
        self._progress = self._directory / f"{replay_id}.progress"
        self._id = replay_id

    def read(self, arguments: Mapping[str, Any]) -> ReplayPlan | None:
        """None if there is no plan yet. PipelineFailed if it is the plan of something else."""
        try:
            written = json.loads(self._plan.read_text())
            if written["version"] != VERSION:
                raise PipelineFailed(f"{self._plan} is of version {written['version']}: a newer Tidelog wrote it")
            chunks = tuple(
                ReplayChunk(number, rows, tuple(OffsetRange(*each) for each in ranges))
                for number, (rows, ranges) in enumerate(written["chunks"])
            )
            plan = ReplayPlan(self._id, written["arguments"], written["table_version"], written["keeps_partitions"], chunks)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineFailed(f"{self._plan} is damaged ({error}): give another --id after checking what was sent") from error
        # Compared as JSON, which turns tuples into lists.
        if plan.arguments != json.loads(json.dumps(dict(arguments))):
            names = [name for name in plan.arguments if plan.arguments[name] != arguments.get(name)]
            raise PipelineFailed(f"replay {self._id} was begun with another {', '.join(names)}: give another --id")
        return plan

    def create(self, plan: ReplayPlan) -> ReplayPlan:
        """Create the plan as a whole or not at all; if another run was faster, its plan is used."""
        document = {
            "version": VERSION,
            "arguments": dict(plan.arguments),
            "table_version": plan.table_version,
            "keeps_partitions": plan.keeps_partitions,
            "chunks": [(chunk.rows, chunk.ranges) for chunk in plan.chunks],
        }
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = self._draft(json.dumps(document))
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(draft, self._plan)
                # The name must be durable too before anything is sent under it.
                sync(self._directory)
            finally:
                draft.unlink()
        except OSError as error:
            raise self._unusable(error) from error
        found = self.read(plan.arguments)
        if found is None:
            raise PipelineFailed(f"{self._plan} disappeared while the replay began: something removes it")
        return found

    def chunks_done(self, plan: ReplayPlan, now_seconds: float | None = None) -> int:
        try:
            done = int(self._progress.read_text())
            touched = self._progress.stat().st_mtime
        except FileNotFoundError:
            done, touched = 0, self._plan.stat().st_mtime
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        days = ((time.time() if now_seconds is None else now_seconds) - touched) / _DAY_SECONDS
        if done < len(plan.chunks) and days > WRITE_ENTRY_DAYS - 1:
            raise PipelineFailed(
                f"replay {self._id} stopped {days:.0f} days ago, after {done} of {len(plan.chunks)} chunks: the ledger may have "
                "forgotten whether the next was sent. Look at the topic; then give another --id and the --offsets that are left"
            )
        return done

    def note(self, chunks_done: int) -> None:
        try:
            os.replace(self._draft(str(chunks_done)), self._progress)
        except OSError as error:
            raise self._unusable(error) from error

    def _draft(self, text: str) -> Path:
        handle, name = tempfile.mkstemp(dir=self._directory, prefix=".draft-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return Path(name)

    def _unusable(self, error: Exception) -> PipelineFailed:
        return PipelineFailed(f"the plan of the replay cannot be kept in {self._directory}: {error}")
