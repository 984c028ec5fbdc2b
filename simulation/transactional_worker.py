"""A simulated transactional worker: reads some records of its input partition, writes values to output partitions, commits its
position in the same transaction, and ends it, by transactions v1 or v2.

After an error from which it cannot continue it starts over with InitProducerId, as after a crash: from the committed position.
With v1 it also does so after every lost connection, except in the middle of writing: a request that is still on its way could
fall into the next transaction, which only v2 can tell apart.

It also sends late requests: once a transaction has ended, records that nobody sent before, and with v2 any earlier request again,
while the next transaction is ongoing.
"""

from collections.abc import Generator
from functools import partial
from typing import Any

from simulation.client import ClientConnection, Environment, fetched_batches
from simulation.clock import EPOCH_MS
from simulation.group_client import INTERRUPTED, UNAVAILABLE, Link
from simulation.history import PartitionId, TopicLife
from simulation.randomness import SimulatedRandomness
from simulation.script import Call, Script, Sleep, Steps, call
from simulation.transaction_checker import End, Transaction, TransactionHistory
from simulation.transactional_requests import V1, V2, Producer, add_partitions, commit_offset, fetch, fetch_offset, produce
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

GROUP = "workers"
TIMEOUT_MS = 1_500
RETRY_US = (5_000, 60_000)
IDLE_US = (5_000, 40_000)
LATE_US = (0, 400_000)
LATE_LIKELIHOOD = 0.3
COMMIT_LIKELIHOOD = 0.75
LATE_REQUESTS_MAX = 4
INPUT_RECORDS_MAX = 5
INPUT_WAIT_MS = 20
GROUP_TYPE, TRANSACTION_TYPE = 0, 1

_TRY_AGAIN = UNAVAILABLE | INTERRUPTED | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
_PRODUCE_AGAIN = _TRY_AGAIN | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
# Another worker took over, or the transaction timed out.
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
}


class StartOver(Exception):
    """This incarnation cannot continue."""


