"""Where a broker for tests lives: its data directory, its port, its settings. The same over restarts.

The port is reserved once, by a socket that is bound and never listens. While nobody listens, a second socket may bind to the same
port (both have SO_REUSEADDR) and listen on it, but the kernel gives it to nobody who asks for any port. So the broker can be
killed and started again and finds its port free, and no other process gets it in between.
"""

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidelog.config.file import text_of

HOST = "127.0.0.1"


class BrokerFailed(Exception):
    """The broker did not start, or did not end as it should; the message has its last words."""


class Place:
    def __init__(self, persist: str | os.PathLike[str] | None, configs: Mapping[str, object] | None) -> None:
        """``persist`` is a data directory to keep; without it there is a temporary one, which ``give_up`` removes."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if persist is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True)
            self.data_path = Path(self._temporary.name) / "data"
        else:
            self.data_path = Path(persist).absolute()
        self._reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind((HOST, 0))
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
        """All settings as text. What the test asks for wins, except for the address: the test is told that one."""
        configs = {name: text_of(name, value) for name, value in self._configs.items()}
        return {**configs, "listeners": f"PLAINTEXT://{self.bootstrap_servers}", "log.dirs": str(self.data_path)}

    def give_up(self) -> None:
        self._reservation.close()
        if self._temporary is not None:
            self._temporary.cleanup()
