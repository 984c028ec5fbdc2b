"""A broker on simulated ports, and clients that speak bytes to it: a small shell without sockets."""

from collections.abc import Callable, Mapping
from typing import Any

from simulation.clock import SimulatedClock
from simulation.disk import Keep, SimulatedDisk
from simulation.executor import SimulatedExecutor
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Event, NeverReachedError, Scheduler
from tests.log.harness import batch
from tidelog.broker.api import Part
from tidelog.broker.broker import BrokerNode
from tidelog.broker.config import BrokerConfig
from tidelog.log.reading import LogSlice
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers
from tidelog.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

PATH = "/data"
CLUSTER_ID = "cluster"
NODE_ID = 1
HOST, PORT = "127.0.0.1", 9092
EVENTS_MAX = 100_000


class Machine:
    """``broker`` is the running one; ``settings`` are the texts that it is started with."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 1, is_started: bool = True) -> None:
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.disk = SimulatedDisk(self.clock)
        self.randomness = SimulatedRandomness(seed)
        self.executor = SimulatedExecutor(self.scheduler, self.randomness, self.disk, self.clock)
        self.network = SimulatedNetwork(self.scheduler, self.randomness.fork("network"))
        self.settings = {"node.id": str(NODE_ID), **(settings or {})}
        self.events: list[tuple[str, dict[str, object]]] = []
        self.broker: BrokerNode
        self._tick: Event | None = None
        self._tick_ms = 0
        if is_started:
            self.start()

    # -- the broker's life ---------------------------------------------------------------------------------------------------

    def start(self) -> Exception | None:
        config = BrokerConfig.from_texts({"listeners": f"{HOST}:{PORT}", **self.settings}, data_path=PATH, cluster_id=CLUSTER_ID)
        self.broker = BrokerNode(
            config,
            disk=self.disk,
            clock=self.clock,
            randomness=self.randomness,
            executor=self.executor,
            network=self.network.host(HOST),
            report=lambda event, facts: self.events.append((event, facts)),
        )
        return self.wait(self.broker.start)

    def stop(self) -> Exception | None:
        return self.wait(self.broker.begin_stop)

    def restart(self) -> Exception | None:
        assert self.stop() is None
        return self.start()

    def crash(self, keep: Keep = "none") -> Exception | None:
        self.executor.crash()
        self.disk = self.disk.crash_image(self.randomness, keep)
        self.executor.disk = self.disk
        return self.start()

    # -- time ----------------------------------------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(EVENTS_MAX):
            self._end_of_burst()
            if condition():
                return
            if not self.scheduler.step():
                break
        raise NeverReachedError("the condition was never reached")

    def run_for(self, duration_ms: int) -> None:
        is_over: list[bool] = []
        self.scheduler.schedule(duration_ms * 1000, "time passes", lambda: is_over.append(True))
        self.run_until(lambda: bool(is_over))

    def wait(self, begin: Callable[[Callable[[Exception | None], None]], None]) -> Exception | None:
        """Start something, run until it calls back, return what it said."""
        said: list[Exception | None] = []
        begin(said.append)
        self.run_until(lambda: bool(said))
        return said[0]

    def _end_of_burst(self) -> None:
        self.broker.end_of_burst()
        deadline_ms = self.broker.next_deadline_ms()
        if deadline_ms is None or (self._tick is not None and self._tick_ms <= deadline_ms):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_ms = deadline_ms
        delay_us = max(0, deadline_ms * 1000 - self.scheduler.now_us)
        self._tick = self.scheduler.schedule(delay_us, "tick", self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self.broker.tick()

    # -- what tests look at --------------------------------------------------------------------------------------------------

    def facts(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]

    def client(self, listener_index: int | None = None) -> "FakeClient":
        return FakeClient(self, listener_index)


class FakeClient:
    """A connection. ``replies`` holds the bytes of each response that came; ``closed`` the reason when the broker hung up."""

    def __init__(self, machine: Machine, listener_index: int | None = None) -> None:
        self.machine = machine
        self.replies: list[bytes] = []
        self.closed: str | None = None
        self.session = machine.broker.session("127.0.0.1", self._sent, self._closed, listener_index=listener_index)
        self.received_ns = 0
        self._correlation_id = 0

    def _sent(self, parts: list[Part]) -> None:
        self.replies.append(b"".join(_bytes_of(part) for part in parts))

    def _closed(self, reason: str) -> None:
        self.closed = reason
        self.session.closed()

    def send_bytes(self, frame: bytes) -> None:
        """The buffer is overwritten afterwards, as a socket's is."""
        buffer = bytearray(frame)
        self.session.receive(memoryview(buffer).toreadonly(), self.received_ns)
        buffer[:] = b"\xee" * len(buffer)

    def send(self, api_key: int, version: int, body: bytes) -> int:
        self._correlation_id += 1
        self.send_bytes(request_header(api_key, version, self._correlation_id, "test") + body)
        return self._correlation_id

    def ask(self, api_key: int, version: int, body: bytes) -> tuple[memoryview, int]:
        """One request, one response: its bytes, and where the body starts."""
        assert not self.session.in_flight
        count = len(self.replies)
        correlation_id = self.send(api_key, version, body)
        self.machine.run_until(lambda: len(self.replies) > count or self.closed is not None)
        assert self.closed is None, self.closed
        return self.last_reply(api_key, version, correlation_id)

    def last_reply(self, api_key: int, version: int, correlation_id: int) -> tuple[memoryview, int]:
        frame = memoryview(self.replies[-1])
        answered, position = parse_response_header(api_key, version, frame)
        assert answered == correlation_id
        return frame, position

    def call(self, api_key: int, version: int, /, **fields: Any) -> DecodedMessage:
        frame, position = self.ask(api_key, version, encode_request(api_key, version, fields))
        return decode_response(api_key, version, frame, position)

    def produce(self, request: ProduceRequest, version: int = 9) -> ProduceResponse:
        frame, position = self.ask(ApiKey.PRODUCE, version, encode_produce_request(version, request))
        return decode_produce_response(version, frame, position)

    def fetch(self, request: FetchRequest, version: int = 12) -> FetchResponse:
        frame, position = self.ask(ApiKey.FETCH, version, encode_fetch_request(version, request))
        return decode_fetch_response(version, frame, position)

    def append(
        self, topic: str = "orders", count: int = 1, *, partition: int = 0, acks: int = -1, records: bytes | None = None
    ) -> ProduceResult:
        """One batch of ``count`` records, or the bytes given."""
        request = produce_request(topic, batch(count) if records is None else records, partition=partition, acks=acks)
        ((result,),) = [answer.partitions for answer in self.produce(request).topics]
        return result

    def read(self, topic: str = "orders", offset: int = 0, *, partition: int = 0, wait_ms: int = 0) -> FetchedPartition:
        request = fetch_request(topic, offset, partition=partition, wait_ms=wait_ms)
        ((result,),) = [answer.partitions for answer in self.fetch(request).topics]
        return result

    def create_topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> bytes:
        """Returns its id; settings are named with '_' for '.'."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        (created,) = self.call(ApiKey.CREATE_TOPICS, 7, topics=[topic]).topics
        assert created.error_code == 0, created
        topic_id: bytes = created.topic_id
        return topic_id


def produce_request(
    topic: str = "orders", records: bytes | None = None, *, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    data = ProducePartition(partition, memoryview(records) if records is not None else None)
    return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(topic, None, [data])])


def fetch_request(
    topic: str | None = "orders",
    offset: int = 0,
    *,
    topic_id: bytes | None = None,
    partition: int = 0,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    leader_epoch: int = -1,
    replica_id: int = -1,
) -> FetchRequest:
    wanted = FetchPartition(partition, offset, 1 << 20, leader_epoch)
    topics = [FetchTopic(topic, topic_id, [wanted])]
    return FetchRequest(replica_id, wait_ms, bytes_min, bytes_max, isolation, *session, topics, [], "")


def offsets_in(records: memoryview | None) -> list[int]:
    """Of every record that was fetched."""
    data = bytes(records or b"")
    found = iterate_headers(data)
    return [
        record.offset
        for position, header in found
        for record in read_records(data, position, header, size_max=1 << 20, count_max=1 << 20)
    ]


def _bytes_of(part: Part) -> bytes:
    if isinstance(part, LogSlice):
        return part.file.read(part.position, part.length)
    return bytes(part)  # type: ignore[arg-type]  # the only records that the broker sends are slices
