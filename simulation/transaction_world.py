"""One simulated run of transactions: a broker, workers that move records from one topic to another, readers of what they
committed, what goes wrong with any of them, and the end.

Workers crash at any step, are paused for longer than their transactions may take, and are replaced while they are still at work.
In the end every worker comes back but perhaps one, whose transaction must time out; then a final reader must get to the end of
every partition.
"""

from collections.abc import Callable

from simulation.checker import CHECKS as BROKER_CHECKS
from simulation.checker import Violation, every_partition_is_read_at_the_end
from simulation.committed_reader import CommittedReader
from simulation.consumer import Consumer
from simulation.group_checker import GroupHistory
from simulation.history import ACKS_ALL, PartitionId, TopicLife
from simulation.nemesis import FAULTS, LASTS_US, Nemesis
from simulation.offset_reader import OffsetReader
from simulation.producer import Producer
from simulation.stage import NoProgress, Stage, TopicPlan
from simulation.transaction_checker import TransactionHistory, check_transactions
from simulation.transactional_worker import GROUP, TIMEOUT_MS, TransactionalWorker

COMMITS_MIN = 25
FAULTS_MIN = 10
FAULT_INTERVAL_US = (15_000, 180_000)
WORKER_FAULTS_WEIGHT = 4
READERS = 2
# Without faults there is no excuse: this covers the transaction's time-out, and the rest of the records.
HEALED_US_MAX = 10_000_000
PAUSE_US = (100_000, TIMEOUT_MS * 1_500)
PRODUCER_THINK_US = (8_000, 80_000)

