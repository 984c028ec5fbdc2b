"""What clients do to each other: a thousand that only wait, one that reads old history from the disk, and compaction behind all.

``idle-consumers`` is the broker's processor time while a thousand connections do nothing but fetch, each half a second long, and
never get anything. The other two are the p99 of a client that sends one message after the other into the page cache, while the
disturbance goes on and while it does not, in turns: the ratio is what counts, since the machine makes both as long as it likes.
Whoever disturbs is a process of its own. All share two cores here, so part of what is measured is waiting for a processor.
"""

import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import quantiles
from time import perf_counter

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench.broker_process import RELAXED, WAIT_SECONDS_MAX, cpu_seconds, create_topic
from bench.measure import Figure, Row, Target, alternate
from bench.workspace import Workspace
from tidelog.records.batch import build_batch
from tidelog.records.record import Record
from tidelog.testing import Broker
from tidelog.wire.fetch import CONSUMER_REPLICA_ID, FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey, request_header

HOST = "127.0.0.1"
PING_TOPIC, HISTORY_TOPIC, COMPACTED_TOPIC = "ping", "history", "compacted"
CONSUMERS = 1_000
# What every client waits for by default.
FETCH_WAIT_MS = 500
IDLE_SECONDS = 10.0
IDLE_PERCENT_MAX = 10.0
ROUNDS = 5
ROUND_SECONDS = 4.0
P99_RATIO_MAX = 2.0
HISTORY_BYTES = 1 << 30
BATCH_BYTES = 900_000
COMPACTED_RECORDS = 1_500_000
RECORDS_PER_BATCH = 1_000
WRITES_PER_KEY = 4


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    message = request_header(api_key, version, 1, "bench") + body
    return struct.pack(">i", len(message)) + message


