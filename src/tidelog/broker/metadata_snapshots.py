"""Snapshots of the metadata: when one is taken, how it is written while the node goes on, and how a fetched one is installed.

Every node takes its own snapshots, voter or not. One is due when records of ``metadata.log.max.record.bytes.between.snapshots``
were applied since the last one, or when ``metadata.log.max.snapshot.interval.ms`` have passed and anything was applied. Its id is
the end of what is applied, and never lies within a transaction of the metadata.

**Writing.** The state is frozen in an instant, and its records are encoded in slices between requests. Syncing, renaming and
removing run in helper threads. Only when the snapshot is durable under its name may what it covers be deleted: as in Kafka, the
oldest snapshot and the log below the next one go while both together exceed ``metadata.max.retention.bytes``, or the oldest is
older than ``metadata.max.retention.ms``, and the latest snapshot always stays. A snapshot that cannot be written changes nothing;
it is tried again.

**Installing.** A follower that has fetched a snapshot reads all of it in slices, builds the new state from it beside the old one,
and finds the difference. Then the snapshot becomes durable under its name, and after that the log begins again at its end. Only
then does the new state take the place of the old one, in one step. A crash before the rename leaves the old state, a crash after
it the new one: the next start finishes what is left. A snapshot that is not whole is fetched again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tidelog.broker.metadata_log import CommittedBatch, PartitionRaftLog
from tidelog.broker.timers import Timer, Timers
from tidelog.broker.work_slices import SlicedWork, WorkSlices
from tidelog.log.data_directory import DataDirectory
from tidelog.log.errors import LogError
from tidelog.metadata.image import ClusterImage, ImageDelta
from tidelog.metadata.image_difference import image_difference
from tidelog.metadata.image_records import image_records
from tidelog.metadata.records import decode_record, encode_record
from tidelog.ports.clock import Clock
from tidelog.ports.disk import Disk
from tidelog.ports.executor import Completion, Executor
from tidelog.ports.steps import Steps, run_to_end
from tidelog.raft.messages import SnapshotId
from tidelog.raft.snapshot_file import (
    RECORDS_PER_BATCH,
    SnapshotSummary,
    SnapshotWriter,
    check_snapshot,
    partial_path,
    snapshot_values,
)
from tidelog.raft.voters import ControlRecord

OnDone = Callable[[Exception | None], None]
Report = Callable[[str, dict[str, object]], None]

# After a snapshot that could not be written: most likely the disk is full, and that takes a while to change.
RETRY_MS = 60_000


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The settings ``metadata.log.*`` and ``metadata.max.retention.*``. An interval of 0 means never; a retention of -1, for
    ever."""

    record_bytes_max: int = 20 << 20
    interval_ms: int = 3_600_000
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * 24 * 3_600_000


def snapshot_policy(values: Mapping[str, Any]) -> SnapshotPolicy:
    return SnapshotPolicy(
        record_bytes_max=values["metadata.log.max.record.bytes.between.snapshots"],
        interval_ms=values["metadata.log.max.snapshot.interval.ms"],
        retention_bytes=values["metadata.max.retention.bytes"],
        retention_ms=values["metadata.max.retention.ms"],
    )


class ReplicatedState(Protocol):
    """What the records of the metadata log add up to."""

    def apply(self, batch: CommittedBatch) -> None: ...

    def freeze(self) -> Iterator[bytes] | None:
        """The values of the records of the state as it is now; None if a transaction is open."""
        ...

    def load(self, batches: Iterable[Sequence[bytes]], last_offset: int) -> Steps[Callable[[], None]]:
        """Build the state that these values add up to, in steps. The result puts it in the place of the present one."""
        ...


class ImageState:
    """The image of a broker as the quorum's state."""

    __slots__ = ("_image", "_on_committed", "_on_replaced")

    def __init__(
        self,
        image: ClusterImage,
        on_committed: Callable[[CommittedBatch], None],
        on_replaced: Callable[[ImageDelta], None],
    ) -> None:
        """``on_committed`` replays a batch; ``on_replaced`` hears what changed when a snapshot took the place of the image."""
        self._image = image
        self._on_committed = on_committed
        self._on_replaced = on_replaced

    def apply(self, batch: CommittedBatch) -> None:
        self._on_committed(batch)

    def freeze(self) -> Iterator[bytes] | None:
        return None if self._image.in_transaction else map(encode_record, image_records(self._image.freeze()))

    def load(self, batches: Iterable[Sequence[bytes]], last_offset: int) -> Steps[Callable[[], None]]:
        loaded = ClusterImage()
        for values in batches:
            for first in range(0, len(values), RECORDS_PER_BATCH):
                loaded.replay([decode_record(value)[0] for value in values[first : first + RECORDS_PER_BATCH]], last_offset)
                yield None
        loaded.replay([], last_offset)
        delta = yield from image_difference(self._image, loaded)

        def take_place() -> None:
            self._image.become(loaded)
            self._on_replaced(delta)

        return take_place


