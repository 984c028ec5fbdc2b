"""RabbitMQ: a durable queue, persistent messages, publisher confirms that come while more is published; pika.

A quorum queue, which is what its makers recommend for data that must not be lost: it syncs before it confirms.
"""

import subprocess
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.beside.peers.peer import VALUE, Process, free_port, program

QUEUE = "bench"
UNCONFIRMED_MAX = 1000
PREFETCH = 1000
LIBRARY = "/usr/lib/rabbitmq/bin"


class RabbitMq:
    def __init__(self, directory: Path) -> None:
        self.name = "RabbitMQ, quorum queue"
        self.durability = "fsynced"
        self._program = program("rabbitmq-server", "rabbitmq-server", LIBRARY)
        self._directory = directory
        self._process: Process | None = None
        self._port = self._names_port = 0

    def mebibytes(self) -> float:
        return 0.0 if self._process is None else self._process.mebibytes()

    def start(self) -> None:
        import pika

        self._port, self._names_port, distribution = free_port(), free_port(), free_port()
        environment = {
            "HOME": str(self._directory),
            "RABBITMQ_NODENAME": f"bench{self._port}@localhost",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "plugins"),
            "RABBITMQ_PID_FILE": str(self._directory / "pid"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names_port),
            # It may be ended while it still knows the node that was killed.
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        }
        self._process = Process([self._program], self._port, self._directory, environment)
        with pika.BlockingConnection(self._parameters()) as connection:
            connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    def _parameters(self) -> Any:
        import pika

        return pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0)

    def publish(self, count: int) -> float:
        return _Publisher(self._parameters(), count).run()

    def publish_one_by_one(self, count: int) -> list[float]:
        import pika

        properties = pika.BasicProperties(delivery_mode=2)
        milliseconds = []
        with pika.BlockingConnection(self._parameters()) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in range(count):
                began = perf_counter()
                channel.basic_publish("", QUEUE, VALUE, properties)
                milliseconds.append((perf_counter() - began) * 1000)
        return milliseconds

    def read(self, count: int) -> float:
        import pika

        began, left = perf_counter(), count
        with pika.BlockingConnection(self._parameters()) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, _, _ in channel.consume(QUEUE):
                left -= 1
                if left % (PREFETCH // 2) == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if left == 0:
                    break
            channel.cancel()
            return perf_counter() - began

    def settle_one_by_one(self, count: int) -> list[float]:
        import pika

        milliseconds: list[float] = []
        with pika.BlockingConnection(self._parameters()) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1)
            began = 0.0
            for method, _, _ in channel.consume(QUEUE):
                if began:
                    milliseconds.append((perf_counter() - began) * 1000)
                if len(milliseconds) == count:
                    break
                began = perf_counter()
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
        return milliseconds

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            # Erlang's name server is a daemon that outlives whoever started it.
            names = [program("epmd", "erlang-base"), "-port", str(self._names_port), "-kill"]
            subprocess.run(names, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


class _Publisher:
    """Publishes on, up to a number that is not confirmed yet."""

    def __init__(self, parameters: Any, count: int) -> None:
        import pika

        self._count = count
        self._sent = self._confirmed = 0
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._began = self._ended = 0.0
        self._channel: Any = None
        self._connection = pika.SelectConnection(parameters, on_open_callback=self._on_open)

    def run(self) -> float:
        self._connection.ioloop.start()
        return self._ended - self._began

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._begin())

    def _begin(self) -> None:
        self._began = perf_counter()
        self._publish()

    def _publish(self) -> None:
        while self._sent < self._count and self._sent - self._confirmed < UNCONFIRMED_MAX:
            self._channel.basic_publish("", QUEUE, VALUE, self._properties)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed < self._count:
            self._publish()
            return
        self._ended = perf_counter()
        self._connection.close()
        self._connection.ioloop.stop()
