"""Transactional producers and read_committed readers by hand, for the tests of transactions through the broker."""

from collections.abc import Callable
from typing import Any

from tests.broker.handlers.group_clients import find_coordinator
from tests.broker.harness import FakeClient, Machine, fetch_request
from tests.log.harness import batch
from tidelog.coordinator.shard import ShardState
from tidelog.log.partition_log import PartitionLog
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers
from tidelog.transactions.state import COMPLETE_STATES, PREPARED_STATES
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceResult, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey

FEW_SHARDS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
ID = "tx"
READ_COMMITTED = 1
ORDERS = ("orders", 0)
OTHER = ("orders", 1)
# Versions of Produce: which knows INVALID_TXN_STATE only, which TRANSACTION_ABORTABLE, which leaves adding to the broker.
OLD, ABORTABLE, VERSION_2 = 9, 11, 12


def transactional_machine(settings: dict[str, str] | None = None, *, topics: int = 1, partitions: int = 1) -> Machine:
    """With topics orders, orders2, ... and both coordinators loaded."""
    machine = Machine({**FEW_SHARDS, **(settings or {})})
    client = machine.client()
    for number in range(1, topics + 1):
        client.create_topic("orders" if number == 1 else f"orders{number}", partitions)
    find_coordinator(client)
    assert client.call(ApiKey.FIND_COORDINATOR, 3, key=ID, key_type=1).error_code == 0
    wait_loaded(machine)
    return machine


def wait_loaded(machine: Machine) -> None:
    coordinators = machine.broker.coordinators

    def is_loaded() -> bool:
        shards = [*coordinators.groups.shards().values(), *coordinators.transactions.shards().values()]
        return all(shard is not None and shard.state is ShardState.ACTIVE for shard in shards)

    machine.run_until(is_loaded)


class TransactionalProducer:
    """``is_v2``: the requests of a client that leaves adding partitions to the broker (KIP-890)."""

    def __init__(self, machine: Machine, transactional_id: str = ID, *, is_v2: bool = False, timeout_ms: int = 60_000) -> None:
        self.machine = machine
        self.client = machine.client()
        self.transactional_id = transactional_id
        self.is_v2 = is_v2
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def fields(self) -> dict[str, Any]:
        return {"transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def reconnected(self) -> "TransactionalProducer":
        """After a restart of the broker."""
        self.client = self.machine.client()
        return self

    def init(self, version: int = 4) -> ErrorCode:
        response = self.client.call(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self._take(response.producer_id, response.producer_epoch)
        return ErrorCode(response.error_code)

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch) and epoch >= 0:
            self.producer_id, self.epoch = producer_id, epoch
            self.sequences = {}

    def started(self) -> "TransactionalProducer":
        assert self.init() is ErrorCode.NONE
        return self

    def add(self, *partitions: tuple[str, int], version: int = 3) -> dict[tuple[str, int], ErrorCode]:
        response = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, **self.add_fields(*partitions))
        return {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }

    def add_fields(self, *partitions: tuple[str, int]) -> dict[str, Any]:
        names = dict.fromkeys(name for name, _ in partitions)
        topics = [{"name": name, "partitions": [index for topic, index in partitions if topic == name]} for name in names]
        return {"v3_and_below_topics": topics, **{f"v3_and_below_{name}": value for name, value in self.fields.items()}}

    def request(
        self, *partitions: tuple[str, int], count: int = 1, sequence: int | None = None, acks: int = -1, epoch: int | None = None
    ) -> ProduceRequest:
        """A batch for each; without ``sequence`` the next one."""
        topics = []
        for name, index in partitions:
            first = self.sequences.get((name, index), 0) if sequence is None else sequence
            if sequence is None:
                self.sequences[name, index] = first + count
            records = batch(
                count,
                producer_id=self.producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                sequence=first,
                transactional=True,
            )
            topics.append(ProduceTopic(name, None, [ProducePartition(index, memoryview(records))]))
        return ProduceRequest(self.transactional_id, acks, 30_000, topics)

    def produce(self, *partitions: tuple[str, int], version: int | None = None, **fields: Any) -> list[ProduceResult]:
        response = self.client.produce(self.request(*partitions, **fields), self._produce_version(version))
        return [result for topic in response.topics for result in topic.partitions]

    def begin_produce(self, *partitions: tuple[str, int], version: int | None = None, **fields: Any) -> None:
        """Sent; the answer is not waited for."""
        api_version = self._produce_version(version)
        self.client.send(ApiKey.PRODUCE, api_version, encode_produce_request(api_version, self.request(*partitions, **fields)))

    def _produce_version(self, version: int | None) -> int:
        return version if version is not None else VERSION_2 if self.is_v2 else OLD

    def write(self, *partitions: tuple[str, int], count: int = 1) -> None:
        """Added and written."""
        if not self.is_v2:
            assert set(self.add(*partitions).values()) == {ErrorCode.NONE}
        results = self.produce(*partitions, count=count)
        assert {result.error for result in results} == {ErrorCode.NONE}, results

    def end(self, committed: bool = True, version: int | None = None) -> ErrorCode:
        response = self.client.call(ApiKey.END_TXN, version or (5 if self.is_v2 else 4), committed=committed, **self.fields)
        if self.is_v2 and response.error_code == 0:
            self._take(response.producer_id, response.producer_epoch)
        return ErrorCode(response.error_code)

    def add_offsets(self, group_id: str = "g", version: int = 3) -> ErrorCode:
        response = self.client.call(ApiKey.ADD_OFFSETS_TO_TXN, version, group_id=group_id, **self.fields)
        return ErrorCode(response.error_code)

    def commit_offset(
        self, offset: int, topic: str = "orders", partition: int = 0, *, version: int | None = None, **fields: Any
    ) -> ErrorCode:
        return code_of(self._commit_offset(version or (5 if self.is_v2 else 3), offset, topic, partition, **fields))

    def _commit_offset(self, version: int, offset: int, topic: str, partition: int, **fields: Any) -> DecodedMessage:
        commit = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None, **fields}
        topics = [{"name": topic, "partitions": [commit]}]
        return self.client.call(ApiKey.TXN_OFFSET_COMMIT, version, topics=topics, **self.fields, **fields)

    # -- the coordinator -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        (described,) = self.client.call(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id]
        ).transaction_states
        assert described.error_code == 0
        name: str = described.transaction_state
        return name

    def settle(self) -> None:
        """Until all markers are written."""
        self.machine.run_until(lambda: is_settled(self.machine, self.transactional_id))


