"""The environment of a broker for tests: its data directory, its port and its settings, which stay the same over restarts.

A socket that is bound and never listens reserves the port. A second socket may bind to the same port and listen on it (both have
SO_REUSEADDR), but the kernel does not hand the port to a process that asks for any free one. So a broker that is killed and
started again finds its port free, and no other process gets it in between.
"""

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tidelog.config.file import text_of

HOST = "127.0.0.1"


class BrokerFailed(Exception):
    """The broker did not start, or did not end as it should. The message has its last output."""


def reserve_port(port: int = 0) -> socket.socket:
    """A socket that keeps a port, or any free one, for our own processes until it is closed."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, port))
    return reservation


class Environment(Protocol):
    """What a broker process keeps over its restarts."""

    port: int
    data_path: Path

    @property
    def is_temporary(self) -> bool: ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def settings(self) -> dict[str, str]: ...

    def close(self) -> None: ...


class BrokerEnvironment:
    def __init__(self, persist: str | os.PathLike[str] | None, configs: Mapping[str, object] | None) -> None:
        """``persist`` is a data directory to keep; without it there is a temporary one, which ``close`` removes."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if persist is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True)
            self.data_path = Path(self._temporary.name) / "data"
        else:
            self.data_path = Path(persist).absolute()
        self._reservation = reserve_port()
        self.port: int = self._reservation.getsockname()[1]
        self._configs = dict(configs or {})

    @property
    def is_temporary(self) -> bool:
        return self._temporary is not None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """All settings as text. The test's own settings win, except for the address, which the test is told."""
        configs = {name: text_of(name, value) for name, value in self._configs.items()}
        return {**configs, "listeners": f"PLAINTEXT://{self.bootstrap_servers}", "log.dirs": str(self.data_path)}

    def close(self) -> None:
        self._reservation.close()
        if self._temporary is not None:
            self._temporary.cleanup()
