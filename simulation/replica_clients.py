"""Clients of a simulated cluster: they ask any broker for the leaders and talk to these, as every Kafka client does.

``ClusterClient`` drives a generator that yields ``At`` (a call and the broker that it goes to) and ``Sleep``. A call that cannot
be sent, that gets no answer in time or whose connection is lost is answered with None: nobody knows whether it was carried out.
A producer of this module has one batch under way at a time and sends it again, unchanged, until it is acknowledged
(``pipelined_producer`` has one that sends several). A reader reads everything that the leaders show, asks for the latest
offsets, and commits its positions to a group.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.client import ClientConnection, fetched_batches
from simulation.clock import EPOCH_MS
from simulation.replica_checker import Place, Send
from simulation.scheduler import Event
from simulation.script import Call, Sleep, call
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from simulation.replica_world import ReplicaWorld

ANSWER_US_MAX = 1_500_000
NOT_READY_US = 10_000
THINK_US = (5_000, 60_000)
RETRY_US = (5_000, 60_000)
POLL_US = (5_000, 60_000)
PRODUCE_TIMEOUT_MS = 1_000
PRODUCE_VERSION = 11
FETCH_VERSION = 12
FETCH_BYTES_MAX = 20_000
ACKS_ALL = -1
LATEST = -1
GROUP_TYPE = 0

# The brokers are not ready for the request: the client looks for the leader again. The batch was certainly not written.
REFUSED = frozenset(
    (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )
)
# It is not known whether the request was carried out: also a leader that is deposed while a write waits answers so.
UNCLEAR = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)


class At(NamedTuple):
    node_id: int
    call: Call


ClientSteps = Generator[At | Sleep, Any, Any]


class ClusterClient:
    def __init__(self, world: "ReplicaWorld", name: str) -> None:
        self.name = name
        self.world = world
        self.randomness = world.randomness.fork(name)
        self.is_stopping = False
        self.is_over = False
        self.leaders: dict[Place, int] = {}
        # As Kafka's clients do: metadata of an older epoch, from a broker that is cut off, is ignored.
        self.epochs: dict[Place, int] = {}
        self._scheduler = world.scheduler
        self._connections = {
            node_id: ClientConnection(
                name, world.environment, self.randomness.fork(f"connection {node_id}"), self, world.nodes[node_id].host
            )
            for node_id in world.nodes
        }
        self._steps = self.steps()

    def steps(self) -> ClientSteps:
        raise NotImplementedError

    def start(self) -> None:
        for connection in self._connections.values():
            connection.connect()
        self._advance(None)

    def stop(self) -> None:
        """End after what is under way."""
        self.is_stopping = True

    def ready(self) -> None:
        """Calls wait for nothing: one whose connection is not ready fails, and the client tries again."""

    def lost(self) -> None:
        """Each call under way was told."""

    def _advance(self, answer: Any) -> None:
        try:
            step = self._steps.send(answer)
        except StopIteration:
            self.is_over = True
            for connection in self._connections.values():
                connection.close()
            return
        if isinstance(step, Sleep):
            self._scheduler.schedule(step.duration_us, f"{self.name} has slept", lambda: self._advance(None))
        else:
            self._send(step)

    def _send(self, step: At) -> None:
        connection = self._connections.get(step.node_id)
        if connection is None or not connection.is_ready:
            self._scheduler.schedule(NOT_READY_US, f"{self.name} has no connection", lambda: self._advance(None))
            return
        timeout: Event = self._scheduler.schedule(ANSWER_US_MAX, f"{self.name} waits no longer", connection.drop)
        wanted = step.call

        def replied(frame: memoryview | None, position: int) -> None:
            timeout.cancel()
            answer = None if frame is None else wanted.decode(memoryview(bytes(frame)), position)
            self._scheduler.schedule(0, f"{self.name} has an answer", lambda: self._advance(answer))

        connection.request(wanted.api_key, wanted.version, wanted.body, replied)

    # -- what all clients do -------------------------------------------------------------------------------------------------

    def draw(self, bounds: tuple[int, int]) -> int:
        return self.randomness.integer(*bounds)

    def any_node(self) -> int:
        return self.draw((1, len(self._connections)))

    def find_leaders(self) -> ClientSteps:
        names = [{"topic_id": bytes(16), "name": name} for name in self.world.topic_names]
        wanted = call(ApiKey.METADATA, 12, {"topics": names, "allow_auto_topic_creation": False})
        answer = yield At(self.any_node(), wanted)
        if answer is None:
            yield Sleep(self.draw(RETRY_US))
            return
        for topic in answer.topics:
            for partition in topic.partitions:
                place = Place(topic.name, partition.partition_index)
                if partition.leader_epoch >= self.epochs.get(place, 0):
                    self.leaders[place], self.epochs[place] = partition.leader_id, partition.leader_epoch

    def unexpected(self, what: str, code: int) -> None:
        self.world.history.problem("unexpected error", f"{self.name}: {what}: {ErrorCode(code).name}")


def init_producer_id(client: ClusterClient) -> ClientSteps:
    """Returns the id and the epoch."""
    fields = {"transactional_id": None, "transaction_timeout_ms": 1_000, "producer_id": -1, "producer_epoch": -1}
    while True:
        answer = yield At(client.any_node(), call(ApiKey.INIT_PRODUCER_ID, 4, fields))
        if answer is not None and answer.error_code == ErrorCode.NONE:
            return answer.producer_id, answer.producer_epoch
        yield Sleep(client.draw(RETRY_US))


class ReplicaProducer(ClusterClient):
    def __init__(self, world: "ReplicaWorld", name: str, is_idempotent: bool) -> None:
        self.is_idempotent = is_idempotent
        self._count = 0
        self._sequences: dict[Place, int] = {}
        super().__init__(world, name)

    def steps(self) -> ClientSteps:
        producer_id, epoch = -1, -1
        if self.is_idempotent:
            producer_id, epoch = yield from init_producer_id(self)
        yield from self.find_leaders()
        places = self.world.places
        while not self.is_stopping:
            yield Sleep(self.draw(THINK_US))
            place = places[self.draw((0, len(places) - 1))]
            yield from self._write(place, producer_id, epoch)

    def _write(self, place: Place, producer_id: int, epoch: int) -> ClientSteps:
        values = []
        for _ in range(self.draw((1, 3))):
            self._count += 1
            values.append(f"{self.name}:{self._count}")
        sequence = self._sequences.get(place, 0)
        now_ms = EPOCH_MS + self._scheduler.now_us // 1000
        filler = b" " + b"." * self.draw((0, 150))
        batch = build_batch(
            [Record(number, now_ms, None, value.encode() + filler) for number, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence if self.is_idempotent else -1,
        )
        topics = [ProduceTopic(place.topic, None, [ProducePartition(place.number, memoryview(batch))])]
        body = encode_produce_request(PRODUCE_VERSION, ProduceRequest(None, ACKS_ALL, PRODUCE_TIMEOUT_MS, topics))
        request = Call(ApiKey.PRODUCE, PRODUCE_VERSION, body, produce_result)
        send = self.world.checker.sent(place, tuple(values), self.is_idempotent)
        self._sequences[place] = sequence + len(values)
        # A batch that was sent must end: an idempotent producer that gave it up could not go on.
        while not (yield from self._try(send, request)):
            yield Sleep(self.draw(RETRY_US))
            yield from self.find_leaders()

    def _try(self, send: Send, request: Call) -> ClientSteps:
        """Returns whether the batch is done with."""
        send.attempts += 1
        result: ProduceResult | None = yield At(self.leaders.get(send.place, -1), request)
        if result is None:
            return False
        if result.error is ErrorCode.NONE:
            self.world.checker.acknowledged(send, result.base_offset)
            return True
        if result.error in REFUSED:
            send.attempts -= 1
            return False
        if result.error in UNCLEAR:
            return False
        self.unexpected(f"Produce to {send.place} of {send.values}: {result.error_message}", result.error)
        return True


def produce_result(frame: memoryview, position: int) -> ProduceResult:
    return decode_produce_response(PRODUCE_VERSION, frame, position).topics[0].partitions[0]


class ReplicaReader(ClusterClient):
    """Reads everything from the beginning. A patient one ends when it has read what a new leader shows as the latest offset."""

    def __init__(self, world: "ReplicaWorld", name: str) -> None:
        self.positions = dict.fromkeys(world.places, 0)
        self.ends: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._coordinator = -1
        super().__init__(world, name)

    @property
    def has_read_everything(self) -> bool:
        return len(self.ends) == len(self.positions) and all(self.positions[place] >= end for place, end in self.ends.items())

    def steps(self) -> ClientSteps:
        while not self.is_stopping:
            yield from self.find_leaders()
            for place in self.world.places:
                yield from self._ask_end(place)
                yield from self._read(place)
                if self.draw((0, 2)) == 0:
                    yield from self._commit(place)
            yield Sleep(self.draw(POLL_US))

    def _ask_end(self, place: Place) -> ClientSteps:
        known = self.world.checker.known_end(self.name, place)
        epoch = self.epochs.get(place, -1)
        partition = {"partition_index": place.number, "current_leader_epoch": epoch, "timestamp": LATEST}
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": place.topic, "partitions": [partition]}]}
        answer = yield At(self.leaders.get(place, -1), call(ApiKey.LIST_OFFSETS, 7, fields))
        if answer is None:
            return
        result = answer.topics[0].partitions[0]
        if result.error_code == ErrorCode.NONE:
            self.ends[place] = result.offset
            self.world.checker.saw_end(self.name, place, result.offset, known)
        elif result.error_code not in REFUSED | UNCLEAR:
            self.unexpected(f"ListOffsets of {place}", result.error_code)

    def _read(self, place: Place) -> ClientSteps:
        wanted = FetchPartition(place.number, self.positions[place], FETCH_BYTES_MAX, self.epochs.get(place, -1))
        request = FetchRequest(-1, 0, 0, FETCH_BYTES_MAX, 0, 0, -1, [FetchTopic(place.topic, None, [wanted])], [], "")
        body = encode_fetch_request(FETCH_VERSION, request)
        result: FetchedPartition | None = yield At(
            self.leaders.get(place, -1), Call(ApiKey.FETCH, FETCH_VERSION, body, _fetched_partition)
        )
        if result is None or result.error in REFUSED | UNCLEAR:
            return
        if result.error is not ErrorCode.NONE:
            self.unexpected(f"Fetch of {place} at {wanted.fetch_offset}", result.error)
            return
        for batch in fetched_batches(result.records):
            if batch.header.base_offset >= self.positions[place] and not batch.header.is_control:
                self.world.checker.saw_records(self.name, place, batch.values())
            self.positions[place] = batch.header.base_offset + batch.header.last_offset_delta + 1

    def _commit(self, place: Place) -> ClientSteps:
        """Commit a position, or ask for the one that was committed: whoever coordinates the group knows it."""
        if self._coordinator < 0:
            fields = {"key_type": GROUP_TYPE, "coordinator_keys": [self.name]}
            answer = yield At(self.any_node(), call(ApiKey.FIND_COORDINATOR, 4, fields))
            if answer is None or answer.coordinators[0].error_code != ErrorCode.NONE:
                return
            self._coordinator = answer.coordinators[0].node_id
        code = yield from (self._write_commit(place) if self.draw((0, 1)) else self._check_commit(place))
        if code == ErrorCode.NONE:
            return
        self._coordinator = -1
        if code is not None and code not in REFUSED | UNCLEAR:
            self.unexpected(f"the commit of {place}", code)

    def _write_commit(self, place: Place) -> ClientSteps:
        position = self.positions[place]
        partition = {"partition_index": place.number, "committed_offset": position, "committed_leader_epoch": -1}
        topics = [{"name": place.topic, "partitions": [{**partition, "committed_metadata": ""}]}]
        member = {"group_id": self.name, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        answer = yield At(self._coordinator, call(ApiKey.OFFSET_COMMIT, 8, {**member, "topics": topics}))
        if answer is None:
            return None
        code = answer.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            self._committed[place] = position
            self.world.checker.commits += 1
        return code

    def _check_commit(self, place: Place) -> ClientSteps:
        topics = [{"name": place.topic, "partition_indexes": [place.number]}]
        groups = [{"group_id": self.name, "member_id": None, "member_epoch": -1, "topics": topics}]
        answer = yield At(self._coordinator, call(ApiKey.OFFSET_FETCH, 9, {"groups": groups, "require_stable": True}))
        if answer is None:
            return None
        group = answer.groups[0]
        if group.error_code != ErrorCode.NONE:
            return group.error_code
        found, known = group.topics[0].partitions[0].committed_offset, self._committed.get(place, -1)
        if found < known:
            self.world.history.problem("commit lost", f"{self.name} committed {known} of {place}, the group knows {found}")
        return group.topics[0].partitions[0].error_code


def _fetched_partition(frame: memoryview, position: int) -> FetchedPartition | None:
    topics = decode_fetch_response(FETCH_VERSION, frame, position).topics
    return topics[0].partitions[0] if topics else None