def code_of(response: DecodedMessage) -> ErrorCode:
    """Of a response with one topic and one partition."""
    ((partition,),) = [topic.partitions for topic in response.topics]
    return ErrorCode(partition.error_code)


def error_of(producer: TransactionalProducer, version: int, **fields: int) -> ErrorCode:
    """Of a Produce to ORDERS."""
    (result,) = producer.produce(ORDERS, version=version, **fields)
    return result.error


def is_settled(machine: Machine, transactional_id: str = ID) -> bool:
    shard = machine.broker.coordinators.transactions.shard_of(transactional_id)
    metadata = shard.machine.table.find(transactional_id) if shard.machine is not None else None
    return metadata is not None and not metadata.pending and metadata.value.state in COMPLETE_STATES


def is_prepared(machine: Machine, transactional_id: str = ID) -> bool:
    """The decision is durable, and not all markers are written."""
    shard = machine.broker.coordinators.transactions.shard_of(transactional_id)
    metadata = shard.machine.table.find(transactional_id) if shard.machine is not None else None
    return metadata is not None and not metadata.pending and metadata.value.state in PREPARED_STATES


# -- logs --------------------------------------------------------------------------------------------------------------------


def log_of(machine: Machine, topic: str = "orders", partition: int = 0) -> PartitionLog:
    return machine.broker.partitions.find(topic, None, partition).log


def is_open(machine: Machine, topic: str = "orders", partition: int = 0) -> bool:
    """Whether any transaction is open there."""
    return log_of(machine, topic, partition).producers.oldest_open_transaction is not None


def markers_in(machine: Machine, topic: str = "orders", partition: int = 0) -> list[bool]:
    """For each marker in the log: whether it commits."""
    found = fetch(machine.client(), topic, partition, isolation=0)
    return [is_commit for is_commit in (_marker(data) for data in found.batches) if is_commit is not None]


class Fetched:
    def __init__(self, data: bytes, aborted: list[tuple[int, int]], last_stable_offset: int) -> None:
        self.batches = [(data, position, header) for position, header in iterate_headers(data)]
        self.aborted = aborted
        self.last_stable_offset = last_stable_offset


def fetch(client: FakeClient, topic: str, partition: int, isolation: int) -> Fetched:
    """All of a partition, in one go."""
    request = fetch_request(topic, 0, partition=partition, isolation=isolation)
    ((result,),) = [answer.partitions for answer in client.fetch(request).topics]
    assert result.error is ErrorCode.NONE
    return Fetched(bytes(result.records or b""), result.aborted or [], result.last_stable_offset)


def committed_offsets(client: FakeClient, topic: str = "orders", partition: int = 0) -> list[int]:
    """What a read_committed reader shows: the consumers' way of leaving out what was aborted."""
    fetched = fetch(client, topic, partition, READ_COMMITTED)
    waiting = sorted(fetched.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    shown = []
    for data, position, header in fetched.batches:
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        is_commit = _marker((data, position, header))
        if is_commit is not None:
            if not is_commit:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            records = read_records(data, position, header, size_max=1 << 20, count_max=1 << 20)
            shown += [record.offset for record in records]
    return shown


def _marker(found: tuple[bytes, int, Any]) -> bool | None:
    data, position, header = found
    if not header.is_control:
        return None
    (record,) = read_records(data, position, header, size_max=1 << 20, count_max=1 << 20)
    return bool(int.from_bytes((record.key or b"")[2:4], "big"))


def stop_markers(machine: Machine) -> Callable[[], None]:
    """Decisions are made, but no marker is written until the function that is returned was called."""
    sender = machine.broker.coordinators.markers
    assert not sender._is_scheduled
    sender._is_scheduled = True

    def go_on() -> None:
        sender._is_scheduled = False

    return go_on