class TransactionalWorker:
    def __init__(
        self,
        name: str,
        transactional_id: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        history: TransactionHistory,
        source: PartitionId,
        outputs: TopicLife,
        is_version_2: bool,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.is_running = False
        self.is_superseded = False
        self.is_stopping = False
        self.source = source
        self._environment = environment
        self._scheduler = environment.scheduler
        self._base = environment.history
        self._randomness = randomness
        self._history = history
        self._outputs = outputs
        self._source_name = environment.history.topics[source.topic_id].name
        self.is_version_2 = is_version_2
        self._versions = V2 if is_version_2 else V1
        self._life = 0
        self._producer = Producer(transactional_id)
        self._sequences: dict[int, int] = {}
        self._sent: list[Call] = []
        self._connection = self._late = ClientConnection(name, environment, randomness, Link(lambda: None))
        self._script = Script(name, self._scheduler, self._connection, self._idle())

    # -- life ----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._life += 1
        self.is_running = True
        self._connection = self._connect("connection")
        self._late = self._connect("late")
        self._script = Script(self.name, self._scheduler, self._connection, self._steps())
        self._script.start()

    def _connect(self, kind: str) -> ClientConnection:
        randomness = self._randomness.fork(f"{kind} {self._life}")
        connection = ClientConnection(self.name, self._environment, randomness, Link(lambda: None))
        connection.connect()
        connection.watch()
        return connection

    def crash(self) -> None:
        self._scheduler.record(f"{self.name} is gone")
        self.is_running = False
        self._script.end()
        self._connection.close()
        self._late.close()

    def pause(self, duration_us: int) -> None:
        self._script.pause(duration_us)

    @property
    def is_paused(self) -> bool:
        return self._script.is_paused

    @property
    def is_idle(self) -> bool:
        """Whether it ended by itself, or is gone."""
        return self._script.is_over

    def _idle(self) -> Steps:
        yield Sleep(0)

    def _steps(self) -> Steps:
        while not self.is_stopping and not self.is_superseded:
            try:
                yield from self._work()
            except StartOver:
                yield self._short_sleep()
        self.is_running = False

    def _work(self) -> Steps:
        for key_type, key in ((TRANSACTION_TYPE, self.transactional_id), (GROUP_TYPE, GROUP)):
            yield from self._find(key_type, key)
        yield from self._init()
        position = yield from self._read_position()
        while not self.is_stopping:
            after = yield from self._read_input(position)
            if after == position:
                yield Sleep(self._draw(IDLE_US))
                continue
            transaction = self._history.begin(self.name, self.transactional_id, self.is_version_2, self.source, position, after)
            yield from self._fill(transaction)
            late = self._late_records(transaction)
            yield from self._end(transaction, self._randomness.fraction() < COMMIT_LIKELIHOOD)
            position = after if transaction.end is End.COMMITTED else position
            yield from self._come_late(transaction, late)

    # -- before the first transaction ----------------------------------------------------------------------------------------

    def _find(self, key_type: int, key: str) -> Steps:
        while True:
            answer = yield call(ApiKey.FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": [key]})
            if answer is not None and answer.coordinators[0].error_code == ErrorCode.NONE:
                return
            if answer is not None and answer.coordinators[0].error_code not in _TRY_AGAIN:
                self._unexpected("FindCoordinator", answer.coordinators[0].error_code)
            yield self._short_sleep()

    def _init(self) -> Steps:
        fields = {**Producer(self.transactional_id)._asdict(), "transaction_timeout_ms": TIMEOUT_MS}
        answer = yield from self._ask(ApiKey.INIT_PRODUCER_ID, self._versions.init_producer_id, fields, may_repeat=True)
        self._go_on_as(answer.producer_id, answer.producer_epoch)

    def _go_on_as(self, producer_id: int, producer_epoch: int) -> None:
        self._producer = Producer(self.transactional_id, producer_id, producer_epoch)
        self._sequences = {}

    def _read_position(self) -> Generator[Call | Sleep, Any, int]:
        while True:
            answer = yield fetch_offset(GROUP, self._source_name, self.source.number)
            if answer is not None:
                (found,) = answer.groups
                code = found.error_code or found.topics[0].partitions[0].error_code
                if code == ErrorCode.NONE:
                    offset: int = found.topics[0].partitions[0].committed_offset
                    return max(0, offset)
                if code not in _TRY_AGAIN:
                    self._unexpected("OffsetFetch", code)
            yield self._short_sleep()

    def _read_input(self, position: int) -> Generator[Call | Sleep, Any, int]:
        """Return where the input continues after some of it."""
        answer = yield fetch(self._source_name, self.source.number, position, INPUT_WAIT_MS)
        if answer is None or answer.error is not ErrorCode.NONE:
            return position
        batches = fetched_batches(answer.records)
        offsets = [offset for batch in batches for offset, _ in batch.values() if offset >= position]
        return offsets[: self._draw((1, INPUT_RECORDS_MAX))][-1] + 1 if offsets else position

    # -- one transaction -----------------------------------------------------------------------------------------------------

    def _fill(self, transaction: Transaction) -> Steps:
        self._sent = []
        count = self._draw((1, self._outputs.partitions))
        first = self._draw((0, self._outputs.partitions - 1))
        indexes = [(first + number) % self._outputs.partitions for number in range(count)]
        if not self.is_version_2:
            yield from self._add(indexes)
        for index in indexes:
            for _ in range(self._draw((1, 2))):
                yield from self._write(transaction, index)
        yield from self._commit_position(transaction)

    def _add(self, indexes: list[int]) -> Steps:
        while True:
            answer = yield from self._send(add_partitions(self._producer, self._outputs.name, indexes))
            (result,) = answer.results_by_topic_v3_and_below
            codes = {each.partition_error_code for each in result.results_by_partition}
            if codes == {ErrorCode.NONE}:
                break
            yield from self._judge("AddPartitionsToTxn", max(codes))
        yield from self._ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**self._producer._asdict(), "group_id": GROUP})

    def _write(self, transaction: Transaction, index: int) -> Steps:
        values = self._values(transaction, index)
        step = self._produce(values, index)
        while True:
            answer = yield step
            if answer is not None and answer.error is ErrorCode.NONE:
                break
            if answer is not None and answer.error not in _PRODUCE_AGAIN:
                yield from self._judge("Produce", answer.error)
            yield self._short_sleep()
        self._sent.append(step)
        self._sequences[index] = self._sequences.get(index, 0) + len(values)
        partition = PartitionId(self._outputs.topic_id, index)
        transaction.written.append((partition, answer.base_offset, self._base.now()))

    def _values(self, transaction: Transaction, index: int) -> list[str]:
        known = len(transaction.values)
        values = [f"{transaction.name}:{known + number}" for number in range(self._draw((1, 3)))]
        transaction.values.update(dict.fromkeys(values, PartitionId(self._outputs.topic_id, index)))
        return values

    def _produce(self, values: list[str], index: int) -> Call:
        now_ms = EPOCH_MS + self._scheduler.now_us // 1000
        sequence = self._sequences.get(index, 0)
        return produce(self._producer, self._versions.produce, self._outputs.name, index, values, sequence, now_ms)

    def _commit_position(self, transaction: Transaction) -> Steps:
        index, offset = self.source.number, transaction.next_offset
        version = self._versions.txn_offset_commit
        step = commit_offset(self._producer, version, GROUP, self._source_name, index, offset, transaction.name)
        while True:
            answer = yield from self._send(step)
            code = answer.topics[0].partitions[0].error_code
            if code == ErrorCode.NONE:
                break
            yield from self._judge("TxnOffsetCommit", code)
        self._sent.append(step)

    def _end(self, transaction: Transaction, is_commit: bool) -> Steps:
        fields = {**self._producer._asdict(), "committed": is_commit}
        step = call(ApiKey.END_TXN, self._versions.end_txn, fields)
        while True:
            if is_commit:
                self._history.commit_sent(transaction)
            answer = yield from self._send(step)
            if answer.error_code == ErrorCode.NONE:
                break
            yield from self._judge("EndTxn", answer.error_code)
        self._history.ended(transaction, End.COMMITTED if is_commit else End.ABORTED)
        self._sent.append(step)
        if self.is_version_2:
            if (answer.producer_id, answer.producer_epoch) == self._producer[1:]:
                self._base.problem("epoch not raised", f"{self.name}: EndTxn leaves {self._producer}")
            self._go_on_as(answer.producer_id, answer.producer_epoch)

    # -- what comes late -----------------------------------------------------------------------------------------------------

    def _come_late(self, transaction: Transaction, late: Call) -> Steps:
        if self._randomness.fraction() >= LATE_LIKELIHOOD:
            return
        if not self.is_version_2:
            # Wait for this one: the next transaction of v1 would be taken for the one that it belongs to.
            answer = yield late
            if answer is None or answer.error in _PRODUCE_AGAIN:
                raise StartOver
            if answer.error is ErrorCode.NONE:
                self._base.problem("records after the end", f"{transaction.name}: {transaction.end.value}, and written to again")
            return
        steps = [*self._sent, late]
        for _ in range(self._draw((1, LATE_REQUESTS_MAX))):
            again = partial(self._send_late, steps[self._draw((0, len(steps) - 1))])
            self._scheduler.schedule(self._draw(LATE_US), f"{self.name} is late", again)

    def _late_records(self, transaction: Transaction) -> Call:
        """Records of the current transaction, to be sent when it is over."""
        value = f"{transaction.name}:late"
        transaction.late.add(value)
        return self._produce([value], self._draw((0, self._outputs.partitions - 1)))

    def _send_late(self, step: Call) -> None:
        if self.is_running and self._late.is_ready:
            self._late.request(step.api_key, step.version, step.body, lambda _frame, _position: None)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def _ask(self, api_key: ApiKey, version: int, fields: dict[str, Any], may_repeat: bool = False) -> Steps:
        """Return the answer if it has no error."""
        while True:
            answer = yield from self._send(call(api_key, version, fields), may_repeat)
            if answer.error_code == ErrorCode.NONE:
                return answer
            yield from self._judge(api_key.name, answer.error_code)

    def _send(self, step: Call, may_repeat: bool = False) -> Steps:
        """Return the answer, however often the request has to be repeated."""
        while True:
            answer = yield step
            if answer is not None:
                return answer
            if not (may_repeat or self.is_version_2):
                raise StartOver
            yield self._short_sleep()

    def _judge(self, api: str, code: int) -> Steps:
        if code in _TRY_AGAIN:
            yield self._short_sleep()
            return
        if code not in FENCED:
            self._unexpected(api, code)
        raise StartOver

    def _unexpected(self, api: str, code: int) -> None:
        self._base.problem("unexpected error", f"{self.name}: {api}: {ErrorCode(code)!r}")

    def _short_sleep(self) -> Sleep:
        return Sleep(self._draw(RETRY_US))

    def _draw(self, bounds: tuple[int, int]) -> int:
        return self._randomness.integer(*bounds)
