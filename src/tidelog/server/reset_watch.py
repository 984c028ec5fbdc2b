"""Notices at once that a connection was reset, which the event loop does not tell.

When the kernel reports an error of a descriptor (a reset comes as one), libuv stops polling it, and uvloop closes its handle
without calling anybody: the connection would look alive, with all that it holds, until a time limit runs out, and adding a
reader or writer of that descriptor raises RuntimeError. A connection that nobody reads from or writes to for the moment would
not be noticed anyway.

So every connection is also in an epoll of our own that asks for no events, and thus hears of errors and hang-ups only. That epoll
is itself a descriptor that becomes readable, and its reader is called by the loop like any other.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable

OnReset = Callable[[str], None]


class ResetWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[socket.socket, OnReset]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, connected: socket.socket, on_reset: OnReset) -> None:
        """``on_reset`` is called once, with the reason, unless ``forget`` comes before."""
        descriptor = connected.fileno()
        self._watched[descriptor] = connected, on_reset
        self._epoll.register(descriptor, 0)

    def forget(self, descriptor: int) -> None:
        """Before the socket is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            watched = self._watched.get(descriptor)
            if watched is None:
                continue  # What was done for one before it has ended this one too.
            self.forget(descriptor)
            connected, on_reset = watched
            code = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            on_reset(os.strerror(code) if code else "closed by the client")