@dataclass(frozen=True, slots=True)
class SnapshotPorts:
    directory: DataDirectory
    log: PartitionRaftLog
    clock: Clock
    executor: Executor
    timers: Timers
    report: Report

    @property
    def disk(self) -> Disk:
        return self.directory.disk


class MetadataSnapshots:
    __slots__ = (
        "_applied",
        "_bytes_applied",
        "_control_records_at",
        "_is_closed",
        "_policy",
        "_ports",
        "_slices",
        "_state",
        "_taken_at_ms",
        "_timer",
        "_work",
    )

    def __init__(
        self,
        state: ReplicatedState,
        ports: SnapshotPorts,
        policy: SnapshotPolicy,
        control_records_at: Callable[[int], tuple[ControlRecord, ...]],
    ) -> None:
        """``control_records_at`` returns the kraft version and the voters at an end offset."""
        self._state = state
        self._ports = ports
        self._policy = policy
        self._control_records_at = control_records_at
        self._slices = WorkSlices(ports.clock, ports.timers, ports.executor, 0)
        # The last batch that was applied, and the size of all since the latest snapshot.
        self._applied: CommittedBatch | None = None
        self._bytes_applied = 0
        # By the monotonic clock; the last attempt if it failed.
        self._taken_at_ms = ports.clock.monotonic_ms()
        self._timer: Timer | None = None
        self._work: SlicedWork | None = None
        self._is_closed = False

    # -- facts for metrics ---------------------------------------------------------------------------------------------------

    @property
    def latest_size(self) -> int:
        snapshots = self._ports.log.snapshots
        return snapshots.size(snapshots.latest) if snapshots.latest is not None else 0

    @property
    def latest_age_ms(self) -> int | None:
        """The time since the last record that the latest snapshot covers; None without a snapshot."""
        timestamp = self._ports.log.snapshot_timestamp
        return max(0, self._ports.clock.now_ms() - timestamp) if timestamp >= 0 else None

    @property
    def bytes_since_latest(self) -> int:
        return self._bytes_applied

    # -- starting and stopping -----------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Load the latest snapshot, which was checked, before anything is applied. Blocks. Returns the offset from which on the
        log is applied."""
        log = self._ports.log
        snapshot_id = log.latest_snapshot
        if snapshot_id is None:
            return log.start_offset
        file = log.snapshots.open(snapshot_id)
        run_to_end(self._state.load(snapshot_values(file), snapshot_id.end_offset - 1))()
        return snapshot_id.end_offset

    def close(self) -> None:
        self._is_closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- taking snapshots ----------------------------------------------------------------------------------------------------

    def note_applied(self, batch: CommittedBatch) -> None:
        self._applied = batch
        self._bytes_applied += batch.size

    def take_if_due(self) -> None:
        """Begin a snapshot of what is applied, if one is due, or see to it that one is taken in time."""
        policy, applied = self._policy, self._applied
        if self._work is not None or applied is None or self._is_closed or not self._bytes_applied:
            return
        age_ms = self._ports.clock.monotonic_ms() - self._taken_at_ms
        is_old = policy.interval_ms > 0 and age_ms >= policy.interval_ms
        if self._bytes_applied >= policy.record_bytes_max or is_old:
            self._take(applied)
        elif self._timer is None and policy.interval_ms > 0:
            self._look_again_in(policy.interval_ms - age_ms)

    def _look_again_in(self, delay_ms: int) -> None:
        def look() -> None:
            self._timer = None
            self.take_if_due()

        self._timer = self._ports.timers.schedule(delay_ms, look)

    def _try_again(self) -> None:
        """What could not be written is due when the timer rings, and not with the next batch already."""
        if self._timer is not None:
            self._timer.cancel()

        def again() -> None:
            self._timer = None
            if self._applied is not None and self._work is None:
                self._take(self._applied)

        self._timer = self._ports.timers.schedule(RETRY_MS, again)

    def _take(self, applied: CommittedBatch) -> None:
        values = self._state.freeze()
        if values is None:
            return  # The end of the transaction is applied soon, and looks again.
        snapshot_id = SnapshotId(applied.last_offset + 1, applied.epoch)
        self._bytes_applied = 0
        self._taken_at_ms = self._ports.clock.monotonic_ms()
        summary = SnapshotSummary(applied.timestamp, self._control_records_at(snapshot_id.end_offset))
        self._begin(self._write(snapshot_id, summary, values), partial(self._written, snapshot_id))

    def _begin(self, steps: Steps[Any], on_end: OnDone) -> None:
        def ended(error: Exception | None) -> None:
            self._work = None
            on_end(error)

        # The first slice may end the work before ``run`` returns.
        work = self._slices.run(steps, ended)
        self._work = None if work.is_over else work

    def _write(self, snapshot_id: SnapshotId, summary: SnapshotSummary, values: Iterator[bytes]) -> Steps[None]:
        ports = self._ports
        writer = SnapshotWriter(ports.disk, ports.log.log.directory, snapshot_id, ports.clock.now_ms())
        writer.begin(*summary)
        yield None
        batch: list[bytes] = []
        for value in values:
            batch.append(value)
            if len(batch) == RECORDS_PER_BATCH:
                writer.append(batch)
                batch = []
                yield None
        if batch:
            writer.append(batch)
        writer.end()
        yield writer.seal
        ports.log.add_snapshot(snapshot_id, writer.position, summary)

    def _written(self, snapshot_id: SnapshotId, error: Exception | None) -> None:
        ports = self._ports
        if self._is_closed:
            return
        if error is None:
            facts: dict[str, object] = {
                "end_offset": snapshot_id.end_offset,
                "epoch": snapshot_id.epoch,
                "bytes": self.latest_size,
            }
            ports.report("metadata_snapshot", facts)
            self._clean()
            self.take_if_due()
            return
        ports.report("metadata_snapshot_failed", {"end_offset": snapshot_id.end_offset, "error": str(error)})
        self._remove([partial_path(ports.log.log.directory, snapshot_id)])
        self._try_again()

    # -- deleting what a snapshot covers -------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Delete the oldest snapshots, and the log below the oldest that is left."""
        log, policy = self._ports.log, self._policy
        ids = log.snapshots.ids
        total_bytes = log.log.size + sum(map(log.snapshots.size, ids))
        first = 0
        for snapshot_id in ids[:-1]:
            is_large = 0 <= policy.retention_bytes < total_bytes
            if not is_large and not self._has_expired(snapshot_id):
                break
            total_bytes -= log.snapshots.size(snapshot_id)
            first += 1
        if first:
            self._remove(log.snapshots.forget(ids[:first]))
            self._delete_log_below(ids[first].end_offset)

    def _has_expired(self, snapshot_id: SnapshotId) -> bool:
        ports, retention_ms = self._ports, self._policy.retention_ms
        if retention_ms < 0:
            return False
        try:
            written_ms = ports.disk.modified_ms(ports.log.snapshots.path(snapshot_id))
        except OSError:
            return False
        return ports.clock.now_ms() - written_ms > retention_ms

    def _delete_log_below(self, offset: int) -> None:
        log, directory = self._ports.log.log, self._ports.directory
        if offset <= log.log_start_offset or offset > log.high_watermark or log.offline_reason is not None:
            return

        def deleted(error: BaseException | None) -> None:
            if error is not None:
                self._ports.report("metadata_log_not_deleted", {"below": offset, "error": str(error)})

        # A segment goes only as a whole, so the next deletion can take this one.
        with suppress(LogError, OSError):
            log.roll()
        directory.delete_records(log, offset, deleted)

    def _remove(self, paths: Sequence[str]) -> None:
        disk, report = self._ports.disk, self._ports.report

        def remove() -> None:
            for path in paths:
                with suppress(FileNotFoundError):
                    disk.remove(path)

        def removed(completion: Completion) -> None:
            if completion.error is not None:
                # A leftover costs space until the next start.
                report("metadata_snapshot_not_removed", {"paths": list(paths), "error": str(completion.error)})

        self._ports.executor.submit(remove, removed)

    # -- installing ----------------------------------------------------------------------------------------------------------

    def install(self, snapshot_id: SnapshotId, on_done: OnDone) -> None:
        """Put a snapshot that was fetched completely in the place of state and log. ``on_done`` gets SnapshotUnusable if it is
        not whole, and then nothing has changed."""
        self._cancel()
        self._begin(self._install(snapshot_id, on_done), lambda error: on_done(error) if error is not None else None)

    def _install(self, snapshot_id: SnapshotId, on_done: OnDone) -> Steps[None]:
        ports = self._ports
        snapshots = ports.log.snapshots
        file = snapshots.open_fetched(snapshot_id)
        summary = yield from check_snapshot(file)
        take_place = yield from self._state.load(snapshot_values(file), snapshot_id.end_offset - 1)
        yield partial(snapshots.seal_fetched, snapshot_id)
        size = file.size()

        def begun_again(error: BaseException | None) -> None:
            if self._is_closed:
                return
            if error is not None:
                on_done(error if isinstance(error, Exception) else LogError(repr(error)))
                return
            older = [each for each in snapshots.ids if each < snapshot_id]
            ports.log.add_snapshot(snapshot_id, size, summary)
            self._remove(snapshots.forget(older))
            self._applied, self._bytes_applied = None, 0
            self._taken_at_ms = ports.clock.monotonic_ms()
            ports.report("metadata_snapshot_installed", {"end_offset": snapshot_id.end_offset, "epoch": snapshot_id.epoch})
            take_place()
            on_done(None)

        ports.directory.begin_again(ports.log.log, snapshot_id.end_offset, begun_again)
