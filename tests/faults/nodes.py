"""Nodes that are put together one by one, as an operator does it: a broker that is alone gets listeners for others, is told of a
quorum, and others join."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from tests.faults.load import COMMON
from tidelog.config.file import text_of
from tidelog.testing.broker import Broker
from tidelog.testing.environment import HOST, reserve_port

LISTENERS = ("PLAINTEXT", "REPLICATION", "CONTROLLER")


class NodeEnvironment:
    """A data directory and three ports. ``configs`` may change between two starts."""

    def __init__(self, node_id: int, path: str | os.PathLike[str], configs: Mapping[str, object]) -> None:
        self.node_id = node_id
        self.data_path = Path(path).absolute()
        self.configs = dict(configs)
        self._reservations = [reserve_port() for _ in LISTENERS]
        self.ports = [reservation.getsockname()[1] for reservation in self._reservations]
        self.port = self.ports[0]

    @property
    def is_temporary(self) -> bool:
        return True

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in zip(LISTENERS, self.ports, strict=True))
        return {
            "node.id": str(self.node_id),
            "log.dirs": str(self.data_path),
            "listeners": addresses,
            "listener.security.protocol.map": "REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "REPLICATION",
            "controller.listener.names": "CONTROLLER",
            **{name: text_of(name, value) for name, value in self.configs.items()},
        }

    def close(self) -> None:
        for reservation in self._reservations:
            reservation.close()


class Node(Broker):
    def __init__(self, node_id: int, path: str | os.PathLike[str], configs: Mapping[str, object]) -> None:
        self._environment = self.node = NodeEnvironment(node_id, path, configs)
        self._run = None
        self.log_lines = []

    @property
    def controller_address(self) -> str:
        return f"{HOST}:{self.node.ports[-1]}"


@contextmanager
def writing(servers: str, topic: str) -> Iterator[dict[int, bytes]]:
    """Write one value after the other to partition 0, and note what is acknowledged, by offset. An error fails the test."""
    acknowledged: dict[int, bytes] = {}
    is_over = threading.Event()
    errors: list[str] = []
    producer = Producer({**COMMON, "bootstrap.servers": servers, "max.in.flight": 1, "delivery.timeout.ms": 60_000})

    def work() -> None:
        number = 0
        while not is_over.is_set():
            value = b"%d" % number
            producer.produce(
                topic,
                value,
                partition=0,
                on_delivery=lambda error, message, value=value: (
                    errors.append(str(error)) if error is not None else acknowledged.update({message.offset(): value})
                ),
            )
            number += 1
            producer.poll(0.01)
        producer.flush(60)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield acknowledged
    finally:
        is_over.set()
        thread.join(120)
    assert errors == []
