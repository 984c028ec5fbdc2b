"""Transactional clients of a simulated cluster, and a reader of what they committed.

A worker takes committed records of its source partition, writes values to some partitions, commits its position in the same
transaction, and ends it. Whoever leads and coordinates may change at any moment; requests are sent again until they are answered.
The versions are those of transactions v2, whose epochs tell a late request from one of the next transaction. Some requests of a
transaction that has ended are sent again, late, while the next one is under way.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from simulation.clock import EPOCH_MS
from simulation.committed_reader import visible_records
from simulation.replica_checker import Place
from simulation.replica_clients import POLL_US, REFUSED, RETRY_US, THINK_US, UNCLEAR, At, ClientSteps, ClusterClient
from simulation.script import Call, Sleep, call
from simulation.transaction_checker import End
from simulation.transaction_graph import TakingTransaction
from simulation.transactional_requests import V2, Producer, commit_offset, fetch, fetch_offset, produce
from simulation.transactional_worker import FENCED, GROUP_TYPE, TRANSACTION_TYPE, StartOver
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from simulation.replica_world import ReplicaWorld

TIMEOUT_MS = 2_000
TAKEN_MAX = 5
COMMIT_LIKELIHOOD = 0.75
LATE_LIKELIHOOD = 0.3
LATE_US = (0, 1_500_000)
FETCH_BYTES_MAX = 20_000
AGAIN = REFUSED | UNCLEAR | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT}


class TransactionalReplicaWorker(ClusterClient):
    def __init__(self, world: "ReplicaWorld", name: str, source: Place) -> None:
        self.source = source
        self._graph = world.graph
        self._producer = Producer(name)
        self._sequences: dict[Place, int] = {}
        self._coordinators: dict[int, int] = {}
        self._sent: list[tuple[int, Call]] = []
        super().__init__(world, name)

    def steps(self) -> ClientSteps:
        while not self.is_stopping:
            try:
                yield from self._work()
            except StartOver:
                yield Sleep(self.draw(RETRY_US))

    def _work(self) -> ClientSteps:
        yield from self.find_leaders()
        fields = {**Producer(self.name)._asdict(), "transaction_timeout_ms": TIMEOUT_MS}
        wanted = call(ApiKey.INIT_PRODUCER_ID, V2.init_producer_id, fields)
        self._go_on_as((yield from self._ask(TRANSACTION_TYPE, wanted, _error_code)))
        answer = yield from self._ask(GROUP_TYPE, fetch_offset(self.name, *self.source), _code_of_offset)
        position = max(0, answer.groups[0].topics[0].partitions[0].committed_offset)
        while not self.is_stopping:
            yield Sleep(self.draw(THINK_US))
            taken = yield from self._take(position)
            if taken:
                transaction = self._graph.begin(self.name, self.source, taken)
                after = taken[-1][0] + 1
                yield from self._fill(transaction, after)
                yield from self._end(transaction, self.randomness.fraction() < COMMIT_LIKELIHOOD)
                position = after if transaction.end is End.COMMITTED else position
                self._come_late()

    def _go_on_as(self, answer: Any) -> None:
        self._producer = Producer(self.name, answer.producer_id, answer.producer_epoch)
        self._sequences = {}

    # -- one transaction -----------------------------------------------------------------------------------------------------

    def _take(self, position: int) -> ClientSteps:
        """Return the next committed records of the source."""
        while not self.is_stopping:
            answer = yield from self._read(self.source, position)
            if answer is None:
                yield from self.find_leaders()
                continue
            records, after = visible_records(answer, position)
            if records or after == position:
                return records[: self.draw((1, TAKEN_MAX))]
            position = after
        return []

    def _read(self, place: Place, position: int) -> ClientSteps:
        """Returns None if the fetch failed."""
        wanted = fetch(*place, position, 0, FETCH_BYTES_MAX, self.epochs.get(place, -1))
        answer: FetchedPartition | None = yield At(self.leaders.get(place, -1), wanted)
        if answer is None or answer.error in REFUSED | UNCLEAR:
            return None
        if answer.error is not ErrorCode.NONE:
            self.unexpected(f"Fetch of {place} at {position}", answer.error)
            return None
        return answer

    def _fill(self, transaction: TakingTransaction, after: int) -> ClientSteps:
        self._sent = []
        places = self.world.places
        first = self.draw((0, len(places) - 1))
        for number in range(self.draw((1, len(places)))):
            yield from self._write(transaction, places[(first + number) % len(places)])
        wanted = commit_offset(self._producer, V2.txn_offset_commit, self.name, *self.source, after, transaction.name)
        yield from self._ask(GROUP_TYPE, wanted, _code_of_commit)

    def _write(self, transaction: TakingTransaction, place: Place) -> ClientSteps:
        values = self._graph.writes(transaction, place, self.draw((1, 2)))
        sequence = self._sequences.get(place, 0)
        now_ms = EPOCH_MS + self._scheduler.now_us // 1000
        wanted = produce(self._producer, V2.produce, *place, values, sequence, now_ms)
        self._sequences[place] = sequence + len(values)
        send = self.world.checker.sent(place, tuple(values), is_idempotent=True)
        while True:
            node_id = self.leaders.get(place, -1)
            answer = yield At(node_id, wanted)
            if answer is not None and answer.error is ErrorCode.NONE:
                self.world.checker.acknowledged(send, answer.base_offset)
                self._sent.append((node_id, wanted))
                return
            if answer is not None:
                self._judge(f"Produce to {place}", answer.error)
            yield Sleep(self.draw(RETRY_US))
            yield from self.find_leaders()

    def _end(self, transaction: TakingTransaction, is_commit: bool) -> ClientSteps:
        wanted = call(ApiKey.END_TXN, V2.end_txn, {**self._producer._asdict(), "committed": is_commit})
        if is_commit:
            self._graph.commit_sent(transaction)
        answer = yield from self._ask(TRANSACTION_TYPE, wanted, _error_code)
        self._graph.ended(transaction, End.COMMITTED if is_commit else End.ABORTED)
        self._sent.append((self._coordinators.get(TRANSACTION_TYPE, -1), wanted))
        self._go_on_as(answer)

    def _come_late(self) -> None:
        """Send requests of the transaction that has just ended again, some time later."""
        if self.randomness.fraction() < LATE_LIKELIHOOD:
            node_id, wanted = self._sent[self.draw((0, len(self._sent) - 1))]
            self._scheduler.schedule(self.draw(LATE_US), f"{self.name} is late", partial(self._send_late, node_id, wanted))

    def _send_late(self, node_id: int, wanted: Call) -> None:
        connection = self._connections.get(node_id)
        if connection is not None and connection.is_ready and not self.is_over:
            self.world.watcher.count("late request")
            connection.request(wanted.api_key, wanted.version, wanted.body, lambda _frame, _position: None)

    # -- coordinators --------------------------------------------------------------------------------------------------------

    def _ask(self, key_type: int, wanted: Call, code_of: Any) -> ClientSteps:
        """Return the answer of the coordinator once it has no error."""
        while True:
            node_id = self._coordinators.get(key_type, -1)
            if node_id < 0:
                fields = {"key_type": key_type, "coordinator_keys": [self.name]}
                found = yield At(self.any_node(), call(ApiKey.FIND_COORDINATOR, 4, fields))
                if found is not None and found.coordinators[0].error_code == ErrorCode.NONE:
                    self._coordinators[key_type] = found.coordinators[0].node_id
                else:
                    yield Sleep(self.draw(RETRY_US))
                continue
            answer = yield At(node_id, wanted)
            code = None if answer is None else code_of(answer)
            if code == ErrorCode.NONE:
                return answer
            if code is not None:
                self._judge(wanted.api_key.name, code)
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                del self._coordinators[key_type]
            yield Sleep(self.draw(RETRY_US))

    def _judge(self, what: str, code: int) -> None:
        if code in AGAIN:
            return
        if code not in FENCED:
            self.unexpected(what, code)
        raise StartOver


class CommittedReplicaReader(TransactionalReplicaWorker):
    """Reads everything with read_committed, and takes part in nothing."""

    def __init__(self, world: "ReplicaWorld", name: str) -> None:
        super().__init__(world, name, world.places[0])
        self._positions = dict.fromkeys(world.places, 0)
        self._ends: dict[Place, int] = {}

    @property
    def has_read_everything(self) -> bool:
        """Whether it has come to the high watermark everywhere: then no transaction is open."""
        return self._positions == self._ends

    def steps(self) -> ClientSteps:
        while not self.is_stopping:
            yield from self.find_leaders()
            for place, position in self._positions.items():
                answer = yield from self._read(place, position)
                if answer is not None:
                    records, self._positions[place] = visible_records(answer, position)
                    self._ends[place] = answer.high_watermark
                    self._graph.saw(self.name, place, records)
            yield Sleep(self.draw(POLL_US))


def _error_code(answer: Any) -> int:
    code: int = answer.error_code
    return code


def _code_of_offset(answer: Any) -> int:
    group = answer.groups[0]
    code: int = group.error_code or group.topics[0].partitions[0].error_code
    return code


def _code_of_commit(answer: Any) -> int:
    code: int = answer.topics[0].partitions[0].error_code
    return code
