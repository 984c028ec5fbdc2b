"""A TCP proxy in front of a broker: what it does with the bytes is for those that derive from it.

The broker must advertise the proxy's address, or clients go past it after their first connection.
"""

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from typing import Self

HOST = "127.0.0.1"


class TcpProxy(ABC):
    """``port`` is known at once; ``target_port`` is set when the broker behind it has started."""

    def __init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.target_port = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @abstractmethod
    def _join(self, client: socket.socket, broker: socket.socket) -> None:
        """A client has come: ``_start`` whatever moves its bytes."""

    def close(self) -> None:
        for sock in (self._server, *self._sockets):
            shut_down(sock)
        for thread in self._threads:
            thread.join()
        for sock in (self._server, *self._sockets):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, run: object, *arguments: object) -> None:
        assert callable(run)
        thread = threading.Thread(target=run, args=arguments, name=type(self).__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # Closed.
            try:
                broker = socket.create_connection((HOST, self.target_port))
            except OSError:
                client.close()
                continue
            self._sockets += (client, broker)
            self._join(client, broker)


def shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
