"""Replaces the originals with the compacted segment that was made from them, so that a crash leaves either the old or the new.

    1  the child wrote B.log.cleaned, B.index.cleaned, ...; synced      a crash: removed, nothing happened
    2  indexes renamed to B.index.swap, ...; directory synced           a crash: removed, nothing happened
    3  log renamed to B.log.swap; directory synced                      *decided*: a crash from here on rolls forward
    4  the originals renamed to .deleted; directory synced
    5  B.log.swap and its indexes take their final names

The originals are the segments that begin in [B, the end of the swap file): compaction keeps the last batch of what it cleans,
emptied if need be, so the swap file ends exactly where its originals ended. Step 4 is durable before step 5, else an original
could come back beside its replacement.

An index that a crash loses on the way is rebuilt from the log; the order above only makes that rare.

A step that lacks a descriptor, memory or space for a name has damaged nothing. It is repeated until it succeeds: each step may
run again after it was interrupted anywhere, and meanwhile readers find every segment under the name that it has just then.
"""

from collections.abc import Callable

from tidelog.log import names
from tidelog.log.environment import is_scarcity
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segments.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.segments.segment import LogSegment
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Completion, Executor

INDEX_SUFFIXES = (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TRANSACTION_INDEX_SUFFIX)


def decide_swap(disk: Disk, directory: str, base_offset: int) -> None:
    """Steps 2 and 3. Blocks on syncs, so it runs on the executor. Once it has returned, the swap will happen even after a crash.
    After an OSError it may be called again."""
    found = frozenset(disk.list_directory(directory))
    for suffix in INDEX_SUFFIXES:
        name = names.offset_file_name(base_offset, suffix)
        if name + names.CLEANED_SUFFIX in found:
            disk.rename(names.join(directory, name + names.CLEANED_SUFFIX), names.join(directory, name + names.SWAP_SUFFIX))
    disk.sync_directory(directory)
    log_name = names.offset_file_name(base_offset, names.LOG_SUFFIX)
    if log_name + names.SWAP_SUFFIX not in found:
        path = names.join(directory, log_name)
        disk.rename(path + names.CLEANED_SUFFIX, path + names.SWAP_SUFFIX)
    disk.sync_directory(directory)


class SegmentSwap:
    """Steps 2 to 5 on a live log: the renames that readers could notice happen on the loop, the syncs on the executor."""

    def __init__(
        self,
        log: PartitionLog,
        executor: Executor,
        originals: list[LogSegment],
        retry_later: Callable[[Callable[[], None]], None],
        on_done: Callable[[list[LogSegment], BaseException | None], None],
    ) -> None:
        """``retry_later`` calls a function again after a while. ``on_done`` gets the originals, renamed and out of the log, which
        the caller removes when nobody reads them; or the error."""
        self._log = log
        self._executor = executor
        self._originals = originals
        self._base_offset = originals[0].base_offset
        self._retry_later = retry_later
        self._on_done = on_done
        self._replacement: LogSegment | None = None

    def start(self) -> None:
        log, base_offset = self._log, self._base_offset
        self._executor.submit(lambda: decide_swap(log.environment.disk, log.directory, base_offset), self._decided)

    def _decided(self, completion: Completion) -> None:
        if completion.error is not None:
            self._fail(completion.error, self.start)
        else:
            self._take_out_originals()

    def _take_out_originals(self) -> None:
        log = self._log
        environment = log.environment
        path = names.segment_path(log.directory, self._base_offset, names.LOG_SUFFIX) + names.SWAP_SUFFIX
        try:
            size = environment.disk.file_size(path)
            replacement = environment.segment(log.directory, self._base_offset, size, names.SWAP_SUFFIX)
            for segment in self._originals:
                segment.rename(names.DELETED_SUFFIX)
        except OSError as error:
            self._fail(error, self._take_out_originals)
            return
        self._replacement = replacement
        log.replace_segments(self._originals, replacement)
        self._sync_names()

    def _sync_names(self) -> None:
        disk, directory = self._log.environment.disk, self._log.directory
        self._executor.submit(lambda: disk.sync_directory(directory), self._originals_are_gone)

    def _originals_are_gone(self, completion: Completion) -> None:
        if completion.error is not None:
            self._fail(completion.error, self._sync_names)
        else:
            self._take_name()

    def _take_name(self) -> None:
        assert self._replacement is not None
        try:
            self._replacement.rename("")
        except OSError as error:
            self._fail(error, self._take_name)
            return
        self._log.note_directory_change(self._log.directory)
        self._on_done(self._originals, None)

    def _fail(self, error: BaseException, step: Callable[[], None]) -> None:
        """A shortage ends. Half a swap cannot be undone on a failing disk; a restart finishes or drops it."""
        if is_scarcity(error):
            self._log.environment.report("swap_deferred", {"partition": self._log.name, "error": str(error)})
            self._retry_later(step)
            return
        self._log.go_offline(f"replacing segments by a compacted one failed: {error}")
        self._on_done([], error)


def finish_swaps(disk: Disk, directory: str) -> None:
    """At a start, finish the swaps that were decided and drop the others. It may be interrupted and run again."""
    found = disk.list_directory(directory)
    parsed = [(name, file) for name in found if (file := names.parse_offset_file_name(name)) is not None]
    decided = [file.base_offset for _, file in parsed if file.state == names.SWAP_SUFFIX and file.kind == names.LOG_SUFFIX]
    for name, file in parsed:
        is_forgotten_swap = file.state == names.SWAP_SUFFIX and file.base_offset not in decided
        if file.state == names.CLEANED_SUFFIX or is_forgotten_swap:
            disk.remove(names.join(directory, name))
    if not decided:
        return
    in_use = [(name, file.base_offset) for name, file in parsed if not file.state and file.kind in names.SEGMENT_SUFFIXES]
    for base_offset in decided:
        end_offset = _end_offset(disk, directory, base_offset)
        for name, original_base_offset in in_use:
            if base_offset <= original_base_offset < end_offset:
                disk.remove(names.join(directory, name))
    disk.sync_directory(directory)
    for base_offset in decided:
        for suffix in (*INDEX_SUFFIXES, names.LOG_SUFFIX):
            path = names.segment_path(directory, base_offset, suffix)
            if disk.exists(path + names.SWAP_SUFFIX):
                disk.rename(path + names.SWAP_SUFFIX, path)
    disk.sync_directory(directory)


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    file = disk.open(names.segment_path(directory, base_offset, names.LOG_SUFFIX) + names.SWAP_SUFFIX, "read")
    end_offset = base_offset + 1
    for _, header in scan_headers(file, 0, file.size(), SCAN_CHUNK_BYTES):
        end_offset = max(end_offset, header.next_offset)
    return end_offset
