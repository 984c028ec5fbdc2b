"""The brokers that are compared: each a process of its own on an empty data directory, with what its makers ship as defaults.

Kafka gets the heap and the collector of its own start script, not the small ones that tests use. Both write into directories of
the same file system, and both get the same topic settings: ``PAGE_CACHE`` acknowledges from the page cache (Kafka's default),
``FSYNCED`` syncs before the acknowledgement. Tidelog is there twice where it can be: pure Python, and compiled.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, sleep
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.broker_process import WAIT_SECONDS_MAX, Process
from tests.compatibility.apache_kafka import KAFKA_VERSION, ApacheKafka
from tests.release.compiled import compiled_build
from tidelog import __version__
from tidelog.testing import Broker

PAGE_CACHE = {"flush.messages": str(2**63 - 1)}
FSYNCED = {"flush.messages": "1"}

# What kafka-server-start.sh and kafka-run-class.sh give a broker.
KAFKA_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
PORT_PROBE_SECONDS = 0.005

# No broker makes any number of them at once.
PARTITIONS_PER_REQUEST = 2_000


class Reachable(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...


class Subject(Process, Reachable, Protocol):
    """A broker under measurement. ``start`` returns when it takes connections."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...


class TidelogSubject:
    name = "Tidelog"
    label = f"Tidelog {__version__}"

    def __init__(self, path: Path) -> None:
        self._broker = Broker(persist=path)

    @property
    def pid(self) -> int:
        return self._broker.pid

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    def start(self) -> None:
        self._broker.start()

    def kill(self) -> None:
        if self._broker.is_running:
            self._broker.kill()
        self._broker.close()


class CompiledTidelogSubject(TidelogSubject):
    name = "Tidelog-compiled"
    label = f"Tidelog {__version__}, compiled"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._build = compiled_build()

    def start(self) -> None:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(self._build)
        try:
            super().start()
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before


class KafkaSubject:
    name = "Kafka"
    label = f"Apache Kafka {KAFKA_VERSION}"

    def __init__(self, path: Path) -> None:
        configs = {"auto.create.topics.enable": "true", "offsets.topic.num.partitions": "50"}
        self._kafka = ApacheKafka(path.resolve(), configs=configs, heap_flags=KAFKA_FLAGS)
        # Making the directory ready is an installation's work and no part of a start.
        self._kafka.format()

    @property
    def pid(self) -> int:
        return self._kafka.pid

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    def start(self) -> None:
        self._kafka.launch()
        deadline = perf_counter() + WAIT_SECONDS_MAX
        while not _takes_connections(self._kafka.port):
            if not self._kafka.is_running or perf_counter() > deadline:
                raise RuntimeError(f"Apache Kafka did not start: {self._kafka.output()[-2000:]}")
            sleep(PORT_PROBE_SECONDS)

    def kill(self) -> None:
        self._kafka.kill()


def _takes_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def create_topic(subject: Reachable, topic: str, configs: Mapping[str, str], partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": subject.bootstrap_servers, "log_level": 0})
    made = min(partitions, PARTITIONS_PER_REQUEST)
    admin.create_topics([NewTopic(topic, made, 1, config=dict(configs))])[topic].result(WAIT_SECONDS_MAX)
    while made < partitions:
        made = min(partitions, made + PARTITIONS_PER_REQUEST)
        admin.create_partitions([NewPartitions(topic, made)])[topic].result(WAIT_SECONDS_MAX)


def delete_topic(subject: Reachable, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": subject.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)