def _produce_frame(topic: str, records: bytes) -> bytes:
    data = ProduceTopic(topic, None, [ProducePartition(0, memoryview(records))])
    return _frame(ApiKey.PRODUCE, 9, encode_produce_request(9, ProduceRequest(None, -1, 30_000, [data])))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Pinger:
    """A client that waits for each answer before the next request."""

    def __init__(self, broker: Broker, frame: bytes) -> None:
        self._frame = frame
        self._socket = socket.create_connection((HOST, broker.port), timeout=WAIT_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> None:
        self._socket.sendall(frame)
        data = self._socket.recv(65_536)
        size = struct.unpack_from(">i", data)[0] + 4
        while len(data) < size:
            data += self._socket.recv(65_536)

    def p99_ms(self, seconds: float) -> float:
        times = []
        end = perf_counter() + seconds
        while (began := perf_counter()) < end:
            self.ask(self._frame)
            times.append(perf_counter() - began)
        return quantiles(times, n=100)[98] * 1000

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _pinger(broker: Broker) -> Iterator[_Pinger]:
    create_topic(broker, PING_TOPIC)
    pinger = _Pinger(broker, _produce_frame(PING_TOPIC, build_batch([Record(0, _now_ms(), None, bytes(100), ())])))
    try:
        pinger.p99_ms(0.5)
        yield pinger
    finally:
        pinger.close()


def _row(what: str, workspace: Workspace, pinger: _Pinger, disturbed: Sequence[str]) -> Row:
    """``disturbed``: the arguments of this module as a program, which disturbs until it is killed."""
    seconds = 0.5 if workspace.is_quick else ROUND_SECONDS

    def ours() -> float:
        process = subprocess.Popen([sys.executable, "-m", "bench.interference", *disturbed], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            return pinger.p99_ms(seconds)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    compared = alternate(workspace.rounds(ROUNDS), ours, lambda: pinger.p99_ms(seconds))
    return Row.of_comparison(what, compared, "ms", Target("<=", P99_RATIO_MAX))


# -- a thousand that wait ------------------------------------------------------------------------------------------------------


def idle_consumers(workspace: Workspace) -> list[Row]:
    count = workspace.scaled(CONSUMERS, 10)
    with workspace.directory("idle") as path, Broker(persist=path) as broker:
        create_topic(broker, PING_TOPIC)
        wanted = [FetchTopic(PING_TOPIC, None, [FetchPartition(0, 0, 1 << 20)])]
        fetch = FetchRequest(CONSUMER_REPLICA_ID, FETCH_WAIT_MS, 1, 50 << 20, 0, 0, -1, wanted, [], "")
        frame = _frame(ApiKey.FETCH, 12, encode_fetch_request(12, fetch))
        with selectors.DefaultSelector() as selector:
            consumers = [socket.create_connection((HOST, broker.port)) for _ in range(count)]
            for number, consumer in enumerate(consumers):
                # Not all in the same millisecond.
                time.sleep(FETCH_WAIT_MS / 1000 / count)
                consumer.sendall(frame)
                selector.register(consumer, selectors.EVENT_READ, number)
            _answer_all(selector, frame, 1.0)
            percent = []
            for _ in range(workspace.rounds(ROUNDS)):
                before, began = cpu_seconds(broker), perf_counter()
                answers = _answer_all(selector, frame, 0.6 if workspace.is_quick else IDLE_SECONDS / ROUNDS)
                percent.append(100 * (cpu_seconds(broker) - before) / (perf_counter() - began))
            assert answers, "nobody was answered"
            for consumer in consumers:
                consumer.close()
        broker.kill()
    what = f"interference: {count:,} idle consumers, of a core"
    return [Row(what, Figure.of(percent), "%", target=Target("<=", IDLE_PERCENT_MAX))]


def _answer_all(selector: selectors.BaseSelector, frame: bytes, seconds: float) -> int:
    """Whoever was answered asks again."""
    answers, end = 0, perf_counter() + seconds
    while (left := end - perf_counter()) > 0:
        for key, _ in selector.select(left):
            consumer = key.fileobj
            assert isinstance(consumer, socket.socket)
            assert consumer.recv(4096), "the broker hung up"
            consumer.sendall(frame)
            answers += 1
    return answers


# -- old history ---------------------------------------------------------------------------------------------------------------


def cold_history(workspace: Workspace) -> list[Row]:
    with workspace.directory("cold") as path, Broker(persist=path) as broker, _pinger(broker) as pinger:
        create_topic(broker, HISTORY_TOPIC)
        frame = _produce_frame(HISTORY_TOPIC, build_batch([Record(0, _now_ms(), None, Random(1).randbytes(BATCH_BYTES), ())]))
        for _ in range(max(2, workspace.scaled(HISTORY_BYTES) // BATCH_BYTES)):
            pinger.ask(frame)
        os.sync()
        arguments = ("read", broker.bootstrap_servers, os.fspath(path / f"{HISTORY_TOPIC}-0"))
        row = _row("interference: p99 while another client reads cold history", workspace, pinger, arguments)
        broker.kill()
    return [row]


def _read_cold(bootstrap_servers: str, directory: str) -> None:
    """From the beginning, again and again; before each time it is put out of the page cache."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "cold", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "queued.max.messages.kbytes": 16_384})
    while True:
        for name in sorted(Path(directory).glob("*.log")):
            descriptor = os.open(name, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        consumer.assign([TopicPartition(HISTORY_TOPIC, 0, 0)])
        while True:
            message = consumer.poll(10.0)
            if message is None or message.error() is not None:
                break
            _say_begun()


# -- compaction ----------------------------------------------------------------------------------------------------------------


def compaction(workspace: Workspace) -> list[Row]:
    configs = {"log.cleaner.backoff.ms": 100}
    with workspace.directory("compacted") as path, Broker(persist=path, configs=configs) as broker, _pinger(broker) as pinger:
        arguments = ("compact", broker.bootstrap_servers, str(broker.port), str(workspace.scaled(COMPACTED_RECORDS, 20_000)))
        row = _row("interference: p99 while a log is compacted", workspace, pinger, arguments)
        broker.kill()
    return [row]


def _compact(bootstrap_servers: str, port: int, count: int) -> None:
    """Fill a topic of its own, then let the broker compact it; three records of four go."""
    topic = f"{COMPACTED_TOPIC}-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    settings = {**RELAXED, "cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.01"}
    new = NewTopic(topic, 1, 1, config={**settings, "min.compaction.lag.ms": str(10**12)})
    admin.create_topics([new])[topic].result(WAIT_SECONDS_MAX)
    source, keys = Random(1), count // WRITES_PER_KEY
    with socket.create_connection((HOST, port), timeout=WAIT_SECONDS_MAX) as connection:
        for _ in range(count // RECORDS_PER_BATCH):
            records = [
                Record(number, _now_ms(), b"key-%08d" % source.randrange(keys), bytes(100), ())
                for number in range(RECORDS_PER_BATCH)
            ]
            connection.sendall(_produce_frame(topic, build_batch(records)))
            assert connection.recv(4096)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS_MAX)
    _say_begun()
    # The parent measures meanwhile and ends this process.
    time.sleep(WAIT_SECONDS_MAX)


def _say_begun() -> None:
    print("begun", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "read":
        _read_cold(sys.argv[2], sys.argv[3])
    else:
        _compact(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
