"""A shard of the transaction coordinator without a broker: its log in memory, its markers on partitions that a test looks at."""

from collections.abc import Callable
from typing import Any

from simulation.clock import SimulatedClock
from simulation.disk import SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.coordinator.harness import MemoryLog, SimulatedTimers
from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.coordinator.errors import NotCoordinator
from tidelog.coordinator.machine import CoordinatorResult, ShardTimers
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.shard import Shard, ShardState
from tidelog.records.control import ControlType
from tidelog.records.topic_partition import TopicPartition
from tidelog.transactions.coordinator import (
    InitProducerIdRequest,
    InitProducerIdResult,
    TransactionCoordinator,
    TransactionPartitions,
)
from tidelog.transactions.end_transaction import COMPLETE_MS, EndTransactionResult, MarkersToWrite
from tidelog.transactions.environment import TransactionEnvironment
from tidelog.transactions.producer_ids import OnBlock, ProducerIdBlock, ProducerIds
from tidelog.transactions.records import RECORD_CODEC, TransactionValue
from tidelog.wire.end_txn import EndTxnRequest
from tidelog.wire.errors import ErrorCode

TIMEOUT_MS = 60_000
Marker = tuple[int, int, bool]


class Sending:
    """Markers on their way. A test says when each arrives."""

    def __init__(self, bench: "TransactionBench", markers: MarkersToWrite) -> None:
        self._bench = bench
        self.markers = markers
        self.left = list(markers.remaining)

    def deliver(self, count: int = 1) -> None:
        """The next markers are written and committed."""
        marker = self.markers.marker
        for _ in range(min(count, len(self.left))):
            partition = self.left.pop(0)
            written = self._bench.written.setdefault(partition, [])
            is_commit = marker.control.control_type is ControlType.COMMIT
            written.append((marker.producer_id, marker.producer_epoch, is_commit))
            self.markers.written(partition)


