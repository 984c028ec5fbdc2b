"""Nodes that are put together one by one, as an operator does it: a broker that is alone gets listeners for others, is told of a
quorum, and others join."""

import os
from collections.abc import Mapping
from pathlib import Path

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
