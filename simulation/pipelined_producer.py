"""An idempotent producer of a simulated cluster that has several batches of a partition on the wire, as librdkafka does.

The batches of a partition are numbered and sent in order, at most five at a time, and each again until it is acknowledged. When
one fails, the partition waits until all that is on the wire has been answered, and then sends what is left, in order. An
acknowledgement also holds for the batches before, whose own may be lost: then nobody knows where they are.

A batch that is out of order behind one that is not acknowledged makes the producer begin a new epoch, in all partitions: it waits
until nothing is on the wire, and numbers what it has not been told about from 0 again. Batches that were appended and never
acknowledged are among that; a broker that makes the producer do so makes it write them twice.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from simulation.clock import EPOCH_MS
from simulation.replica_checker import Place, Send
from simulation.replica_clients import (
    ACKS_ALL,
    ANSWER_US_MAX,
    PRODUCE_TIMEOUT_MS,
    PRODUCE_VERSION,
    REFUSED,
    RETRY_US,
    UNCLEAR,
    ClientSteps,
    ClusterClient,
    init_producer_id,
    produce_result,
)
from simulation.script import Sleep
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceResult, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from simulation.replica_world import ReplicaWorld

IN_FLIGHT_MAX = 5
# Batches of a partition that are not acknowledged.
LINE_MAX = 8
BURST = (3, 10)
# Between two bursts.
THINK_US = (50_000, 400_000)
# The producer is far away, and its batches are on their way for longer than there is between two of them: something may happen
# between their arrivals.
DISTANCE_US = (5_000, 40_000)
GAP_US = (0, 10_000)
UNNUMBERED = -1


@dataclass(slots=True, eq=False)
class _Batch:
    send: Send
    records: list[Record]
    sequence: int = UNNUMBERED
    is_in_flight: bool = False


@dataclass(slots=True)
class _Line:
    """The batches of a partition that are not acknowledged, oldest first."""

    batches: deque[_Batch] = field(default_factory=deque)
    next_sequence: int = 0
    in_flight: int = 0
    node_id: int = -1
    """Where the batches on the wire were sent: another leader gets the next one when these are answered."""
    must_drain: bool = False
    """Whether a batch has failed: nothing is sent until nothing is on the wire."""
    resumes_us: int = 0
    """After a failure, when the next one is sent at the earliest."""


class PipelinedProducer(ClusterClient):
    def __init__(self, world: "ReplicaWorld", name: str) -> None:
        self._count = 0
        self._lines = {place: _Line() for place in world.places}
        self._producer_id, self._epoch = -1, -1
        self._must_begin_epoch = False
        self._must_find_leaders = True
        super().__init__(world, name)

    def start(self) -> None:
        network = self.world.network
        for node in self.world.nodes.values():
            network.set_delay(self.name, node.host, DISTANCE_US)
            network.set_delay(node.host, self.name, DISTANCE_US)
        super().start()

    def steps(self) -> ClientSteps:
        self._producer_id, self._epoch = yield from init_producer_id(self)
        places = list(self._lines)
        while not self.is_stopping or any(line.batches for line in self._lines.values()):
            if self._must_find_leaders:
                yield Sleep(self.draw(RETRY_US))
                self._must_find_leaders = False
                yield from self.find_leaders()
            else:
                yield Sleep(self.draw(THINK_US))
            for _ in range(self.draw(BURST)):
                place = places[self.draw((0, len(places) - 1))]
                line = self._lines[place]
                if not self.is_stopping and len(line.batches) < LINE_MAX:
                    line.batches.append(self._new_batch(place))
                self._serve()
                yield Sleep(self.draw(GAP_US))

    def _new_batch(self, place: Place) -> _Batch:
        values = []
        for _ in range(self.draw((1, 3))):
            self._count += 1
            values.append(f"{self.name}:{self._count}")
        now_ms = EPOCH_MS + self._scheduler.now_us // 1000
        filler = b" " + b"." * self.draw((0, 150))
        records = [Record(number, now_ms, None, value.encode() + filler) for number, value in enumerate(values)]
        return _Batch(self.world.checker.sent(place, tuple(values), True), records)

    # -- sending -------------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Send one batch of each partition, if one may be sent."""
        if self._must_begin_epoch:
            if any(line.in_flight for line in self._lines.values()):
                return
            self._begin_epoch()
        for place, line in self._lines.items():
            if line.must_drain and not line.in_flight:
                line.must_drain = False
            is_due = not line.must_drain and self._scheduler.now_us >= line.resumes_us
            if is_due and line.in_flight < min(IN_FLIGHT_MAX, len(line.batches)):
                self._send_batch(place, line, line.batches[line.in_flight])

    def _begin_epoch(self) -> None:
        self._must_begin_epoch = False
        self._epoch += 1
        self.world.watcher.count("producer epoch begun")
        for line in self._lines.values():
            line.next_sequence = 0
            for batch in line.batches:
                batch.sequence = UNNUMBERED

    def _send_batch(self, place: Place, line: _Line, batch: _Batch) -> None:
        leader = self.leaders.get(place, -1)
        if line.in_flight and leader != line.node_id:
            return
        line.node_id = leader
        connection = self._connections.get(leader)
        if connection is None or not connection.is_ready:
            self._must_find_leaders = True
            return
        if batch.sequence == UNNUMBERED:
            batch.sequence = line.next_sequence
            line.next_sequence += len(batch.records)
        data = build_batch(batch.records, producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=batch.sequence)
        topics = [ProduceTopic(place.topic, None, [ProducePartition(place.number, memoryview(data))])]
        body = encode_produce_request(PRODUCE_VERSION, ProduceRequest(None, ACKS_ALL, PRODUCE_TIMEOUT_MS, topics))
        timeout = self._scheduler.schedule(ANSWER_US_MAX, f"{self.name} waits no longer", connection.drop)

        def replied(frame: memoryview | None, position: int) -> None:
            timeout.cancel()
            result = None if frame is None else produce_result(memoryview(bytes(frame)), position)
            self._scheduler.schedule(0, f"{self.name} has an answer", partial(self._answered, line, batch, result))

        batch.is_in_flight = True
        batch.send.attempts += 1
        line.in_flight += 1
        connection.request(ApiKey.PRODUCE, PRODUCE_VERSION, body, replied)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def _answered(self, line: _Line, batch: _Batch, result: ProduceResult | None) -> None:
        batch.is_in_flight = False
        line.in_flight -= 1
        if batch not in line.batches:
            return  # The acknowledgement of a later one held for it.
        error = None if result is None else result.error
        if result is not None and error is ErrorCode.NONE:
            self._acknowledged(line, batch, result.base_offset)
        elif error is None or error in REFUSED | UNCLEAR:
            line.must_drain = self._must_find_leaders = True
            line.resumes_us = self._scheduler.now_us + self.draw(RETRY_US)
        elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not line.batches[0]:
            line.must_drain = self._must_begin_epoch = True
        else:
            assert result is not None
            line.batches.remove(batch)
            self.unexpected(f"Produce to {batch.send.place} of {batch.send.values}: {result.error_message}", result.error)

    def _acknowledged(self, line: _Line, batch: _Batch, base_offset: int) -> None:
        checker = self.world.checker
        while (first := line.batches.popleft()) is not batch:
            checker.acknowledged_somewhere(first.send)
        checker.acknowledged(batch.send, base_offset)