class TransactionBench:
    """What the log and the partitions hold outlives a ``crash``; everything else is lost with it."""

    def __init__(self, settings: dict[str, str] | None = None, transaction_version: int = 2) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.settings = parse(BROKER, settings or {})
        self.transaction_version = transaction_version
        self.coordinator_epoch = 0
        self.log = MemoryLog()
        self.events: list[tuple[str, dict[str, object]]] = []
        self._sendings: list[Sending] = []
        self.written: dict[TopicPartition, list[Marker]] = {}
        self.next_block = 0
        self.block_size = 1000
        self.has_blocks = True
        self.producer_ids = ProducerIds(self._allocate_block)
        randomness = SimulatedRandomness(1)
        self.runtime: CoordinatorRuntime[TransactionCoordinator] = CoordinatorRuntime(
            "__transaction_state",
            RECORD_CODEC,
            self._machine,
            clock=self.clock,
            scheduler=SimulatedTimers(self.scheduler),
            executor=SimulatedExecutor(self.scheduler, randomness, SimulatedDisk(self.clock), self.clock),
            report=lambda event, facts: self.events.append((event, facts)),
        )
        self.shard: Shard[TransactionCoordinator] = self.runtime.take_over(0, self.log)
        self.run_for(1)

    def _machine(self, timers: ShardTimers) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionEnvironment(
                clock=self.clock,
                settings=self.settings,
                timers=timers,
                producer_ids=self.producer_ids,
                send_markers=self._send_markers,
                coordinator_epoch=lambda _: self.coordinator_epoch,
                transaction_version=lambda: self.transaction_version,
                record_bytes_max=lambda: self.log.batch_bytes_max,
                report=lambda event, facts: self.events.append((event, facts)),
            )
        )

    def _allocate_block(self, on_block: OnBlock) -> None:
        if not self.has_blocks:
            on_block(None, None)
            return
        first = self.next_block
        self.next_block += self.block_size
        on_block(ProducerIdBlock(first, self.block_size), None)

    @property
    def sendings(self) -> list[Sending]:
        """Those that are under way."""
        return [each for each in self._sendings if each.left and not each.markers.is_cancelled]

    def _send_markers(self, markers: MarkersToWrite) -> None:
        self._sendings.append(Sending(self, markers))

    # -- time and crashes ----------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> TransactionCoordinator:
        assert self.shard.machine is not None
        return self.shard.machine

    def run_for(self, duration_ms: int) -> None:
        """What was decided meanwhile is written and committed at the end."""
        self.scheduler.run_for(duration_ms * 1000)
        self.commit()

    def commit(self) -> None:
        self.runtime.flush()
        self.log.commit()

    def settle(self) -> None:
        """All markers arrive, and everything that follows from that is committed."""
        for _ in range(10):
            for sending in self.sendings:
                sending.deliver(len(sending.left))
            self.run_for(COMPLETE_MS)

    def crash(self, keeps_uncommitted: bool = True) -> None:
        """Memory is lost, and with it whatever was on its way. What was not committed may be found in the log again, or not."""
        self.runtime.release(0, NotCoordinator("crash"))
        assert self.sendings == []
        self.log.waiting.clear()
        if not keeps_uncommitted:
            self._cut_to_committed()
        self.producer_ids = ProducerIds(self._allocate_block)
        self.coordinator_epoch += 1
        self.shard = self.runtime.take_over(0, self.log)
        self.scheduler.run_until(lambda: self.shard.state is ShardState.ACTIVE)

    def _cut_to_committed(self) -> None:
        log = self.log
        while log.batches and log.batches[-1][0] >= log.committed_offset:
            _, position = log.batches.pop()
            del log.data[position:]
        log.end_offset = log.committed_offset

    # -- requests ------------------------------------------------------------------------------------------------------------

    def begin(self, decide: Callable[[TransactionCoordinator], CoordinatorResult]) -> list[Any]:
        """The answer comes into the list that is returned, once it is committed."""
        answers: list[Any] = []

        def done(response: Any, error: Exception | None) -> None:
            answers.append(error if error is not None else response)

        self.shard.write(decide, done)
        return answers

    def call(self, decide: Callable[[TransactionCoordinator], CoordinatorResult]) -> Any:
        answers = self.begin(decide)
        self.commit()
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def init(
        self, transactional_id: str = "id", producer: tuple[int, int] = (-1, -1), timeout_ms: int = TIMEOUT_MS
    ) -> InitProducerIdResult:
        result: InitProducerIdResult = self.call(
            lambda machine: machine.init_producer_id(InitProducerIdRequest(transactional_id, timeout_ms, *producer))
        )
        return result

    def add(
        self, producer: tuple[int, int], *partitions: TopicPartition, transactional_id: str = "id", version: int = 2
    ) -> ErrorCode:
        error: ErrorCode = self.call(
            lambda machine: machine.add_partitions(TransactionPartitions(transactional_id, *producer, partitions), version)
        )
        return error

    def end(
        self, producer: tuple[int, int], is_commit: bool, transactional_id: str = "id", version: int = 2
    ) -> EndTransactionResult:
        result: EndTransactionResult = self.call(
            lambda machine: machine.ends.end(EndTxnRequest(transactional_id, *producer, is_commit), version)
        )
        return result

    def started(self, transactional_id: str = "id") -> tuple[int, int]:
        """A producer id and epoch."""
        error, producer_id, producer_epoch = self.init(transactional_id)
        assert error is ErrorCode.NONE
        return producer_id, producer_epoch

    def put(self, value: TransactionValue, transactional_id: str = "id") -> None:
        """Have the log hold this value, as if it had come to that."""
        self.call(lambda machine: machine.table.write(transactional_id, value, None))

    def value(self, transactional_id: str = "id") -> TransactionValue:
        metadata = self.machine.table.find(transactional_id)
        assert metadata is not None
        return metadata.value

    def state(self, transactional_id: str = "id") -> str:
        return self.value(transactional_id).state.name
