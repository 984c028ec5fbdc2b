"""A data directory on simulated ports, and the model beside it: every action is done to both.

``World`` is driven by rules of Hypothesis (test_storage_model.py) and by seeded scripts (storage_workload.py). An action that the
log refuses for a good reason (it is offline, the disk is full) leaves the model as it was; one that breaks a promise raises
ModelError. What is under way on the executor stays so until ``step`` or ``settle``. What an opening brings back is checked in
storage_reopening.py.
"""

from collections.abc import Callable
from unittest.mock import patch

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.log.storage_check import require
from tests.log.storage_history import Batch, derive, split
from tests.log.storage_model import PartitionModel
from tests.log.storage_reopening import check_came_back
from tests.log.storage_settings import OPTIONS, PATH, SETTINGS_BY_TOPIC, SmallJournal
from tidelog.log.append_check import AppendOrigin
from tidelog.log.data_directory import DataDirectory
from tidelog.log.errors import LogOffline, OutOfOrderSequence, StorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery import directory_opening
from tidelog.log.settings import DirectoryOptions
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.records.record import Record


class World:
    def __init__(
        self, seed: int | str, disk: SimulatedDisk | None = None, now_us: int = 0, options: DirectoryOptions = OPTIONS
    ) -> None:
        self.seed = seed
        self.options = options
        self.scheduler = Scheduler()
        self.scheduler.now_us = now_us
        self.clock = SimulatedClock(self.scheduler)
        self.randomness = SimulatedRandomness(seed)
        self.disk = disk if disk is not None else SimulatedDisk(self.clock)
        self.executor = SimulatedExecutor(self.scheduler, self.randomness.fork("executor"), self.disk, self.clock)
        self.models: dict[tuple[str, int], PartitionModel] = {}
        self.deleted: list[PartitionModel] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.waiting = 0
        self.value_number = 0
        self.generation = 0
        self.leader_epoch = 0

    # -- starting and stopping -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        with patch.object(directory_opening, "DurableMarks", SmallJournal):
            self.directory = DataDirectory(
                PATH,
                disk=self.disk,
                clock=self.clock,
                randomness=self.randomness.fork(f"directory {self.generation}"),
                executor=self.executor,
                cluster_id="c",
                node_id=1,
                settings_for=SETTINGS_BY_TOPIC.__getitem__,
                report=lambda event, facts: self.events.append((event, facts)),
                options=self.options,
            )

    def close(self) -> None:
        """A clean stop. Then all that is in a log that was whole is durable, waited for or not."""
        self.settle()
        self.directory.close()
        for log, model in self.online():
            model.acknowledge(log.log_end_offset)
        self._forget_run()

    def crash(self, keep: Keep, randomness: SimulatedRandomness | None = None) -> None:
        """The machine or (keep="all") the process dies. The hook goes on counting on the new disk."""
        hook = self.disk.on_operation
        self.disk = self.disk.crash_image(randomness or self.randomness.fork(f"crash {self.generation}"), keep)
        self.disk.clock = self.clock
        self.executor.disk = self.disk
        self._forget_run()
        self.disk.on_operation = hook

    def _forget_run(self) -> None:
        self.executor.crash()
        self.generation += 1
        self.waiting = 0
        for model in self.models.values():
            model.is_truncating = False

    def reopen(self) -> None:
        """Open, check against the model, and take what came back for the truth."""
        self.open()
        self.adopt()

    def adopt(self) -> None:
        came_back = check_came_back(self.directory, self.models, self.deleted)
        for log, model, history in came_back:
            model.came_back(history, log.topic_id, log.log_start_offset)
        self.models = {(log.topic, log.partition): model for log, model, _ in came_back}
        self.deleted = []
        self.leader_epoch = max([self.leader_epoch, *(log.epochs.latest_epoch for log, _, _ in came_back)])

    # -- what there is -------------------------------------------------------------------------------------------------------

    def online(self) -> list[tuple[PartitionLog, PartitionModel]]:
        """Logs that may be worked on."""
        found = []
        for key, model in self.models.items():
            log = self.directory.logs.get(key)
            if log is not None and log.offline_reason is None:
                found.append((log, model))
        return found

    def usable(self, key: tuple[str, int]) -> tuple[PartitionLog, PartitionModel] | None:
        model = self.models.get(key)
        log = self.directory.logs.get(key)
        if model is None or log is None or log.offline_reason is not None or model.is_truncating:
            return None
        return log, model

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def create(self, key: tuple[str, int]) -> None:
        if key in self.models or key in self.directory.logs or key in self.directory.offline:
            return
        topic, partition = key
        topic_id = self.randomness.token(16)
        self.models[key] = PartitionModel(topic, partition, topic_id, SETTINGS_BY_TOPIC[topic].compact)
        try:
            self.directory.create(topic, partition, topic_id, SETTINGS_BY_TOPIC[topic])
        except StorageError:
            self.deleted.append(self.models.pop(key))

    def delete(self, key: tuple[str, int]) -> None:
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        model.is_deletion_asked = True

        def done(error: BaseException | None) -> None:
            model.is_deletion_done = error is None

        del self.models[key]
        self.deleted.append(model)
        self.directory.delete(log, self._in_this_run(done))

    # -- appending -----------------------------------------------------------------------------------------------------------

    def records(self, model: PartitionModel, base_offset: int, count: int, key_number: int) -> list[Record]:
        """Unique values; some tombstones where they mean something."""
        records = []
        for number in range(count):
            self.value_number += 1
            key = b"key-%d" % ((key_number + number) % 4)
            value = b"value-%d-%s" % (self.value_number, b"x" * (self.value_number * 37 % 90))
            is_tombstone = model.is_compacted and self.value_number % 6 == 0
            records.append(Record(base_offset + number, self.clock.now_ms(), key, None if is_tombstone else value))
        return records

    def append(self, key: tuple[str, int], counts: list[int], key_number: int, wait: bool, as_follower: bool = False) -> None:
        """Plain batches, several in one call, as only the broker itself and its leader write them."""
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        offset = model.end_offset
        data = b""
        for number, count in enumerate(counts):
            if as_follower and model.is_compacted:
                offset += number  # The leader has compacted something away.
            data += build_batch(
                self.records(model, offset, count, key_number), base_offset=offset, leader_epoch=self.leader_epoch
            )
            offset += count
        origin = AppendOrigin.CLIENT if len(counts) == 1 else AppendOrigin.COORDINATOR
        self._append(log, model, data, wait, origin, as_follower)

    def append_idempotent(
        self, key: tuple[str, int], producer_id: int, count: int, wait: bool, transactional: bool = False, bump: bool = False
    ) -> None:
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        producer = derive(model.batches).producers.get(producer_id)
        epoch, sequence = (0, 0) if producer is None else (producer.epoch, producer.last_sequence + 1)
        if bump and producer is not None and producer.transaction_first_offset < 0:
            epoch, sequence = epoch + 1, 0
        data = build_batch(
            self.records(model, model.end_offset, count, producer_id),
            base_offset=model.end_offset,
            leader_epoch=self.leader_epoch,
            compression=CompressionType.ZSTD if count > 2 else CompressionType.NONE,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self._append(log, model, data, wait)

    def retry(self, key: tuple[str, int], producer_id: int) -> None:
        """The last batch once more: the log knows it, also after a restart, and writes nothing."""
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        producer = derive(model.batches).producers.get(producer_id)
        if producer is None or not producer.batches or producer.last_offset < log.log_start_offset:
            return
        last = producer.batches[-1]
        result = log.append_as_leader(last.data, self.leader_epoch)
        is_known = result.is_duplicate and (result.first_offset, result.last_offset) == (last.base_offset, last.last_offset)
        require(is_known, f"{log.name}: the batch at {last.base_offset} of producer {producer_id} was sent again: {result}")
        try:
            gap = last.header.last_sequence + 2
            data = build_batch(
                self.records(model, 0, 1, 0), producer_id=producer_id, producer_epoch=producer.epoch, base_sequence=gap
            )
            log.append_as_leader(data, self.leader_epoch)
        except OutOfOrderSequence:
            return
        require(False, f"{log.name}: a batch of producer {producer_id} was taken although the one before it is missing")

    def end_transaction(self, key: tuple[str, int], producer_id: int, commit: bool, wait: bool) -> None:
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        producer = derive(model.batches).producers.get(producer_id)
        if producer is None or producer.transaction_first_offset < 0:
            return
        marker = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, self.leader_epoch)
        data = build_end_transaction_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            timestamp=self.clock.now_ms(),
            base_offset=model.end_offset,
            leader_epoch=self.leader_epoch,
        )
        self._append(log, model, data, wait, AppendOrigin.COORDINATOR)

    def _append(
        self,
        log: PartitionLog,
        model: PartitionModel,
        data: bytes,
        wait: bool,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        as_follower: bool = False,
    ) -> None:
        batches = split(data)
        model.offer(batches)
        try:
            if as_follower:
                log.append_as_follower(data)
            else:
                result = log.append_as_leader(data, self.leader_epoch, origin)
                expected = batches[0].base_offset, batches[-1].last_offset
                require((result.first_offset, result.last_offset) == expected, f"{log.name}: {result} where {expected} was due")
        except (StorageError, LogOffline):
            return
        model.appended(batches)
        if wait:
            self.wait(log, model, batches)

    def wait(self, log: PartitionLog, model: PartitionModel, batches: list[Batch]) -> None:
        end_offset = batches[-1].last_offset + 1

        def durable(error: BaseException | None) -> None:
            self.waiting -= 1
            if error is None:
                is_there = batches[-1] in model.batches
                require(is_there, f"{log.name}: {end_offset} was acknowledged, but its records were truncated before")
                model.acknowledge(end_offset)

        self.waiting += 1
        self.directory.commit.wait(log, end_offset, self._in_this_run(durable))

    # -- moving offsets ------------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, key: tuple[str, int]) -> None:
        """Consumers see what is durable; what they have seen must not be lost any more."""
        usable = self.usable(key)
        if usable is not None:
            log, model = usable
            log.advance_high_watermark(log.durable.offset)
            model.acknowledge(log.high_watermark)

    def delete_records(self, key: tuple[str, int], part: float) -> None:
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        offset = log.log_start_offset + int(part * (log.high_watermark - log.log_start_offset))
        model.start_offset_max = max(model.start_offset_max, offset)

        def done(error: BaseException | None) -> None:
            if error is None:
                model.deleted_below = max(model.deleted_below, offset)

        self.directory.delete_records(log, offset, self._in_this_run(done))

    def truncate(self, key: tuple[str, int], part: float) -> None:
        """As a follower does: anywhere above the high watermark, also inside a batch or at the very end."""
        usable = self.usable(key)
        if usable is None:
            return
        log, model = usable
        low = max(log.high_watermark, log.log_start_offset, model.end_after_cut(log.high_watermark))
        offset = low + round(part * (log.log_end_offset - low))
        if model.end_after_cut(offset) < log.log_start_offset:
            return
        model.truncation_asked(offset)
        self.leader_epoch += 1

        def done(error: BaseException | None) -> None:
            if error is None:
                model.truncated(offset)
            model.is_truncating = False

        self.directory.truncate(log, offset, self._in_this_run(done))

    def roll(self, key: tuple[str, int]) -> None:
        usable = self.usable(key)
        if usable is not None:
            try:
                usable[0].roll()
            except (StorageError, LogOffline):
                return

    def move_recovery_point(self, key: tuple[str, int]) -> None:
        usable = self.usable(key)
        if usable is not None:
            self.directory.checkpoint_recovery_point(usable[0], lambda error: None)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        self.directory.kick()

    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.scheduler.step():
                return

    def tick(self, passed_ms: int) -> None:
        self.scheduler.run_for(passed_ms * 1000)
        self._note_retention(self.directory.tick)

    def _note_retention(self, action: Callable[[], None]) -> None:
        """Retention may delete what consumers may see, and nothing else."""
        for log, model in self.online():
            if log.settings.delete:
                model.start_offset_max = max(model.start_offset_max, min(log.high_watermark, log.durable.offset))
        action()

    def settle(self) -> None:
        """Let everything end that is under way. Nobody who waits for a log that is online may be left waiting."""
        self.directory.kick()
        for _ in range(10_000):
            if self.executor.pending == 0 and self.directory.is_idle:
                break
            if not self.scheduler.step():
                self._note_retention(self.directory.tick)
                self.scheduler.run_for(600_000)
        else:
            require(False, "the directory does not come to rest")
        require(self.waiting == 0, f"{self.waiting} waiters were never called")

    def _in_this_run(self, callback: Callable[[BaseException | None], None]) -> Callable[[BaseException | None], None]:
        generation = self.generation

        def call(error: BaseException | None) -> None:
            if generation == self.generation:
                callback(error)

        return call
