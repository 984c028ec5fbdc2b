"""The journal of durable marks: for each partition the offset below which it is known to be durable.

Recovery asks it one question. Damage at or above a partition's mark is the torn end of writes that nobody was told about, and
is cut. Damage below the mark has hit acknowledged records, and is never cut silently. So a mark may lag behind what is durable
(by up to a second, because each flush costs a sync), but must never be ahead of it: callers record an offset only once it *is*
durable. A truncation lowers the mark, and flushes it before the log is cut; otherwise a crash would find the log shorter than
its mark.

The file ``durable-marks`` in the data directory, which Kafka does not have: frames one after the other, then zeros::

    length u32 of the body | CRC-32C u32 of the frame number and the body | frame number u32, from 0 | body
    body: per partition: name length u16 | name of its directory | topic id, 16 bytes | offset i64 (-1: forget it)

The first frame is the complete state at the time when the file was made, later frames are changes; the last entry of a
partition counts. The file has its full length from the start, so a full disk does not stop it. When the next frame does not
fit, or the file cannot be trusted, a new file is written, synced, and renamed over the old one; a short one when the disk is
nearly full, which is rewritten more often. Each frame starts a new disk block, so writing it never rewrites a block that holds an
earlier one.

What a crash leaves: a frame is written only after the one before it has been synced, so at most the last one is torn and all
others are complete. A torn frame fails its CRC, and nothing after it counts: the state is that of the last finished flush or,
when the last frame is complete after all, of the one that was under way. A new file is renamed after it was synced, so either
name leads to one of these two states. A file that was opened after a crash is not appended to (it may hold a torn frame, and
bytes that can be read but are not durable): the first flush writes a new one. The same holds after any failed write: a failed
sync proves nothing about the pages, not even when it is repeated.

The event loop records and decides (``record``, ``begin_flush``, ``finish_flush``); the executor writes (``JournalWrite.run``)
and shares nothing with the loop but the write itself. ``MarkFlusher`` runs one flush at a time, within a second of the commit.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from tidelog.log.durability.checkpoints import CheckpointPorts
from tidelog.log.environment import NO_ROOM
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.names import DURABLE_MARKS, TEMPORARY_SUFFIX, join
from tidelog.log.partition_log import PartitionLog
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk, DiskFile
from tidelog.ports.executor import Completion

# Enough for four minutes with a small flush each second.
JOURNAL_BYTES = 1024 * 1024
# A new file has its full length if there is room for this many of them. Otherwise it would take what the logs need.
FREE_FILES_MIN = 4
# Today's disks write this much at once; a power cut during the write may spoil all of it.
BLOCK_BYTES = 4096
FORGOTTEN = -1

_HEADER = Struct(">III")
_NUMBER = Struct(">I")
_NAME_LENGTH = Struct(">H")
_ID_OFFSET = Struct(">16sq")
_ENTRY_FIXED_BYTES = _NAME_LENGTH.size + _ID_OFFSET.size
_NO_ID = bytes(16)


class DurableMark(NamedTuple):
    topic_id: bytes
    offset: int


_FORGET = DurableMark(_NO_ID, FORGOTTEN)


@dataclass(slots=True)
class JournalWrite:
    """One flush: a frame for the open file, or a whole new file. Made on the event loop, run on the executor."""

    _disk: Disk
    _directory: str
    _marks: Mapping[str, DurableMark]
    file: DiskFile | None
    """None to write a new file. After the run, this is the file to append the next frame to."""
    frame_number: int
    position: int
    size_bytes: int
    oldest_ms: int

    @property
    def is_rewrite(self) -> bool:
        return self.frame_number == 0

    def run(self) -> None:
        """Blocks until the marks are durable."""
        frame = encode_frame(self.frame_number, self._marks)
        if self.file is None:
            self.file = self._write_new_file(frame)
        else:
            self.file.write(self.position, [frame])
            self.file.sync()
        self.position = _next_block(self.position + len(frame))

    def _write_new_file(self, frame: bytes) -> DiskFile:
        path = join(self._directory, DURABLE_MARKS)
        temporary_path = path + TEMPORARY_SUFFIX
        if self._disk.free_bytes(self._directory) < FREE_FILES_MIN * self.size_bytes:
            self.size_bytes = 2 * _next_block(len(frame))
        file = self._disk.open(temporary_path, "create")
        try:
            # A crash may have left a longer file, whose old frames must not follow the new one.
            file.truncate(0)
            file.write(0, [frame, bytes(self.size_bytes - len(frame))])
            file.sync()
        except OSError:
            # The disk is full: free what was written so far, because the logs need the space.
            with suppress(OSError):
                file.truncate(0)
            raise
        self._disk.rename(temporary_path, path)
        self._disk.sync_directory(self._directory)
        return file


class DurableMarks:
    __slots__ = (
        "_directory",
        "_disk",
        "_file",
        "_flush_in_flight",
        "_frame_number",
        "_journal_bytes",
        "_marks",
        "_pending",
        "_position",
        "_size_bytes",
        "damage",
        "oldest_pending_ms",
    )

    def __init__(self, disk: Disk, directory: str, journal_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._journal_bytes = journal_bytes
        self._marks: dict[str, DurableMark] = {}
        # The changes since the last flush began. The values are those of _marks, or _FORGET.
        self._pending: dict[str, DurableMark] = {}
        # When the oldest pending change was recorded, by the clock of ``record``'s caller; None when nothing is pending.
        self.oldest_pending_ms: int | None = None
        # The file to append to; None when the next flush must write a new one.
        self._file: DiskFile | None = None
        self._frame_number = 0
        self._position = 0
        self._size_bytes = 0
        self._flush_in_flight = False
        # The problem in the file after the last valid frame; None for a file that ends as it should.
        self.damage: str | None = None

    @classmethod
    def open(cls, disk: Disk, directory: str, journal_bytes: int = JOURNAL_BYTES) -> "DurableMarks":
        """Read the journal. Writes nothing; the marks that were read count as pending until the first flush has made them
        durable."""
        marks = cls(disk, directory, journal_bytes)
        path = join(directory, DURABLE_MARKS)
        if disk.exists(path):
            # After a failed sync the cache may hold what the disk does not.
            disk.drop_cache(path)
            file = disk.open(path, "read")
            data = file.read(0, file.size())
            marks._marks, marks.damage = decode_journal(data, path)
            marks.oldest_pending_ms = 0
        return marks

    def mark(self, name: str, topic_id: bytes) -> int | None:
        """The mark that was recorded last; None if there is no mark, or if it belongs to another topic of the same name."""
        found = self._marks.get(name)
        return found.offset if found is not None and found.topic_id == topic_id else None

    def topic_id(self, name: str) -> bytes | None:
        """The id of the topic whose mark was recorded last under this name."""
        found = self._marks.get(name)
        return found.topic_id if found is not None else None

    def names(self) -> list[str]:
        return list(self._marks)

    def record(self, name: str, topic_id: bytes, offset: int, now_ms: int = 0) -> None:
        """Note that this partition is durable below ``offset``. Without ``now_ms`` the next flush is due at once."""
        assert offset >= 0, offset
        mark = DurableMark(topic_id, offset)
        if self._marks.get(name) == mark:
            return
        assert name.isascii(), name
        assert len(topic_id) == len(_NO_ID), topic_id
        self._marks[name] = self._pending[name] = mark
        if self.oldest_pending_ms is None:
            self.oldest_pending_ms = now_ms

    def forget(self, name: str, now_ms: int = 0) -> None:
        """Called when the partition is deleted."""
        if self._marks.pop(name, None) is not None:
            self._pending[name] = _FORGET
            if self.oldest_pending_ms is None:
                self.oldest_pending_ms = now_ms

    @property
    def has_pending(self) -> bool:
        """Whether there is anything that the next flush would make durable."""
        return self.oldest_pending_ms is not None

    def begin_flush(self) -> JournalWrite | None:
        """Take the pending changes; None when there are none, or while a flush is under way. ``finish_flush`` must follow."""
        oldest_ms = self.oldest_pending_ms
        if self._flush_in_flight or oldest_ms is None:
            return None
        disk, directory, file, pending = self._disk, self._directory, self._file, self._pending
        if file is None or self._position + _frame_bytes(pending) > self._size_bytes:
            size_bytes = _next_block(max(self._journal_bytes, 2 * _frame_bytes(self._marks)))
            write = JournalWrite(disk, directory, dict(self._marks), None, 0, 0, size_bytes, oldest_ms)
        else:
            write = JournalWrite(disk, directory, pending, file, self._frame_number, self._position, self._size_bytes, oldest_ms)
        self._pending = {}
        self.oldest_pending_ms = None
        self._flush_in_flight = True
        return write

    def finish_flush(self, write: JournalWrite, error: BaseException | None) -> None:
        """``write.run()`` has returned, or raised ``error``; in that case everything is pending again and goes to a new file."""
        assert self._flush_in_flight
        self._flush_in_flight = False
        if error is not None:
            self._file = None
            self.oldest_pending_ms = write.oldest_ms
            return
        if write.is_rewrite:
            self.damage = None
        self._file = write.file
        self._size_bytes = write.size_bytes
        self._position = write.position
        self._frame_number = write.frame_number + 1

    def flush(self) -> None:
        """Write everything at once, when starting and stopping. Blocks until it is durable. The file is written even when nothing
        was recorded: without it the next start would think that another program wrote the directory."""
        if self.oldest_pending_ms is None and self._file is None:
            self.oldest_pending_ms = 0
        write = self.begin_flush()
        if write is None:
            return
        try:
            write.run()
        except BaseException as error:
            self.finish_flush(write, error)
            raise
        self.finish_flush(write, None)


def encode_frame(number: int, marks: Mapping[str, DurableMark]) -> bytes:
    parts = [_NUMBER.pack(number)]
    for name, mark in marks.items():
        encoded_name = name.encode("ascii")
        parts += (_NAME_LENGTH.pack(len(encoded_name)), encoded_name, _ID_OFFSET.pack(*mark))
    checked = b"".join(parts)
    return _HEADER.pack(len(checked) - _NUMBER.size, crc32c(checked), number) + checked[_NUMBER.size :]


def decode_journal(data: bytes, path: str) -> tuple[dict[str, DurableMark], str | None]:
    """The marks that result from all valid frames, and what is wrong with the rest, if anything."""
    marks: dict[str, DurableMark] = {}
    position = number = 0
    view = memoryview(data)
    while (body := _frame_body(view, position, number)) is not None:
        for name, mark in _entries(body, path):
            if mark.offset == FORGOTTEN:
                marks.pop(name, None)
            else:
                marks[name] = mark
        position = _next_block(position + _HEADER.size + len(body))
        number += 1
    if number and not bytes(view[position:]).strip(b"\0"):
        return marks, None
    return marks, f"{path}: frame {number} at byte {position} is torn or damaged; the marks are those of the frames before it"


def _frame_body(view: memoryview, position: int, number: int) -> memoryview | None:
    """The body of frame ``number`` at ``position``; None when there is no such frame, or not all of it."""
    start = position + _HEADER.size
    if start > len(view):
        return None
    length, crc, found_number = _HEADER.unpack_from(view, position)
    if found_number != number or start + length > len(view):
        return None
    if crc32c(view[start - _NUMBER.size : start + length]) != crc:
        return None
    return view[start : start + length]


def _entries(body: memoryview, path: str) -> Iterator[tuple[str, DurableMark]]:
    """The entries of a body whose CRC is right: if they make no sense, they were written that way."""
    position = 0
    try:
        while position < len(body):
            (name_length,) = _NAME_LENGTH.unpack_from(body, position)
            position += _NAME_LENGTH.size
            name = str(body[position : position + name_length], "ascii")
            position += name_length
            yield name, DurableMark(*_ID_OFFSET.unpack_from(body, position))
            position += _ID_OFFSET.size
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptCheckpoint(f"{path}: an entry of a valid frame makes no sense: {error}") from error


def _next_block(position: int) -> int:
    return -(-position // BLOCK_BYTES) * BLOCK_BYTES


def _frame_bytes(marks: Mapping[str, DurableMark]) -> int:
    return _HEADER.size + sum(map(len, marks)) + len(marks) * _ENTRY_FIXED_BYTES


# A mark may be one second late: half of that is for waiting, half for the disk.
FLUSH_MS = 500
FAILURES_MAX = 2

OnFlushed = Callable[[BaseException | None], None]


class MarkFlusher:
    __slots__ = (
        "_clock",
        "_executor",
        "_failures",
        "_had_no_room",
        "_in_flight",
        "_marks",
        "_on_broken",
        "_report",
        "_reserve",
        "_since_ms",
        "_waiting",
    )

    def __init__(
        self, marks: DurableMarks, clock: Clock, ports: CheckpointPorts, on_broken: Callable[[BaseException], None]
    ) -> None:
        _, executor, report, reserve = ports
        self._marks = marks
        self._reserve = reserve
        self._had_no_room = False
        self._clock = clock
        self._executor = executor
        self._report = report
        self._on_broken = on_broken
        self._in_flight = False
        self._failures = 0
        self._since_ms: int | None = None
        self._waiting: list[OnFlushed] = []

    def record(self, log: PartitionLog) -> None:
        self._marks.record(log.name, log.topic_id, log.durable.offset)
        self._note_pending()

    def lower(self, log: PartitionLog, offset: int) -> None:
        """Lower a mark before a truncation. Flush it, and truncate only when that is done."""
        self._marks.record(log.name, log.topic_id, offset)
        self._note_pending()

    def forget(self, name: str) -> None:
        self._marks.forget(name)
        self._note_pending()

    def forget_all_but(self, known: set[str]) -> None:
        """Forget all other partitions. A start needs this: a crash may keep the deletion of a partition and lose the removal of
        its mark."""
        for name in self._marks.names():
            if name not in known:
                self.forget(name)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way; also True while the disk is full or after it has failed for good: nobody must wait for
        marks that cannot be written."""
        cannot_write = self._had_no_room or self._failures >= FAILURES_MAX
        return not self._in_flight and (cannot_write or not self._marks.has_pending)

    def tick(self) -> None:
        if self._since_ms is not None and self._clock.monotonic_ms() - self._since_ms >= FLUSH_MS:
            self.flush()

    def flush(self, on_flushed: OnFlushed | None = None) -> None:
        """Write everything that was recorded before this call. ``on_flushed`` is called when it is durable, or with the error."""
        if on_flushed is not None:
            self._waiting.append(on_flushed)
        if not self._in_flight:
            self._start()

    def flush_now(self) -> None:
        """Block until everything recorded is durable. For starting and stopping."""
        self._since_ms = None
        try:
            self._reserve.use(self._marks.flush)
        except OSError:
            self._note_pending()
            raise

    def _note_pending(self) -> None:
        if self._since_ms is None:
            self._since_ms = self._clock.monotonic_ms()

    def _start(self) -> None:
        write = self._marks.begin_flush()
        waiting, self._waiting = self._waiting, []
        self._since_ms = None
        if write is None:
            for on_flushed in waiting:
                on_flushed(None)
            return
        self._in_flight = True
        self._executor.submit(lambda: self._reserve.use(write.run), lambda completion: self._finish(write, waiting, completion))

    def _finish(self, write: JournalWrite, waiting: list[OnFlushed], completion: Completion) -> None:
        self._in_flight = False
        error = completion.error
        self._marks.finish_flush(write, error)
        self._had_no_room = isinstance(error, OSError) and error.errno in NO_ROOM
        if error is not None:
            if self._had_no_room:
                # The logs cannot be appended to either; the marks stay pending and the next tick tries again.
                self._note_pending()
                for on_flushed in waiting:
                    on_flushed(error)
                return
            self._failures += 1
            self._report("durable_marks_not_written", {"error": str(error), "failures": self._failures})
            if self._failures >= FAILURES_MAX:
                self._on_broken(error)
                queued, self._waiting = self._waiting, []
                for on_flushed in waiting + queued:
                    on_flushed(error)
                return
            self._waiting = waiting + self._waiting
            self._start()
            return
        self._failures = 0
        for on_flushed in waiting:
            on_flushed(None)
        if self._waiting:
            self._start()