SOURCE, OUTPUT = "orders", "events"
TOPICS: tuple[TopicPlan, ...] = ((SOURCE, 2, {}, False), (OUTPUT, 3, {"segment.index.bytes": "120"}, False))
SETTINGS = {
    "log.retention.check.interval.ms": "250",
    "log.flush.offset.checkpoint.interval.ms": "400",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


class TransactionNemesis(Nemesis):
    world: "TransactionWorld"
    interval_us = FAULT_INTERVAL_US

    def __init__(self, world: "TransactionWorld") -> None:
        super().__init__(world, TRANSACTION_FAULTS, ("__consumer_offsets", "__transaction_state"))
        if not any(name in WORKER_FAULTS for name in self.enabled):
            self.enabled += WORKER_FAULTS
        self.enabled += [name for name in self.enabled if name in WORKER_FAULTS for _ in range(WORKER_FAULTS_WEIGHT)]

    def crash_worker(self) -> bool:
        worker = self._running()
        if worker is not None:
            worker.crash()
            # Not with ``later``: it comes back when all is over too.
            self.world.scheduler.schedule(self.draw(LASTS_US), f"{worker.name} comes back", worker.start)
        return worker is not None

    def pause_worker(self) -> bool:
        worker = self._running()
        if worker is not None:
            worker.pause(self.draw(PAUSE_US))
        return worker is not None

    def replace_worker(self) -> bool:
        """Replace a worker. The old one does not know, and continues until it is fenced."""
        worker = self._running()
        if worker is not None:
            self.world.replace(worker)
        return worker is not None

    def _running(self) -> TransactionalWorker | None:
        running = [one for one in self.world.workers if one.is_running and not one.is_paused]
        return running[self.draw((0, len(running) - 1))] if running else None


WORKER_FAULTS: dict[str, Callable[..., bool]] = {
    "worker crashes": TransactionNemesis.crash_worker,
    "worker is paused": TransactionNemesis.pause_worker,
    "worker is replaced": TransactionNemesis.replace_worker,
}
TRANSACTION_FAULTS: dict[str, Callable[..., bool]] = {
    **{name: fault for name, fault in FAULTS.items() if name != "topic made again"},
    **WORKER_FAULTS,
}


class TransactionWorld(Stage):
    nemesis: TransactionNemesis

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TOPICS, SETTINGS)
        self.transaction_history = TransactionHistory(self.history)
        self.workers: list[TransactionalWorker] = []
        """One worker per input partition: the newest of its transactional id."""
        self._all_workers: list[TransactionalWorker] = []
        randomness = self.randomness.fork("producer")
        self.producer = Producer(
            "producer", self.environment, randomness, self._sources, (ACKS_ALL,), {SOURCE}, PRODUCER_THINK_US
        )
        self.readers: list[CommittedReader] = []
        self.nemesis = TransactionNemesis(self)
        self.hosts = ["admin", self.producer.name, *(f"reader-{number}" for number in range(READERS))]

    def _sources(self) -> list[TopicLife]:
        return [self.topics[SOURCE]]

    def _worker(self, transactional_id: str, source: PartitionId, is_version_2: bool) -> TransactionalWorker:
        name = f"{transactional_id}-{len(self._all_workers)}"
        worker = TransactionalWorker(
            name,
            transactional_id,
            self.environment,
            self.randomness.fork(name),
            self.transaction_history,
            source,
            self.topics[OUTPUT],
            is_version_2,
        )
        self._all_workers.append(worker)
        self.hosts.append(name)
        return worker

    def _reader(self, name: str, is_final: bool = False) -> CommittedReader:
        randomness = self.randomness.fork(name)
        return CommittedReader(name, self.environment, randomness, self.transaction_history, self.topics[OUTPUT], is_final)

    def replace(self, worker: TransactionalWorker) -> None:
        worker.is_superseded = True
        newer = self._worker(worker.transactional_id, worker.source, worker.is_version_2)
        self.workers[self.workers.index(worker)] = newer
        newer.start()

    # -- phases --------------------------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        return self.transaction_history.committed

    def run(self) -> None:
        """Raises NoProgress when a phase does not end; any other problem is in the histories."""
        self.set_up()
        draw = self.randomness.fork("workers").integer
        source = self.topics[SOURCE]
        for index in range(source.partitions):
            self.workers.append(self._worker(f"worker-{index}", PartitionId(source.topic_id, index), bool(draw(0, 2))))
        self.readers = [self._reader(f"reader-{number}") for number in range(READERS)]
        clients: list[Producer | CommittedReader | TransactionalWorker] = [self.producer, *self.readers, *self.workers]
        for client in clients:
            client.start()
        self.nemesis.start()
        self.run_until("faults", lambda: self.operations >= COMMITS_MIN and self.fault_count >= FAULTS_MIN)
        self._heal()
        self._end_transactions()
        self._read_everything()

    def _heal(self) -> None:
        self.nemesis.heal()
        self.heal_broker()
        self.producer.stop()
        self.run_until("last answers", lambda: self.producer.is_idle, HEALED_US_MAX)
        self.producer.close()

    def _end_transactions(self) -> None:
        """Let workers finish what they do; but one may stop in the middle of it. (A time-out uses the wall clock: if that jumped,
        it may take any time.)"""
        draw = self.randomness.fork("end").integer
        if draw(0, 1) and "clock jump" not in self.nemesis.counts:
            self.workers[0].crash()
            self.workers[0].is_stopping = True
        before = self.operations
        running = self.workers[1:] if self.workers[0].is_stopping else self.workers
        self.run_until("workers are back", lambda: all(one.is_running and not one.is_paused for one in running), HEALED_US_MAX)
        for worker in self._all_workers:
            worker.is_stopping = True
        self.run_until("workers end", lambda: all(worker.is_idle for worker in self._all_workers), HEALED_US_MAX)
        self.scheduler.record(f"{self.operations - before} transactions after healing")
        for worker in self._all_workers:
            worker.crash()

    def _read_everything(self) -> None:
        for reader in self.readers:
            reader.close()
        final = self._reader("final", is_final=True)
        final.start()
        try:
            self.run_until("final reads of what is committed", lambda: final.is_caught_up, HEALED_US_MAX)
        except NoProgress as error:
            raise NoProgress(f"{error}: {final.behind()}") from None
        final.close()
        inputs = Consumer("inputs", self.environment, self.randomness.fork("inputs"), self._sources, {SOURCE}, is_final=True)
        inputs.start()
        self.run_until("final reads of the input", lambda: inputs.is_caught_up, HEALED_US_MAX)
        inputs.close()
        offsets = GroupHistory(self.history, self.scheduler)
        questions = OffsetReader(self.environment, self.randomness.fork("offsets"), offsets, [GROUP], self._sources())
        questions.start()
        self.run_until("last offsets", lambda: questions.is_done, HEALED_US_MAX)
        questions.close()
        self.transaction_history.positions = {read.partition: read.offset for read in offsets.reads}

    def check(self) -> list[Violation]:
        # The output is read by the transactions' own readers.
        checks = [one for one in BROKER_CHECKS if one is not every_partition_is_read_at_the_end]
        violations = [violation for one in checks for violation in one(self.history)]
        return list(dict.fromkeys(violations + check_transactions(self.transaction_history)))
