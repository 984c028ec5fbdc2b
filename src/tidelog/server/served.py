"""What the shell needs of the broker: these few calls. ``broker.Broker`` and ``broker.ClientSession`` have them; tests have
their own.
"""

from collections.abc import Callable
from typing import Protocol

from tidelog.ports.disk import Buffer
from tidelog.wire.fetch import RecordsPart

# A response is a list of these: bytes to send, and records, which on real disks are ``LogSlice``: a range of a segment file.
Part = Buffer | RecordsPart

OnDone = Callable[[Exception | None], None]


class ServedSession(Protocol):
    """One client's connection, as the broker sees it."""

    received_ns: int
    """When the bytes of the frames that follow arrived, by the monotonic clock; the shell sets it."""

    @property
    def wants_reading(self) -> bool: ...

    @property
    def in_flight(self) -> int:
        """Requests received and not answered. They are answered in the order in which they came."""
        ...

    def receive(self, frame: memoryview) -> None:
        """One request. The frame is overwritten as soon as this returns."""
        ...

    def closed(self) -> None: ...


class ServedBroker(Protocol):
    def session(
        self,
        client_host: str,
        send: Callable[[list[Part]], None],
        close: Callable[[str], None],
        resume: Callable[[], None],
    ) -> ServedSession:
        """``send`` takes one whole response; ``close`` ends the connection, with the reason; ``resume`` says that the session
        may want reading again, though nothing was answered."""
        ...

    def connection_throttle_ms(self, client_host: str) -> int:
        """For how long a new connection is left alone before it is ended, because its address has had too many; 0: it is
        welcome."""
        ...

    def start(self, on_started: OnDone) -> None:
        """``on_started`` may come later; then clients can be served."""
        ...

    def begin_stop(self, on_stopped: OnDone) -> None:
        """No request comes any more. Time goes on until ``on_stopped``."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """By the monotonic clock."""
        ...

    def end_of_burst(self) -> None:
        """All requests, completions and timers that were ready have been handled."""
        ...
