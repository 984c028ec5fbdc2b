"""The planted bugs: each breaks one promise of the storage engine, and each must be found by the tests of that promise.

A mutant is a replacement of text in one file of ``src``. When the text is not there exactly once, ``make mutants`` fails: the
code has moved on and the mutant must follow. To add one, add a row.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    promise: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "directory not synced after a roll",
        "an acknowledged record is in a file whose name survives a crash",
        "tidelog/log/partition_log.py",
        "            self._close_segment(active)\n        self._unsynced.note_directory(self.directory)\n",
        "            self._close_segment(active)\n        self._unsynced.directories = ()\n",
    ),
    Mutant(
        "acknowledged before the covering sync ended",
        "who is told that a record is durable is told so after its sync",
        "tidelog/log/durability/group_commit.py",
        "        self._ports.executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
        "        for log, plan in zip(logs, plans, strict=True):\n            log.finish_sync(plan, None)\n"
        "            self._wake(log, None)\n"
        "        self._ports.executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
    ),
    Mutant(
        "durable end taken when the sync ends",
        "a sync covers what was written before it began, nothing later",
        "tidelog/log/partition_log.py",
        "            self.durable = plan.end\n",
        "            active = self.segments.active\n"
        "            self.durable = OffsetPosition(self.log_end_offset, active.base_offset, active.size)\n",
    ),
    Mutant(
        "only the last segment synced after a roll",
        "the old segment is durable before the new one",
        "tidelog/log/partition_log.py",
        "            segment_files=[segment.file() for segment in unsynced.segments],\n",
        "            segment_files=[segment.file() for segment in unsynced.segments[-1:]],\n",
    ),
    Mutant(
        "stale producer snapshot trusted",
        "the producers' state is that of the log, not of batches that a crash took",
        "tidelog/log/recovery/log_recovery.py",
        "load_newest_snapshot(disk, directory, start.offset, producers, report,",
        "load_newest_snapshot(disk, directory, 1 << 62, producers, report,",
    ),
    Mutant(
        "half a swap kept: originals and replacement",
        "after a crash in a compaction the log is the old or the new, never both",
        "tidelog/log/compaction/swap.py",
        "            if base_offset <= original_base_offset < end_offset:\n",
        "            if base_offset == original_base_offset:\n",
    ),
    Mutant(
        "swap: the replacement's name before the originals' removal is durable",
        "an original does not come back beside its replacement",
        "tidelog/log/compaction/swap.py",
        "        self._executor.submit(lambda: disk.sync_directory(directory), self._originals_are_gone)\n",
        "        self._originals_are_gone(Completion(None, None))\n",
    ),
    Mutant(
        "torn batch accepted",
        "nothing is read that was not appended",
        "tidelog/log/recovery/log_recovery.py",
        "                if not crc_is_valid(batch, 0, header):\n",
        "                if header.size < 61 and not crc_is_valid(batch, 0, header):\n",
    ),
    Mutant(
        "hole between two segments accepted",
        "a valid batch behind damage proves nothing",
        "tidelog/log/recovery/log_recovery.py",
        "        if number and opening.has_marks and not _meet(kept[-1], check.next_offset, segment):\n",
        "        if number and not opening.has_marks and not _meet(kept[-1], check.next_offset, segment):\n",
    ),
    Mutant(
        "mark recorded before the sync",
        "a durable mark is never above what is durable",
        "tidelog/log/durability/group_commit.py",
        "        dirty, self._dirty = self._dirty, {}\n",
        "        dirty, self._dirty = self._dirty, {}\n"
        "        for early in dirty:\n            self._marks.lower(early, early.log_end_offset)\n",
    ),
    Mutant(
        "recovery does not sync what it kept",
        "what a start shows is durable, also when it came from the page cache",
        "tidelog/log/recovery/directory_opening.py",
        "    outcome = run_plans(disk, file_system, list(plans.values()), syncfs_files_min)\n",
        "    outcome = run_plans(disk, file_system, [], syncfs_files_min)._replace(errors=[None] * len(plans))\n",
    ),
    Mutant(
        "truncation without lowering the mark first",
        "a crash in a truncation is not taken for lost data",
        "tidelog/log/durability/truncation.py",
        "        if end_offset < log.durable.offset:\n            marks.lower(log, end_offset)\n",
        "",
    ),
    Mutant(
        "epochs of lost batches kept",
        "leader epochs are those of the batches in the log",
        "tidelog/log/recovery/log_recovery.py",
        "    epochs.truncate_from_end(start.offset)\n",
        "",
    ),
    Mutant(
        "old history accepted behind a new one",
        "leader epochs only rise along a log",
        "tidelog/log/recovery/log_recovery.py",
        "NO_LEADER_EPOCH < header.leader_epoch < self._epochs.latest_epoch",
        "NO_LEADER_EPOCH > header.leader_epoch",
    ),
    Mutant(
        "partition's name not synced",
        "a partition with acknowledged records survives a crash",
        "tidelog/log/data_directory.py",
        "        log.note_directory_change(self.path)\n        self.logs[key] = log\n",
        "        self.logs[key] = log\n",
    ),
    Mutant(
        "segments deleted before the log start is on the disk",
        "a log without its first segment is one whose start was written first",
        "tidelog/log/retention/retention.py",
        "        self._ports.log_starts.request(written)\n",
        "        starts = self._ports.log_starts\n        for log in logs:\n            self._to_take_out[log] = None\n"
        "            starts.written = {**starts.written, (log.topic, log.partition): log.log_start_offset}\n"
        "        self._take_out_some()\n        starts.request(written)\n",
    ),
    Mutant(
        "checkpoints keep the name of a deleted topic",
        "a topic made again starts from nothing",
        "tidelog/log/data_directory.py",
        "        if error is None and writers:\n",
        "        if error is None and writers and not key:\n",
    ),
    Mutant(
        "topic's id left to the page cache by recovery",
        "a log with acknowledged records knows its topic, and so its mark",
        "tidelog/log/recovery/log_recovery.py",
        "    if disk.exists(metadata_path):\n",
        "    if not metadata_path and disk.exists(metadata_path):\n",
    ),
    Mutant(
        "recovery point left above indexes that are rebuilt",
        "what lies below the recovery point is whole, also after a crash in recovery",
        "tidelog/log/recovery/log_recovery.py",
        "        opening.lower_recovery_point(start.offset)\n",
        "        pass\n",
    ),
    Mutant(
        "waiters of truncated records acknowledged",
        "an acknowledgement is for the records that it was asked for",
        "tidelog/log/durability/truncation.py",
        '        commit.fail_waiters_above(log, end_offset, LogError(f"{log.name} was truncated to offset {end_offset}"))\n',
        "",
    ),
    Mutant(
        "replaced file renamed before it is synced",
        "a checkpoint is the old one or the new one, whole",
        "tidelog/log/durability/checkpoints.py",
        "    staged.stage().sync()\n",
        "    staged.stage()\n",
    ),
    Mutant(
        "aborted transactions forgotten by recovery",
        "read_committed shows no aborted record after a crash",
        "tidelog/log/recovery/log_recovery.py",
        "            segment.reset_indexes(with_transactions=segment.base_offset >= self._trusted_below)\n",
        "            segment.reset_indexes()\n",
    ),
    Mutant(
        "failed sync leaves no mark",
        "after a failed sync the next start reads from the disk, not from the page cache",
        "tidelog/log/durability/sync_plan.py",
        "    return disk.exists(_failed_sync_path(directory))\n",
        "    return False and disk.exists(_failed_sync_path(directory))\n",
    ),
    Mutant(
        "failed sync tried again as if nothing had happened",
        "after a failed sync nothing that it covered counts as durable",
        "tidelog/log/partition_log.py",
        "        if error is not None:\n"
        '            self.go_offline(f"syncing failed: {error}", sync_failed=True)\n            return\n',
        "",
    ),
    Mutant(
        "damage below the mark cut as a torn tail",
        "what was acknowledged is never cut silently",
        "tidelog/log/recovery/log_recovery.py",
        "    if sound_below < opening.durable_mark and opening.log_start_offset < opening.durable_mark:\n",
        "    if sound_below < opening.durable_mark and damage is None:\n",
    ),
    Mutant(
        "partial write left after a full disk",
        "what did not fit is cut off, and the log goes on",
        "tidelog/log/partition_log.py",
        "                segment.cut()\n        except OSError as second:\n",
        "                segment.size = segment.file().size()\n        except OSError as second:\n",
    ),
)
