"""A broker as a process: an event loop, helper threads, signals, an exit code.

SIGTERM and SIGINT stop it in order and it exits with 0; a second one stops it at once, as a crash would, and it exits with 1:
what was acknowledged is on the disk either way.

The addresses are bound before the broker is made, which tells clients its port, and listened on when it has started.

A program that has a broker within itself (``Embedding``) runs it in a thread and stops it by a call; signals, the process's
limits and its garbage collector stay the program's own.
"""

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import uvloop

from tidelog.ports.clock import Clock, RealClock
from tidelog.ports.executor import Executor
from tidelog.ports.real_executor import ThreadExecutor
from tidelog.server.garbage import tune_garbage_collection
from tidelog.server.limits import Limits
from tidelog.server.listener import bind_all
from tidelog.server.loop_lag import Report, report_nothing
from tidelog.server.served import ServedBroker
from tidelog.server.server import Server

EXIT_STOPPED = 0
EXIT_CUT_SHORT = 1
# Cold reads wait for the disk, not for each other.
COLD_READ_THREADS = 4

# With the executor, the clock, and the addresses that were bound.
MakeBroker = Callable[[Executor, Clock, Sequence[tuple[str, int]]], ServedBroker]


class Beside(Protocol):
    """Something else that is served on the broker's loop, at an address of its own."""

    address: tuple[str, int]

    async def start(self, server: Server, bound: socket.socket) -> None:
        """Before the broker starts."""
        ...

    async def stop(self) -> None:
        """After it has stopped."""
        ...


class Embedding(Protocol):
    """The program that a broker runs within, in a thread of its own."""

    def stoppable(self, stop: Callable[[], object]) -> None:
        """Called before the broker starts. ``stop`` does what a signal would, from any thread, until ``serve`` returns."""
        ...


class _Process:
    """What becomes of the loop: started, stopped by a signal or two, failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_stopping = False
        self.server: Server | None = None
        self.is_cut_short = False
        self.error: Exception | None = None

    def on_signal(self) -> None:
        if self._is_stopping or self.server is None or not self.server.listeners:
            self.is_cut_short = True
            self._loop.stop()
            return
        self._is_stopping = True
        self.server.begin_stop(self.ended)

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self._loop.stop()

    def deliver(self, completion: Callable[[], None]) -> None:
        """A completion of the broker's executor, on the loop's thread."""
        if self.server is None:
            completion()
        else:
            self.server.hub.run(completion)


def serve(
    make_broker: MakeBroker,
    addresses: Sequence[tuple[str, int]],
    on_serving: Callable[[Server], None],
    limits: Limits | None = None,
    embedding: Embedding | None = None,
    report: Report = report_nothing,
    beside: Beside | None = None,
) -> int:
    """Run a broker until a signal ends it; returns the exit code. ``on_serving`` is called once clients can connect.

    Raises what the broker raises when it cannot start or stop, and OSError when an address is taken."""
    if embedding is None:
        _raise_descriptor_limit()
    bound = bind_all(addresses if beside is None else [*addresses, beside.address])
    beside_bound = [] if beside is None else [bound.pop()]
    loop = uvloop.new_event_loop()
    process = _Process(loop)
    clock = RealClock()
    threads = ThreadExecutor(wake=lambda completion: loop.call_soon_threadsafe(process.deliver, completion))
    cold_reads = ThreadExecutor(wake=loop.call_soon_threadsafe, thread_count=COLD_READ_THREADS)

    def started(error: Exception | None) -> None:
        if error is not None:
            process.ended(error)
            return
        server.listen(bound)
        if embedding is None:
            tune_garbage_collection()
        on_serving(server)

    try:
        broker = make_broker(threads, clock, [listening.getsockname()[:2] for listening in bound])
        server = Server(loop, broker, clock, cold_reads, limits or Limits(), report)
        process.server = server
        if beside is not None:
            loop.run_until_complete(beside.start(server, beside_bound[0]))
        if embedding is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, process.on_signal)
        else:
            embedding.stoppable(lambda: loop.call_soon_threadsafe(process.on_signal))
        loop.call_soon(broker.start, started)
        server.hub.wake()
        loop.run_forever()
    finally:
        if beside is not None:
            loop.run_until_complete(beside.stop())
        for listening in (*bound, *beside_bound):
            listening.close()
        cold_reads.close(wait=False)
        # Nothing of the broker's runs any more after a stop in order.
        threads.close(wait=False)
        loop.close()
    if process.error is not None:
        raise process.error
    return EXIT_CUT_SHORT if process.is_cut_short else EXIT_STOPPED


def _raise_descriptor_limit() -> None:
    """A descriptor per connection and per open segment: take all that the system allows without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
